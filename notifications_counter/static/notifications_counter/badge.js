// Keeps every badge of every open page current. Of all tabs of a user one holds a stream of the counts and tells the
// others. Where there is no stream, it polls; where tabs cannot agree, as on pages without TLS, each polls while visible.
// Other scripts may listen: document.addEventListener("notifications:counts", (event) => event.detail.unread)
(() => {
  "use strict";

  // Milliseconds.
  const POLL = 30_000;
  const RETRY = 120_000; // until a stream that was refused is tried again
  const SILENCE = 60_000; // of a stream, which repeats itself every 20 seconds
  const TOAST = 12_000; // that a toast stays
  const PATIENCE = 2_000; // until a tab that leads and does not answer is taken for frozen

  const ROOM = 3_000; // characters for names in an address: servers refuse more than 4 or 8 kilobytes

  const { stream, poll, user, phrases } = document.currentScript.dataset;
  const spoken = JSON.parse(phrases); // of the built-in counters, which the server always tells of
  const name = `notifications-counts-${user}`;
  if (window[name]) return window[name](); // htmx runs a script in the body again whenever it replaces the body
  let channel = navigator.locks && window.BroadcastChannel ? new BroadcastChannel(name) : null;
  const seen = new WeakSet(); // badges
  const wanted = new Set(); // the names of other badges, of all tabs as far as this one knows
  const made = Number(document.querySelector('[data-badge="unread"]')?.dataset.count); // unread when the page was made
  let known = {}; // counts by the names of their badges
  let heard = 0; // how often they were told
  let leading = null; // an AbortController while this tab leads
  let relisten = () => {}; // opens the stream again, if there is one
  let left; // an AbortController of this visit of the page
  let doubt; // a timer

  // What a badge shows, of all counts: one of them, or that of a kind. Kinds that have none are not named.
  const countOf = (counts, { badge, kind }) => {
    if (kind === undefined || !counts[badge]) return counts[badge];
    return Object.hasOwn(counts[badge], kind) ? counts[badge][kind] : 0;
  };

  const set = (element, text) => {
    if (element && element.textContent !== text) element.textContent = text;
  };

  const say = (name, count, label) => {
    const phrase = spoken[name.split("/")[0]]; // the name of another user's badge goes on
    if (!phrase || label) return `${label}: ${count}`;
    const [texts, forms] = phrase;
    return texts[forms[count < 200 ? count : 100 + (count % 100)]].replace("%(n)s", count);
  };

  const show = (counts) => {
    if (!counts) return;
    heard += 1;
    for (const badge of document.querySelectorAll("[data-badge]")) {
      const { badge: name, label, max = Infinity } = badge.dataset;
      const count = countOf(counts, badge.dataset);
      if (!Number.isInteger(count)) continue;
      badge.dataset.count = count;
      set(badge.querySelector("[aria-hidden]") || badge, count > Number(max) ? `${max}+` : `${count}`);
      const text = say(name, count, label);
      set(badge.querySelector(".nc-visually-hidden"), text);
      badge.closest(".nc-bell")?.querySelector("button").setAttribute("aria-label", text);
      badge.hidden = count === 0;
    }
    const before = known;
    known = { ...known, ...counts };
    const same = (name) => JSON.stringify(counts[name]) === JSON.stringify(before[name]);
    if (Object.keys(counts).every(same)) return; // of the badges, some may be new
    if (counts.unread > (before.unread ?? made)) toast();
    document.dispatchEvent(new CustomEvent("notifications:counts", { detail: known }));
  };

  // Show what has come since the page was made. A list shows it itself.
  const toast = async () => {
    const region = document.querySelector("[data-unread-toast]");
    if (!region || document.hidden || document.querySelector(".nc-inbox, .nc-bell-panel:popover-open")) return;
    const { api, inbox, since } = region.dataset;
    const reply = await fetch(`${api}?${new URLSearchParams({ unread: true, limit: 1, since })}`).catch(() => null);
    const newest = reply && reply.ok && (await reply.json()).notifications[0];
    if (!newest || region.dataset.newest === String(newest.id)) return; // the count rises also by what is unread again
    Object.assign(region.dataset, { since: newest.created_at ?? since, newest: newest.id });
    const content = region.querySelector("template").content.cloneNode(true);
    content.querySelector("a").href = `${inbox}${newest.id}/`;
    content.querySelector("bdi").textContent = newest.title;
    const parts = [...content.childNodes];
    const close = () => parts.forEach((part) => part.remove());
    content.querySelector("button").addEventListener("click", close);
    const fade = () => (region.matches(":hover, :focus-within") ? setTimeout(fade, TOAST) : close());
    setTimeout(fade, TOAST);
    region.replaceChildren(region.querySelector("template"), content);
  };

  const badges = () => [...document.querySelectorAll("[data-badge]")];

  // What this page shows.
  const shown = () => {
    const counted = badges().filter((badge) => badge.dataset.badge && badge.dataset.count);
    return counted.map(({ dataset: { badge, kind, count } }) => ({ badge, kind, count: Number(count) }));
  };

  // Returns whether they change what is asked for.
  const want = (names) => {
    const before = address(poll);
    for (const name of names.filter((name) => name && !spoken[name])) {
      wanted.delete(name); // so that it comes last
      wanted.add(name);
    }
    return address(poll) !== before;
  };

  // Asks for the names that were wanted last, as many as there is room for, in an order that does not change.
  const address = (url) => {
    const names = [...wanted].reverse().map((name) => `${new URLSearchParams({ badge: name })}`);
    let room = ROOM;
    const asked = names.filter((name) => (room -= name.length + 1) >= 0).sort();
    return asked.length ? `${url}?${asked.join("&")}` : url;
  };

  const tell = (counts) => {
    show(counts);
    if (channel) channel.postMessage({ counts });
  };

  // Ask once; 304 as long as nothing has changed. Returns false if the user has logged out.
  const look = async () => {
    const asked = heard;
    const reply = await fetch(address(poll), { cache: "no-cache" }).catch(() => null);
    if (reply && (reply.status === 401 || reply.redirected)) return false;
    if (reply && reply.ok) {
      const counts = await reply.json().catch(() => null); // cut off, or from a proxy
      if (heard === asked) tell(counts); // else what was told meanwhile may be newer
    }
    return true;
  };

  // Badges that come with a part of the page, as by htmx, show what was right when that was made.
  const meet = () => {
    const met = badges().filter((badge) => !seen.has(badge));
    met.forEach((badge) => seen.add(badge));
    if (want(met.map((badge) => badge.dataset.badge)) && left) leading ? relisten() : ask();
    return met.length > 0;
  };

  // Until the signal. Calls `end` if the user has logged out.
  const lead = (signal, end) => {
    let source = null;
    let timer = 0;

    const listen = () => {
      source = new EventSource(address(stream));
      source.addEventListener("counts", (event) => {
        watch();
        tell(JSON.parse(event.data));
      });
      source.addEventListener("error", () => {
        if (source.readyState === EventSource.CLOSED) wait(RETRY); // else the browser tries again by itself
      });
      watch();
    };

    // A connection may be lost without an error, as while the computer sleeps, or a proxy may hold events back.
    const watch = () => {
      clearTimeout(timer);
      timer = setTimeout(() => {
        source.close();
        wait(0);
      }, SILENCE);
    };

    const wait = async (time) => {
      clearTimeout(timer);
      const present = (!channel && document.hidden) || (await look());
      if (signal.aborted) return;
      if (!present) end();
      else timer = setTimeout(() => (time > 0 ? wait(time - POLL) : listen()), POLL);
    };

    relisten = () => {
      if (!source || source.readyState === EventSource.CLOSED) return;
      source.close();
      listen();
    };

    signal.addEventListener("abort", () => {
      relisten = () => {};
      clearTimeout(timer);
      if (source) source.close();
    });
    if (!channel) return wait(Infinity);
    listen();
    channel.postMessage({ who: true }); // the others name their badges
  };

  // Wait for the lead, or take it, and keep it until the page is left.
  const queue = async (options) => {
    const { signal } = left;
    const turn = new AbortController();
    signal.addEventListener("abort", () => turn.abort());
    const hold = () =>
      new Promise((release) => {
        leading = turn;
        turn.signal.addEventListener("abort", release);
        lead(turn.signal, () => turn.abort());
      });
    const lost = await navigator.locks.request(name, options, hold).then(() => null, (error) => error);
    turn.abort();
    if (leading === turn) leading = null;
    if (!lost || signal.aborted) return;
    if (lost.name === "AbortError") return queue({ signal }); // another tab has taken the lead
    channel = null; // there are no locks after all, as in a sandboxed frame
    clearTimeout(doubt);
    lead(signal, () => left.abort());
  };

  // Ask the tab that leads for the count. If it is frozen, as phones do with tabs in the background, take the lead.
  const ask = () => {
    if (document.hidden || leading) return;
    if (!channel) return look();
    channel.postMessage({ ask: [...wanted], shown: shown() });
    clearTimeout(doubt);
    doubt = setTimeout(() => leading || document.hidden || queue({ steal: true }), PATIENCE);
  };

  const enter = () => {
    left = new AbortController();
    if (!channel) return lead(left.signal, () => left.abort());
    queue({ signal: left.signal });
    ask();
  };

  // Go on, if this ended with the login, and the user has logged in again.
  window[name] = () => (left.signal.aborted ? enter() : ask());

  if (channel) {
    channel.addEventListener("message", ({ data }) => {
      if (data.who) {
        ask();
      } else if (!data.ask) {
        clearTimeout(doubt);
        show(data.counts);
      } else if (leading) {
        if (want(data.ask)) relisten();
        const agreed = data.shown.every((badge) => countOf(known, badge) === badge.count);
        channel.postMessage({ counts: agreed ? known : null }); // null: still here
        if (!agreed) look(); // a page that has just been made may know better
      }
    });
  }
  meet();
  new MutationObserver(() => meet() && look()).observe(document, { childList: true, subtree: true });
  document.addEventListener("visibilitychange", ask);
  window.addEventListener("pagehide", () => left.abort());
  window.addEventListener("pageshow", (event) => event.persisted && enter());
  document.addEventListener("freeze", () => left.abort());
  document.addEventListener("resume", () => left.signal.aborted && enter());
  enter();
})();
