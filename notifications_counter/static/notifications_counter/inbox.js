// Keeps an open inbox current: its list, when the count changes and every half minute while it is visible, and its times.
// Nothing moves under a pointer, the keyboard or a reader's eyes. What is read elsewhere changes in place; what is new or
// gone waits until they have left the list.
(() => {
  "use strict";

  // Milliseconds.
  const POLL = 30_000;
  const RETRY = 2_000; // after a failure, before it is told: the page may just be about to be left
  const GONE = 300; // until a pointer that has left does not come back by chance

  const HELD = ":hover, :has(:checked, :focus-visible)";
  const AIMED = '[data-state="new"]:is(:hover, :focus-within)'; // at Show
  const UNITS = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 0]];
  const DAYS = 30; // after which a date says more

  const language = document.documentElement.lang.replaceAll("_", "-") || undefined;
  const relative = new Intl.RelativeTimeFormat(language, { numeric: "auto" });
  const find = () => document.querySelector(".nc-part");
  const rowsOf = (part) => new Map([...part.querySelectorAll(".nc-row")].map((row) => [row.dataset.pk, row]));

  const early = Date.parse(document.querySelector(".nc-inbox").dataset.now) - Date.now(); // the clock of the visitor
  let known = null; // the part that is shown
  let etag = ""; // of the last answer
  let fresh = null; // a newer part, that waits
  let busy = false;
  let again = false;
  let failures = 0;

  // ----------------------------------------------------------------- times
  const age = (part) => {
    for (const time of part.querySelectorAll(".nc-row time")) {
      const seconds = Math.max(0, (Date.now() + early - Date.parse(time.dateTime)) / 1000);
      const [unit, size] = UNITS.find(([, size]) => seconds >= size);
      time.dataset.date ??= time.textContent;
      const isOld = seconds > DAYS * 86400;
      const text = isOld ? time.dataset.date : relative.format(size ? -Math.floor(seconds / size) : 0, unit);
      if (time.textContent !== text) time.textContent = text;
    }
  };

  // ------------------------------------------------------------------ list
  const toast = () => document.querySelector(".nc-inbox > .nc-toast");

  const say = (state) => {
    const region = toast();
    if (!region || region.dataset.state === state) return;
    const isFocused = region.contains(document.activeElement);
    region.dataset.state = state;
    region.replaceChildren(...(state ? [copy(state)] : []));
    if (isFocused) home({ preventScroll: true });
  };

  const copy = (state) => document.querySelector(`template[data-state="${state}"]`).content.cloneNode(true);

  const isHeld = () => find().matches(HELD) || toast()?.matches(AIMED) || find().getBoundingClientRect().top < 0;

  // Show a row as it is now, with the tick and the focus that it had.
  const renew = (old, row) => {
    if (old.isEqualNode(row)) return old;
    const { id } = old.contains(document.activeElement) ? document.activeElement : {};
    row.querySelector("[name=selected]").checked = old.querySelector("[name=selected]").checked;
    old.replaceWith(row);
    if (id) document.getElementById(id)?.focus({ preventScroll: true });
    return row;
  };

  // While the list is held: only what moves nothing.
  const touch = () => {
    const rows = rowsOf(fresh);
    for (const [pk, old] of rowsOf(known)) {
      if (rows.has(pk)) {
        renew(old, rows.get(pk).cloneNode(true));
      } else if (!old.classList.contains("nc-gone")) {
        old.classList.add("nc-gone");
        old.querySelector(".nc-when").append(copy("gone"));
      }
    }
  };

  const home = (options) => (document.querySelector(".nc-title") || document.querySelector(".nc-filters a")).focus(options);

  const apply = () => {
    const isFocused = known.contains(document.activeElement);
    const list = known.querySelector(".nc-list");
    const olds = rowsOf(known);
    const rows = [...rowsOf(fresh)];
    known.querySelectorAll(".nc-new").forEach((row) => row.classList.remove("nc-new"));
    const first = rows.findIndex(([pk]) => olds.has(pk));
    rows.slice(0, first < 0 ? rows.length : first).forEach(([, row]) => row.classList.add("nc-new"));
    if (list && rows.length) {
      const now = rows.map(([pk, row]) => (olds.has(pk) ? renew(olds.get(pk), row) : row));
      [...list.children].filter((row) => !now.includes(row)).forEach((row) => row.remove());
      now.forEach((row, i) => row === list.children[i] || list.insertBefore(row, list.children[i]));
      known.querySelector(".nc-pages")?.remove();
      known.append(...fresh.querySelectorAll(".nc-pages"));
    } else {
      known.replaceChildren(...fresh.childNodes);
    }
    if (isFocused && !known.contains(document.activeElement)) home({ preventScroll: true });
    window.htmx?.process(known);
    fresh = null;
    say("");
  };

  const settle = () => {
    if (find() !== known) return;
    if (!fresh) return say("");
    age(known);
    age(fresh);
    if (!isHeld()) return apply();
    touch();
    const rows = rowsOf(known);
    say([...rowsOf(fresh).keys()].some((pk) => !rows.has(pk)) ? "new" : "");
  };

  // Tabs of kinds that are new. The numbers on the others are those of badges.
  const addTabs = (page) => {
    const tabs = document.querySelector(".nc-kinds");
    const link = (tab) => tab.querySelector("a").getAttribute("href");
    const there = new Set([...(tabs?.children ?? [])].map(link));
    const added = [...page.querySelectorAll(".nc-kinds > li")].filter((tab) => !there.has(link(tab)));
    if (!tabs || !added.length) return;
    tabs.append(...added);
    window.htmx?.process(tabs);
  };

  // --------------------------------------------------------------- answers
  const ask = () => {
    const headers = etag ? { "X-Part": "list", "If-None-Match": etag } : { "X-Part": "list" };
    return fetch(location.href, { headers, redirect: "manual", cache: "no-store" });
  };

  const fail = () => {
    failures += 1;
    if (failures > 1) say(navigator.onLine ? "failed" : "offline");
    else setTimeout(refresh, RETRY);
  };

  const take = (reply, text) => {
    if (reply.type === "opaqueredirect") return say("ended");
    if (!reply.ok && reply.status !== 304) return fail();
    failures = 0;
    if (reply.ok) {
      etag = reply.headers.get("ETag") || "";
      const page = new DOMParser().parseFromString(text, "text/html");
      fresh = page.querySelector(".nc-part");
      addTabs(page);
    }
    settle();
  };

  const refresh = async () => {
    again = busy;
    if (busy || document.hidden || !find()) return;
    if (find() !== known) [known, etag, fresh] = [find(), "", null];
    busy = true;
    try {
      const reply = await ask();
      const text = await reply.text();
      if (find() === known) take(reply, text);
      else again = true; // htmx has brought another list meanwhile
    } catch {
      fail();
    }
    busy = false;
    if (again) refresh();
  };

  // ---------------------------------------------------------------- events
  const wake = () => {
    if (document.hidden || !find()) return;
    age(find());
    refresh();
  };

  document.addEventListener("notifications:counts", ({ detail }) => {
    const inbox = document.querySelector(".nc-inbox");
    if (!inbox || Number(inbox.dataset.unread) === detail.unread) return;
    inbox.dataset.unread = detail.unread;
    refresh();
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest(".nc-gone")) return event.preventDefault();
    if (!event.target.closest(".nc-inbox > .nc-toast button")) return;
    if (!fresh) return refresh();
    apply();
    home();
  });
  for (const left of ["pointerout", "focusout", "change", "scroll"]) {
    document.addEventListener(left, () => fresh && setTimeout(settle, GONE), { passive: true });
  }
  document.addEventListener("visibilitychange", wake);
  window.addEventListener("focus", wake);
  window.addEventListener("online", refresh);
  window.addEventListener("offline", () => say("offline"));
  window.addEventListener("pageshow", (event) => event.persisted && wake());
  new MutationObserver(() => find() && age(find())).observe(document, { childList: true, subtree: true });
  setInterval(wake, POLL);
  age(find());
})();
