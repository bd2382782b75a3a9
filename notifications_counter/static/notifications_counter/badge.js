// Keeps every badge of every open page current. Of all tabs of a user one holds a stream of the counts and tells the
// others. Where there is no stream, it polls; where tabs cannot agree, as on pages without TLS, each polls while visible.
// Other scripts may listen: document.addEventListener("notifications:unread", (event) => event.detail.unread)
(() => {
  "use strict";

  // Milliseconds.
  const POLL = 30_000;
  const RETRY = 120_000; // until a stream that was refused is tried again
  const TOAST = 12_000; // that a toast stays
  const PATIENCE = 2_000; // until a tab that leads and does not answer is taken for frozen

  const { stream, poll, user, texts, forms } = document.currentScript.dataset;
  const phrases = JSON.parse(texts);
  const name = `notifications-unread-${user}`;
  const channel = navigator.locks && window.BroadcastChannel ? new BroadcastChannel(name) : null;
  const seen = new WeakSet(); // badges
  let known = null; // the count
  let heard = 0; // how often it was told
  let leading = null; // an AbortController while this tab leads
  let left; // an AbortController of this visit of the page
  let doubt; // a timer

  const set = (element, text) => {
    if (element && element.textContent !== text) element.textContent = text;
  };

  const show = (unread) => {
    if (!Number.isInteger(unread)) return;
    heard += 1;
    const phrase = phrases[forms[unread < 200 ? unread : 100 + (unread % 100)]].replace("%(n)s", unread);
    for (const badge of document.querySelectorAll("[data-unread-badge]")) {
      const max = Number(badge.dataset.max || Infinity);
      set(badge.querySelector("[aria-hidden]") || badge, unread > max ? `${max}+` : `${unread}`);
      set(badge.querySelector(".nc-visually-hidden"), phrase);
      badge.hidden = unread === 0;
    }
    if (unread === known) return; // of the badges, some may be new
    if (known !== null && unread > known) toast();
    known = unread;
    document.dispatchEvent(new CustomEvent("notifications:unread", { detail: { unread } }));
  };

  // Show what has come since the page was made. The inbox itself shows it in its list.
  const toast = async () => {
    const region = document.querySelector("[data-unread-toast]");
    if (!region || document.hidden || document.querySelector(".nc-part")) return;
    const { api, inbox, since } = region.dataset;
    const reply = await fetch(`${api}?${new URLSearchParams({ unread: true, limit: 1, since })}`).catch(() => null);
    const newest = reply && reply.ok && (await reply.json()).notifications[0];
    if (!newest || region.dataset.newest === String(newest.id)) return; // the count rises also by what is unread again
    Object.assign(region.dataset, { since: newest.created_at, newest: newest.id });
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

  const shown = () => document.querySelector("[data-unread-badge]")?.textContent;

  const tell = (unread) => {
    show(unread);
    if (channel) channel.postMessage({ unread });
  };

  // Ask once; 304 as long as nothing has changed. Returns false if the user has logged out.
  const look = async () => {
    const asked = heard;
    const reply = await fetch(poll, { cache: "no-cache" }).catch(() => null);
    if (reply && (reply.status === 401 || reply.redirected)) return false;
    if (reply && reply.ok) {
      const { unread } = await reply.json();
      if (heard === asked) tell(unread); // else what was told meanwhile may be newer
    }
    return true;
  };

  // Badges that come with a part of the page, as by htmx, show what was right when that was made.
  const meet = () => {
    const badges = [...document.querySelectorAll("[data-unread-badge]")].filter((badge) => !seen.has(badge));
    badges.forEach((badge) => seen.add(badge));
    return badges.length > 0;
  };

  // Until the signal. Calls `end` if the user has logged out.
  const lead = (signal, end) => {
    let source = null;
    let timer = 0;

    const listen = () => {
      source = new EventSource(stream);
      source.addEventListener("unread", (event) => tell(JSON.parse(event.data).unread));
      source.addEventListener("error", () => {
        if (source.readyState === EventSource.CLOSED) wait(RETRY); // else the browser tries again by itself
      });
    };

    const wait = async (time) => {
      const present = (!channel && document.hidden) || (await look());
      if (signal.aborted) return;
      if (!present) end();
      else timer = setTimeout(() => (time > 0 ? wait(time - POLL) : listen()), POLL);
    };

    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      if (source) source.close();
    });
    if (channel) listen();
    else wait(Infinity);
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
    const lost = await navigator.locks.request(name, options, hold).then(() => false, () => !signal.aborted);
    turn.abort();
    if (leading === turn) leading = null;
    if (lost) queue({ signal });
  };

  // Ask the tab that leads for the count. If it is frozen, as phones do with tabs in the background, take the lead.
  const ask = () => {
    if (document.hidden || leading) return;
    if (!channel) return look();
    channel.postMessage({ ask: true, shown: shown() });
    clearTimeout(doubt);
    doubt = setTimeout(() => leading || document.hidden || queue({ steal: true }), PATIENCE);
  };

  const enter = () => {
    left = new AbortController();
    if (!channel) return lead(left.signal, () => left.abort());
    queue({ signal: left.signal });
    ask();
  };

  if (channel) {
    channel.addEventListener("message", ({ data }) => {
      if (!data.ask) {
        clearTimeout(doubt);
        show(data.unread);
      } else if (leading) {
        const agreed = data.shown === shown();
        channel.postMessage({ unread: agreed ? known : null }); // null: still here
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
