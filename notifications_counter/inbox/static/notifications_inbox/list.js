// Keeps lists of notifications current, in the inbox and in a bell's panel: fetches them when the count changes and
// every half minute, while they are visible. Nothing moves under a pointer, the keyboard or a reader's eyes: rows that
// were read elsewhere change in place; new rows and rows that are gone wait until the user has left the list.
(() => {
  "use strict";
  if (window.ncListOf) return; // each bell includes this script
  const lists = new Map(); // by their elements

  // Milliseconds.
  const POLL = 30_000;
  const RETRY = 2_000; // after a failure, before a message: the user may be leaving the page
  const GONE = 300; // after a pointer has left, in case it comes back
  const TOLD = 6_000; // that a message stays
  const CHOICE = 60_000; // that a message with a button stays

  const MORE = 20; // rows to add when the last ones come into view
  const MOST = 200; // rows, before there are pages
  const HELD = ".nc-body:hover, .nc-body :is(:checked, :focus-visible, :popover-open), .nc-filters:is(:hover, :focus-within)";
  const AIMED = ":is(:hover, :focus-within)"; // of a message
  // Tab goes to the title of a row; arrows, to the rest.
  const ARROWED = ".nc-row :is(.nc-lead > input, .nc-mark, .nc-more)";
  const PATIENCE = 20_000; // milliseconds, for a list
  const TROUBLES = new Set(["failed", "offline", "ended"]);
  const UNITS = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 0]];

  const language = document.documentElement.lang.replaceAll("_", "-") || undefined;
  const [now, ago] = ["auto", "always"].map((numeric) => new Intl.RelativeTimeFormat(language, { numeric, style: "short" }));
  let lag = 0; // milliseconds by which the visitor's clock is late
  let isTabbing = false;
  let keyed = 0; // when a key was pressed: somebody may be on the way to a message

  const template = (state) => document.querySelector(`template[data-state="${state}"]`);
  const copy = (state) => template(state).content.cloneNode(true);
  const rowsOf = (part) => new Map([...part.querySelectorAll(".nc-row")].map((row) => [row.dataset.key, row]));
  const setLag = (date) => date && (lag = Date.parse(date) - Date.now());

  const prepare = (part) => {
    for (const control of part.querySelectorAll(ARROWED)) control.tabIndex = -1;
    for (const time of part.querySelectorAll(".nc-row time")) {
      const seconds = Math.max(0, (Date.now() + lag - Date.parse(time.dateTime)) / 1000);
      const [unit, size] = UNITS.find(([, size]) => seconds >= size);
      time.dataset.text ??= time.textContent;
      // Then a date, or a time below its day, is clearer.
      const isOld = seconds > 30 * 86400 || time.matches(".nc-day:not(.nc-today) ~ * time");
      const text = isOld ? time.dataset.text : size ? ago.format(-Math.floor(seconds / size), unit) : now.format(0, unit);
      if (time.textContent !== text) time.textContent = text;
    }
  };

  // Change an element that has the focus: if it was replaced, screen readers would read it again.
  const morph = (old, now) => {
    for (const { name } of [...old.attributes]) if (!now.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of now.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    const isAlike = old.children.length && old.children.length === now.children.length;
    if (isAlike) [...old.children].forEach((child, i) => morph(child, now.children[i]));
    else if (!old.isEqualNode(now)) old.replaceChildren(...now.childNodes);
  };

  // Replace an element, but keep its ticks.
  const swap = (old, now) => {
    if (!old || !now || old.isEqualNode(now)) return old;
    if (old.contains(document.activeElement)) {
      now.hidden = old.hidden;
      morph(old, now);
      return old;
    }
    for (const box of old.querySelectorAll(":checked")) {
      const same = now.querySelector(`[id="${box.id}"]`);
      if (same) same.checked = true;
    }
    const { hidden, scrollLeft } = old;
    old.replaceWith(now);
    Object.assign(now, { hidden, scrollLeft });
    window.htmx?.process(now);
    return now;
  };

  class List {
    known = null; // the part that was there at the last request; null after a change
    etag = ""; // of the last response
    fresh = null; // a newer part that waits
    busy = false;
    failures = 0;
    wanted = 0; // rows, after older ones were requested
    state = ""; // the message about the list
    spoken = ""; // the last one that was shown
    status = ""; // how many rows are selected, or that there are none
    news = null; // a message about a change, which comes first
    failure = null; // the message about changes that failed, which comes back after others
    isOther = false; // whether another list was requested

    constructor(root) {
      this.root = root;
      setLag(root.dataset.now);
      prepare(root);
      this.part.querySelector(".nc-kinds [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
    }

    get part() { return this.root.querySelector(".nc-part"); }
    get toast() { return this.root.querySelector(":scope > .nc-toast"); }
    get now() { return Date.now() + lag; }
    get url() { return this.root.dataset.url || location.href; }

    // The texts of the chosen filters, without numbers.
    get filter() {
      const chosen = [...this.part.querySelectorAll(".nc-filters [aria-current]")];
      return chosen.map((link) => link.firstChild.textContent.trim()).join(", ");
    }

    get emptiness() {
      const isEmpty = !this.part.querySelector(".nc-row:not([hidden])");
      return (isEmpty && this.part.querySelector(".nc-empty p")?.textContent) || "";
    }

    get isFull() { return rowsOf(this.part).size >= MOST || /[?&](before|after)=/.test(this.url); }

    // Whether the user waits for a list.
    get isAwaited() { return !this.part.firstChild || this.part.ariaBusy || this.toast.ariaBusy; }

    get isShown() {
      return !document.hidden && this.root.isConnected && (!this.root.popover || this.root.matches(":popover-open"));
    }

    get isHeld() {
      const isScrolled = this.part.querySelector(".nc-body")?.scrollTop > 0 || this.part.getBoundingClientRect().top < 0;
      return this.part.firstChild && (isScrolled || this.part.querySelector(HELD) || this.toast.matches(AIMED));
    }

    // -------------------------------------------------------------- messages
    // Tell screen readers, but not twice, not before they know the region, and not what is out of date by then.
    tell(text) {
      const region = this.root.querySelector(".nc-told");
      clearTimeout(this.telling);
      this.telling = setTimeout(() => region && region.textContent !== text && (region.textContent = text), GONE);
    }

    tellStatus(status, hint = "") {
      if (status !== this.status) this.tell((this.status = status) + hint);
    }

    tellWait() {
      this.tell(copy("loading").textContent);
    }

    say(state) {
      this.state = state;
      const isShown = state === (this.toast.dataset.state ?? "") && !this.toast.ariaBusy;
      if (!this.news && !isShown) this.show(state);
    }

    // Show a message about a change. Calls `answer` if its button is clicked, else `end` after a while. If it says that
    // changes `failed`, it stays, or comes back after others, until it is answered or closed.
    report(state, { text, answer, end, failed } = {}) {
      this.news?.end?.();
      const news = (this.news = { state, text, answer, end, failed });
      if (failed) this.failure = news;
      this.show(state, text);
      const expire = () => {
        if (this.news !== news) return;
        if (this.toast.matches(AIMED) || Date.now() - keyed < TOLD) return setTimeout(expire, TOLD);
        this.close();
        end?.();
      };
      if (end || (text && !failed)) setTimeout(expire, answer ? CHOICE : TOLD);
    }

    // Show what failed, or else the message about the list, again. Screen readers may have read it before.
    close() {
      if (this.news === this.failure) this.failure = null;
      this.news = this.failure;
      if (this.news) this.show(this.news.state, this.news.text, true);
      else this.show(this.state, "", this.state === this.spoken);
    }

    show(state, text, isTold = false) {
      const { toast } = this;
      toast.ariaBusy = null;
      toast.ariaLive = isTold ? "off" : "polite";
      const focused = toast.querySelector(":focus");
      const preventScroll = !focused?.matches(":focus-visible");
      if (!focused) this.origin = document.activeElement.id;
      toast.dataset.state = state;
      if (state === this.state) this.spoken = state;
      toast.replaceChildren(...(state ? [copy(state)] : []));
      text ||= state && !this.part.firstChild && template(state).dataset.first;
      if (text) toast.firstElementChild.textContent = text;
      if (state === "ended") toast.querySelector("a").href = location.pathname + location.search;
      if (!focused) return;
      const next = toast.querySelector("button, a") ?? this.root.querySelector(`[id="${this.origin}"]`);
      next?.focus({ preventScroll });
      if (next !== document.activeElement) this.focus({ preventScroll }); // it is gone, or hidden
    }

    // Handle a click on the button in a message.
    answer() {
      const { news } = this;
      if (news) this.close();
      if (news) return news.answer();
      if (!this.fresh) return this.retry();
      this.apply();
      this.focus();
    }

    retry() {
      this.failures = 0; // so that one sees for a while that it was clicked
      this.toast.ariaBusy = "true";
      this.refresh();
    }

    focus(options) {
      const title = this.part.querySelector(".nc-row:not([hidden]) .nc-title");
      (title || this.part.querySelector(".nc-filters [aria-current]") || this.root).focus(options);
    }

    // -------------------------------------------------------------- responses
    // Update the list while it is held, without moving anything.
    patch() {
      const rows = rowsOf(this.fresh);
      for (const [key, old] of rowsOf(this.part)) {
        if (old.ariaBusy) continue; // it is about to change
        if (rows.has(key)) {
          swap(old, rows.get(key).cloneNode(true));
        } else if (old.hidden) {
          old.remove();
        } else if (!old.classList.contains("nc-gone")) {
          old.classList.add("nc-gone");
          const ofUnread = /[?&]show=unread/.test(this.url);
          const isRead = ofUnread && old.matches(".nc-read"); // here, so it can be opened and marked as unread
          const note = copy(isRead ? "read" : "gone").firstElementChild;
          if (ofUnread) {
            old.classList.replace("nc-unread", "nc-read");
            old.querySelector(".nc-title > .nc-visually-hidden")?.remove();
          }
          note.id = `${old.querySelector(".nc-title").id}-gone`;
          old.querySelector(".nc-actions").before(note);
          for (const control of old.querySelectorAll("button, input")) {
            if (!isRead) control.ariaDisabled = "true";
            control.setAttribute("aria-describedby", `${note.id} ${control.getAttribute("aria-describedby") ?? ""}`);
          }
          const isFocused = old.contains(document.activeElement);
          if (isFocused && !this.news) this.report("done", { text: note.textContent });
        }
      }
      const list = this.part.querySelector(".nc-list");
      const known = new Set([...(list?.children ?? [])].map((item) => item.dataset.key));
      const items = [...(this.fresh.querySelector(".nc-list")?.children ?? [])];
      const last = items.findLastIndex((item) => known.has(item.dataset.key));
      if (last >= 0) list.append(...items.slice(last + 1).map((item) => item.cloneNode(true)));
      for (const name of [".nc-head", ".nc-pages"]) {
        swap(this.part.querySelector(name), this.fresh.querySelector(name)?.cloneNode(true));
      }
    }

    // Show the newer part. Returns what to tell screen readers of it, if anything.
    apply() {
      const { part, fresh, isOther } = this;
      const isFirst = !part.firstChild;
      const list = part.querySelector(".nc-list");
      const next = fresh.querySelector(".nc-list");
      part.querySelectorAll(".nc-new").forEach((row) => row.classList.remove("nc-new"));
      if (list && next) {
        const olds = new Map([...list.children].map((item) => [item.dataset.key, item]));
        const items = [...next.children];
        const first = items.findIndex((item) => item.matches(".nc-row") && olds.has(item.dataset.key));
        const isNew = (item) => item.matches(".nc-row") && !isOther;
        items.slice(0, Math.max(first, 0)).filter(isNew).forEach((item) => item.classList.add("nc-new"));
        const now = items.map((item) => swap(olds.get(item.dataset.key), item) ?? item);
        [...list.children].filter((item) => !now.includes(item)).forEach((item) => item.remove());
        now.forEach((item, i) => item === list.children[i] || list.insertBefore(item, list.children[i] ?? null));
        for (const name of [".nc-head", ".nc-kinds ul", ".nc-pages"]) {
          swap(part.querySelector(name), fresh.querySelector(name));
        }
      } else {
        part.replaceChildren(...fresh.childNodes);
        window.htmx?.process(part);
      }
      if (isOther) part.querySelector(".nc-body").scrollTop = 0;
      this.isOther = false;
      this.fresh = null;
      this.say("");
      return isFirst ? `${this.root.ariaLabel}: ${rowsOf(part).size}` : isOther ? this.filter : "";
    }

    settle() {
      if (!this.part || this.part.querySelector("nav :focus")) return; // rows would push it away
      if (this.fresh) {
        prepare(this.part);
        prepare(this.fresh);
        const { id } = this.part.contains(document.activeElement) ? document.activeElement : {};
        const news = this.isHeld && !this.isOther ? this.patch() : this.apply();
        const isLost = () => id !== undefined && !this.part.contains(document.activeElement);
        if (isLost()) document.getElementById(id)?.focus({ preventScroll: true });
        if (isLost()) this.focus({ preventScroll: true }); // it is gone
        this.root.dispatchEvent(new CustomEvent("notifications:list", { bubbles: true }));
        if (news) this.tell(this.emptiness || news);
      }
      const rows = rowsOf(this.part);
      const isNew = [...(this.fresh ? rowsOf(this.fresh).keys() : [])].some((key) => !rows.has(key));
      if (!TROUBLES.has(this.state)) this.say(isNew ? "new" : "");
      this.extend();
    }

    // Request older rows when the last ones come into view, unless by Tab, which has to reach what is below the list.
    extend() {
      if (isTabbing) return;
      const next = this.part?.querySelector("[rel=next]");
      const shown = this.part && rowsOf(this.part).size;
      if (!next || shown < this.wanted || shown >= MOST) return;
      if (next.getBoundingClientRect().top > innerHeight * 1.5) return;
      this.wanted = shown + MORE;
      this.refresh();
    }

    // Show another list instead of this one.
    open(link) {
      Object.assign(this, { isOther: true, fresh: null, etag: "", wanted: 0 });
      this.root.dataset.url = link.href;
      link.closest("ul").querySelector("[aria-current]").ariaCurrent = null;
      link.ariaCurrent = "true";
      this.part.ariaBusy = "true";
      this.refresh();
    }

    endWait() {
      if (this.isAwaited) this.tell("");
      this.part.ariaBusy = null;
    }

    fail() {
      if (++this.failures === 1) return setTimeout(() => this.refresh(), RETRY);
      this.endWait();
      this.say(navigator.onLine ? "failed" : "offline");
    }

    receive(reply, text) {
      if (reply.type === "opaqueredirect") {
        this.endWait();
        return this.say("ended");
      }
      if (!reply.ok && reply.status !== 304) return this.fail();
      this.failures = 0;
      this.endWait();
      if (TROUBLES.has(this.state)) this.say("");
      setLag(reply.headers.get("Date"));
      if (reply.ok) {
        this.etag = reply.headers.get("ETag") || "";
        this.fresh = new DOMParser().parseFromString(text, "text/html").querySelector(".nc-part");
      }
      this.settle();
    }

    // After a change, what was requested before it is out of date.
    renew() {
      this.known = this.fresh = null;
      this.refresh();
    }

    async refresh() {
      this.again = this.busy;
      if (!this.isShown || !this.part) return;
      if (this.isAwaited) this.tellWait();
      if (this.busy) return;
      const { part, url } = this;
      if (part !== this.known) [this.known, this.etag, this.fresh] = [part, "", null];
      this.busy = true;
      const headers = { "X-Part": this.root.dataset.url ? "bell" : "list", "X-Rows": this.wanted };
      if (this.etag) headers["If-None-Match"] = this.etag;
      try {
        const signal = AbortSignal.timeout(PATIENCE);
        const reply = await fetch(url, { headers, redirect: "manual", cache: "no-store", signal });
        const text = await reply.text();
        if (url === this.url && part === this.part && part === this.known) this.receive(reply, text);
        else this.again = true; // the user has chosen another list, or changed this one
      } catch {
        this.fail();
      }
      this.busy = false;
      if (this.again) this.refresh();
    }
  }

  window.ncListOf = (element) => {
    const root = element?.closest?.(".nc-live");
    if (root && !lists.has(root)) lists.set(root, new List(root));
    return lists.get(root);
  };

  // ---------------------------------------------------------------- events
  const shown = () => [...document.querySelectorAll(".nc-live")].map(window.ncListOf).filter((list) => list.isShown);
  const settle = () => shown().forEach((list) => list.fresh && list.settle());
  const wake = () => {
    for (const list of shown()) {
      prepare(list.part);
      list.refresh();
    }
  };

  document.addEventListener("notifications:counts", ({ detail }) => {
    for (const list of shown()) {
      if (Number(list.root.dataset.unread) === detail.unread) continue;
      list.root.dataset.unread = detail.unread;
      list.refresh();
    }
  });
  for (const left of ["pointerout", "focusout", "change", "scroll", "toggle"]) {
    document.addEventListener(left, () => setTimeout(settle, GONE), { passive: true, capture: true });
  }
  for (const used of ["keydown", "pointerdown", "wheel"]) {
    const note = ({ key }) => {
      isTabbing = key === "Tab";
      if (key) keyed = Date.now();
    };
    document.addEventListener(used, note, { passive: true, capture: true });
  }
  document.addEventListener("scroll", () => shown().forEach((list) => list.extend()), { passive: true });
  // A filter was clicked.
  document.addEventListener("htmx:beforeRequest", ({ target }) => window.ncListOf(target)?.tellWait());
  for (const failure of ["htmx:responseError", "htmx:sendError"]) {
    document.addEventListener(failure, ({ detail: { elt } }) => {
      const list = window.ncListOf(elt);
      list?.tell("");
      list?.report("failed", { answer: () => elt.click() });
    });
  }
  document.addEventListener("htmx:afterSettle", ({ target }) => {
    if (target === document.body) shown().forEach((list) => list.tell(list.emptiness || list.filter));
  });
  document.addEventListener("visibilitychange", wake);
  window.addEventListener("focus", wake);
  window.addEventListener("online", wake);
  window.addEventListener("offline", () => shown().forEach((list) => list.say("offline")));
  window.addEventListener("pageshow", (event) => event.persisted && wake());
  new MutationObserver(() => {
    for (const root of lists.keys()) if (!root.isConnected) lists.delete(root);
    shown(); // creates a List for each new element
  }).observe(document, { childList: true, subtree: true });
  setInterval(wake, POLL);
  shown();
})();
