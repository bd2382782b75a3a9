// Keeps every badge of every open page current. One of a user's tabs, the leader, holds a stream and tells the others.
// Without a stream, it polls. Where tabs cannot agree, as on pages without TLS, each polls while it is visible. Other
// scripts may listen: document.addEventListener("notifications:counts", (event) => event.detail.unread)
(() => {
  "use strict";

  // Milliseconds.
  const POLL = 30_000;
  const RETRY = 120_000; // until a stream that was refused is tried again
  const SILENCE = 60_000; // after which a stream, which repeats itself every 20 seconds, is lost
  const TOAST = 12_000; // that a toast stays
  const PAUSE = 12_000; // between two announcements
  const LISTED = 1_000; // until a list has told of what is new
  const PATIENCE = 2_000; // until a leader that does not answer is taken for frozen

  const ROOM = 3_000; // characters for names in a URL: servers refuse more than 4 or 8 kilobytes
  const MOST = 10; // requests for the counts of many badges; only those of the first are in the stream

  const SPOKEN = '[role="status"] > .nc-badge:is([data-badge="unread"], [data-badge="unseen"])'; // badges

  const LIST = ":is(.nc-inbox, .nc-bell-panel:popover-open)"; // that is shown

  const { stream, poll, user } = document.currentScript.dataset;
  const name = `notifications-counts-${user}`;
  if (window[name]) return window[name](); // htmx runs the script again whenever it replaces the body
  let channel = navigator.locks && window.BroadcastChannel ? new BroadcastChannel(name) : null;
  const registered = new WeakSet(); // badges
  const wanted = new Set(); // the names of other badges, of all tabs that this one knows of
  const initial = Number(document.querySelector('[data-badge="unread"]')?.dataset.count); // unread count of the page
  let known = {}; // counts by the names of their badges
  let moment = 0; // rises with each request and each update
  let updated = 0; // the moment from which the known counts date
  let leading = null; // an AbortController while this tab leads
  let relisten = () => {}; // reopens the stream, if there is one
  let visit; // an AbortController of this visit of the page
  let takeover; // a timer
  let fading; // a timer of the toast
  let speaking; // a timer
  let quiet = 0; // until then, nothing is announced
  let changing = 0; // changes by this tab's user, which a list reports
  let leaving = []; // the kinds of unread notifications whose deletion can still be undone: not shown, but counted

  // The count of a badge, or of its kind. Counts by kind contain no zeros.
  const countOf = (counts, { badge, kind }) => {
    if (kind === undefined || !counts[badge]) return counts[badge];
    return Object.hasOwn(counts[badge], kind) ? counts[badge][kind] : 0;
  };

  const setText = (element, text) => {
    if (element && element.textContent !== text) element.textContent = text;
  };

  const numberOf = ({ dataset: { badge, kind, count } }) => {
    const left = kind === undefined ? badge === "unread" && leaving : leaving.filter((each) => each === kind);
    return Math.max(0, count - (left ? left.length : 0));
  };

  const paint = (badge) => {
    const { label, max = Infinity } = badge.dataset;
    const number = numberOf(badge);
    const text = `${label}: ${number}`;
    setText(badge.querySelector("[aria-hidden]") || badge, number > Number(max) ? `${max}+` : `${number}`);
    setText(badge.querySelector(".nc-visually-hidden"), text);
    badge.closest(".nc-bell")?.querySelector("button").setAttribute("aria-label", text);
    badge.hidden = number === 0;
  };

  // Show the number of a bell that asks for it in the page's title and at the icon of an installed app.
  const showOutside = () => {
    const badge = document.querySelector(".nc-bell[data-title] .nc-badge");
    if (!badge) return;
    const count = numberOf(badge);
    const number = count ? `(${badge.querySelector("[aria-hidden]").textContent}) ` : "";
    const title = document.title.replace(/^(\(\d+\+?\) )?/, number);
    if (document.title !== title) document.title = title;
    navigator.setAppBadge?.(count).catch(() => {}); // the site may not be installed
  };

  const show = (counts, asked = ++moment) => {
    if (!counts) return;
    updated = asked;
    const region = document.querySelector("[data-unread-toast]");
    let told = ""; // a number that has risen
    for (const badge of document.querySelectorAll("[data-badge]")) {
      const count = countOf(counts, badge.dataset);
      if (!Number.isInteger(count) || badge.dataset.count === `${count}`) continue;
      const around = badge.parentElement;
      const hasRisen = count > Number(badge.dataset.count);
      badge.dataset.count = count;
      if (region && badge.matches(SPOKEN)) told = hasRisen && !changing ? `${badge.dataset.label}: ${count}` : told;
      else if (around.role === "status") around.ariaLive = changing ? "off" : "polite";
      paint(badge);
    }
    showOutside();
    const before = known;
    known = { ...known, ...counts };
    const same = (name) => JSON.stringify(counts[name]) === JSON.stringify(before[name]);
    if (Object.keys(counts).every(same)) return; // although some badges may be new
    if (told || counts.unread > (before.unread ?? initial)) toast(told);
    document.dispatchEvent(new CustomEvent("notifications:counts", { detail: known }));
  };

  // Tell screen readers at once, or the latest words after a pause; nothing if a list tells of new notifications.
  const speak = (spoken, ...words) => {
    clearTimeout(speaking);
    const tell = () => {
      if (document.querySelector(`${LIST} > .nc-toast[data-state="new"]`)) return;
      quiet = Date.now() + PAUSE;
      spoken.replaceChildren(...words);
    };
    speaking = setTimeout(tell, Math.max(quiet - Date.now(), document.querySelector(LIST) ? LISTED : 0));
  };

  // Show the newest notification since the page was rendered, unless a list shows it itself, and tell screen readers of
  // it and of the number at once.
  const toast = async (number) => {
    const region = document.querySelector("[data-unread-toast]");
    if (!region) return;
    const { api, inbox, since } = region.dataset;
    const asked = new URLSearchParams({ unread: true, limit: 1, since });
    const reply = !document.hidden && (await fetch(`${api}?${asked}`).catch(() => null));
    const newest = reply && reply.ok && (await reply.json()).notifications[0];
    const [spoken, template] = region.children;
    const isNew = newest && region.dataset.newest !== String(newest.id); // marking as unread also raises the count
    if (!isNew) return number && speak(spoken, number);
    Object.assign(region.dataset, { since: newest.created_at ?? since, newest: newest.id });
    const content = template.content.cloneNode(true);
    const { image, text } = newest.icon ?? {}; // from a server of an older release, none
    const icon = content.querySelector(".nc-icon");
    const picture = document.createElement(image ? "img" : "span");
    Object.assign(picture, image ? { src: image, alt: "", referrerPolicy: "no-referrer" } : { textContent: text });
    picture.className = "nc-icon";
    if (image || text) icon.replaceWith(picture);
    const title = content.querySelector("bdi");
    content.querySelector("a").href = `${inbox}${newest.id}/`;
    title.textContent = newest.title;
    content.querySelector(".nc-text").textContent = newest.body;
    if (newest.data?.lang) title.lang = newest.data.lang;
    speak(spoken, `${number} `, content.querySelector("p").firstChild.cloneNode(true), title.cloneNode(true));
    if (document.querySelector(LIST)) return;
    const clear = () => {
      while (template.nextSibling) template.nextSibling.remove(); // what is spoken stays, so that screen readers know it
      region.role = region.ariaLabel = null;
    };
    const close = () => {
      [fading, speaking].forEach((timer) => clearTimeout(timer));
      const isFocused = region.contains(document.activeElement);
      clear();
      spoken.replaceChildren();
      if (isFocused) document.querySelector(".nc-bell button")?.focus();
    };
    region.onkeydown = ({ key }) => {
      if (key === "Escape") close();
    };
    const fade = () => {
      clearTimeout(fading);
      fading = setTimeout(() => (region.matches(":hover, :focus-within") ? fade() : close()), TOAST);
    };
    content.querySelector("button").addEventListener("click", close);
    fade();
    const isFocused = region.contains(document.activeElement);
    clear();
    region.append(content);
    Object.assign(region, { role: "region", ariaLabel: newest.title });
    if (isFocused) region.querySelector("button").focus();
  };

  const badges = () => [...document.querySelectorAll("[data-badge]")];

  const repaint = () => {
    for (const badge of badges().filter((badge) => badge.dataset.count)) {
      if (badge.parentElement.role === "status") badge.parentElement.ariaLive = "off"; // the list has told of it
      paint(badge);
    }
    showOutside();
  };

  // The counts on this page.
  const shown = () => {
    const counted = badges().filter((badge) => badge.dataset.badge && badge.dataset.count);
    return counted.map(({ dataset: { badge, kind, count } }) => ({ badge, kind, count: Number(count) }));
  };

  // Returns whether this changes the first URL. Signed names contain a slash; the others are always in the counts.
  const addNames = (names) => {
    const [before] = addresses(poll);
    for (const name of names.filter((name) => name?.includes("/")).reverse()) {
      wanted.delete(name); // so that it comes last
      wanted.add(name);
    }
    return addresses(poll)[0] !== before;
  };

  // URLs with all names, beginning with those of the last page, from its top; each with as many as there is room for, in
  // a stable order.
  const addresses = (url) => {
    const parts = [[]];
    let room = ROOM;
    for (const name of [...wanted].reverse()) {
      const asked = `${new URLSearchParams({ badge: name })}`;
      room -= asked.length + 1;
      if (room < 0) {
        parts.push([]);
        room = ROOM - asked.length - 1;
      }
      parts.at(-1).push(asked);
    }
    return parts.slice(0, MOST).map((asked) => (asked.length ? `${url}?${asked.sort().join("&")}` : url));
  };

  const publish = (counts, asked) => {
    show(counts, asked);
    if (channel) channel.postMessage({ counts });
  };

  // Ask the server once; 304 if nothing has changed. Returns false if the user has logged out.
  const fetchCounts = async () => {
    const asked = ++moment;
    const ask = (url) => fetch(url, { cache: "no-cache" }).catch(() => null);
    const replies = await Promise.all(addresses(poll).map(ask));
    if (replies.some((reply) => reply && (reply.status === 401 || reply.redirected))) return false;
    const texts = replies.map((reply) => (reply?.ok ? reply.json().catch(() => null) : null)); // incomplete, or from a proxy
    const counts = (await Promise.all(texts)).filter(Boolean);
    // Else the stream, a later request or another tab may know better.
    if (counts.length && updated < asked) publish(Object.assign({}, ...counts), asked);
    return true;
  };

  // Register new badges, such as those in a part that htmx has loaded. Their counts may be out of date.
  const register = () => {
    const fresh = badges().filter((badge) => !registered.has(badge));
    for (const badge of fresh) {
      registered.add(badge);
      if (!badge.matches(SPOKEN) || !document.querySelector("[data-unread-toast]")) continue;
      badge.parentElement.ariaLive = "off"; // the toast speaks
      if (badge.closest(".nc-bell")) badge.parentElement.ariaHidden = "true"; // the button has its number
    }
    if (fresh.length) showOutside();
    if (addNames(fresh.map((badge) => badge.dataset.badge)) && visit) leading ? relisten() : askLeader();
    return fresh.length > 0;
  };

  // Lead until the signal. Calls `end` if the user has logged out.
  const lead = (signal, end) => {
    let source = null;
    let timer = 0;

    const listen = () => {
      source = new EventSource(addresses(stream)[0]);
      source.addEventListener("counts", (event) => {
        watch();
        publish(JSON.parse(event.data));
      });
      source.addEventListener("error", () => {
        if (source.readyState === EventSource.CLOSED) wait(RETRY); // else the browser reconnects
      });
      watch();
    };

    // A connection may be lost without an error, for example during sleep, or a proxy may hold events back.
    const watch = () => {
      clearTimeout(timer);
      timer = setTimeout(() => {
        source.close();
        wait(0);
      }, SILENCE);
    };

    const wait = async (time) => {
      clearTimeout(timer);
      const present = (!channel && document.hidden) || (await fetchCounts());
      if (signal.aborted) return;
      if (!present) end();
      else timer = setTimeout(() => (time > 0 ? wait(time - POLL) : listen()), POLL);
    };

    relisten = () => {
      if (!source || source.readyState === EventSource.CLOSED) return;
      source.close();
      listen();
    };

    let others = 0; // a timer, for badges that the stream has no room for
    signal.addEventListener("abort", () => {
      relisten = () => {};
      clearInterval(others);
      clearTimeout(timer);
      if (source) source.close();
    });
    if (!channel) return wait(Infinity);
    others = setInterval(() => addresses(poll).length > 1 && fetchCounts(), POLL);
    listen();
    channel.postMessage({ who: true }); // the others name their badges
  };

  // Wait for the lead, or take it, and keep it until the page is left.
  const waitForLead = async (options) => {
    const { signal } = visit;
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
    if (lost.name === "AbortError") return waitForLead({ signal }); // another tab has taken the lead
    channel = null; // a sandboxed frame, for example, has no locks
    clearTimeout(takeover);
    lead(signal, () => visit.abort());
  };

  // Ask the leader for the counts. If it is frozen, like background tabs on phones, take the lead.
  const askLeader = () => {
    if (document.hidden || leading) return;
    if (!channel) return fetchCounts();
    channel.postMessage({ ask: [...wanted], shown: shown() });
    clearTimeout(takeover);
    takeover = setTimeout(() => leading || document.hidden || waitForLead({ steal: true }), PATIENCE);
  };

  const start = () => {
    visit = new AbortController();
    if (!channel) return lead(visit.signal, () => visit.abort());
    waitForLead({ signal: visit.signal });
    askLeader();
  };

  // Start again if this ended with a logout, and the user has logged in again.
  window[name] = () => (visit.signal.aborted ? start() : askLeader());

  if (channel) {
    channel.addEventListener("message", ({ data }) => {
      if (data.who) {
        askLeader();
      } else if (!data.ask) {
        clearTimeout(takeover);
        show(data.counts);
      } else if (leading) {
        if (addNames(data.ask)) relisten();
        const agreed = data.shown.every((badge) => countOf(known, badge) === badge.count);
        channel.postMessage({ counts: agreed ? known : null }); // null: still here
        if (!agreed) fetchCounts(); // a new page may know better
      }
    });
  }
  register();
  new MutationObserver(() => register() && fetchCounts()).observe(document, { childList: true, subtree: true });
  document.addEventListener("notifications:change", async ({ detail: sent }) => {
    changing += 1;
    try {
      await sent;
      await fetchCounts();
    } finally {
      changing -= 1;
      repaint();
    }
  });
  document.addEventListener("notifications:leaving", ({ detail }) => {
    leaving = detail;
    if (!changing) repaint(); // else when the new counts are here
  });
  document.addEventListener("visibilitychange", askLeader);
  window.addEventListener("pagehide", () => visit.abort());
  window.addEventListener("pageshow", (event) => event.persisted && start());
  document.addEventListener("freeze", () => visit.abort());
  document.addEventListener("resume", () => visit.signal.aborted && start());
  start();
})();
