// Handles actions in lists of notifications: changes in place, with undo and retry, keyboard shortcuts, and the bell.
(() => {
  "use strict";
  if (window.ncBells) return window.ncBells(); // each bell includes this script

  const PATIENCE = 20_000; // milliseconds, for a change
  const KNOWN = 300; // milliseconds, until screen readers know the regions of a new page
  const NEXT = { j: 1, k: -1 };
  const DOWN = { ArrowDown: 1, ArrowUp: -1 };
  const ACROSS = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
  const KEYS = "notifications-keys"; // "off" in this browser, for speech input or keys pressed by mistake
  const TYPED = ":read-write, select"; // what needs keys itself
  const BAR = ".nc-toast :is(button, a), .nc-inbox:has(.nc-row:not([hidden]) :checked) .nc-bulk :is(input, button)";
  const DIALOG = "dialog, [role=dialog], [popover]";

  const listOf = window.ncListOf;
  const waiting = new Map(); // deletions that can still be undone, by list
  const SENT = "notifications-deleted";
  const LEFT = "notifications-left"; // what to delete in the list
  let hasKeys = true;
  try { hasKeys = localStorage[KEYS] !== "off"; } catch {} // storage may be forbidden

  // Deleted rows, and until when a page may still contain them.
  const readSent = () => {
    try { return JSON.parse(sessionStorage[SENT] ?? "{}"); } catch { return {}; }
  };
  const remember = (rows, until) => {
    const now = Object.entries(readSent()).filter(([, time]) => time > Date.now());
    const keys = rows.map((row) => [row.dataset.key, until]);
    try { sessionStorage[SENT] = JSON.stringify(Object.fromEntries([...now, ...keys])); } catch {}
  };

  const words = (state) => document.querySelector(`template[data-state="${state}"]`).dataset;

  // What changes are: the names of their buttons, and for how many rows.
  const describe = (changes) => {
    const numbers = new Map();
    for (const { what, number } of changes) numbers.set(what, (numbers.get(what) ?? 0) + number);
    return [...numbers].map(([what, number]) => (number > 1 ? `${what} (${number})` : what)).join(", ");
  };

  // Try changes again, and tell of all of them at once.
  const tryAgain = async (list, failed) => {
    const sent = failed.map(({ again }) => again());
    if (document.activeElement.closest(".nc-row[hidden]")) list.focus();
    const saved = await Promise.all(sent);
    if (list.news || !saved.every(Boolean)) return;
    list.report("done", { text: words("unsaved").saved.replace("{what}", describe(failed)) });
  };

  // Show a row as read before the new list is here.
  const showRead = (row, undo) => {
    row.classList.replace("nc-unread", "nc-read");
    for (const mark of row.querySelectorAll(".nc-actions [name=pk]:not([data-undo])")) {
      mark.firstElementChild.textContent = words("read").undo;
      if (mark.title) mark.title = words("read").undo;
      mark.formAction = undo;
      delete mark.dataset.undoAt;
    }
  };

  // Send a change, and report it. Returns whether it is saved.
  const post = async (list, change, keepalive = false) => {
    const { what, number, url, body, rows, undo, deletion, isAgain } = change;
    rows.forEach((row) => row.setAttribute("aria-busy", "true"));
    const signal = AbortSignal.timeout(PATIENCE);
    const options = { method: "POST", body, headers: { "X-Part": "list" }, redirect: "manual", keepalive, signal };
    const sent = fetch(url, options).catch(() => null);
    document.dispatchEvent(new CustomEvent("notifications:change", { detail: sent }));
    const reply = await sent;
    const text = reply?.ok && (await reply.text().catch(() => ""));
    rows.forEach((row) => row.removeAttribute("aria-busy"));
    if (reply?.type === "opaqueredirect") {
      restore(list, deletion);
      restore(list, waiting.get(list));
      list.news = null;
      return list.say("ended");
    }
    if (!reply?.ok && reply?.status !== 404) {
      restore(list, deletion);
      // The CSRF token is of an earlier login, perhaps another user's, whose rows must not be changed.
      if (reply?.status === 403) return list.report("stale", { answer: () => location.reload() });
      const again = () => (deletion ? finish(list, deletion) : post(list, { ...change, isAgain: true }));
      const failed = [...(list.failure?.failed ?? []), { what, number, again }];
      const text = words("unsaved").failed.replace("{what}", describe(failed));
      return list.report("unsaved", { text, failed, answer: () => tryAgain(list, failed) });
    }
    if (document.activeElement.closest(".nc-bulk")) rows[0]?.querySelector(".nc-title").focus(); // the bar disappears
    for (const row of rows) row.querySelectorAll(":checked").forEach((box) => (box.checked = false));
    const at = reply.headers.get("X-Changed-At");
    if (undo && at) {
      rows.forEach((row) => showRead(row, undo));
      body.set("which", "read");
      body.set("at", at);
      const back = { what: words("read").undo, number: 0, url: undo, body, rows };
      list.report("deleted", { text, answer: () => post(list, back) });
    } else if (text && !deletion && !isAgain) {
      list.report("done", { text });
      list.toast.firstElementChild.classList.toggle("nc-visually-hidden", rows.length === 1); // the row shows it
    }
    tidy(list);
    list.renew();
    return true;
  };

  const rowsOf = (list) => [...list.part.querySelectorAll(".nc-row:not([hidden])")];
  const titleOf = (row) => row.querySelector(".nc-title");
  const controlsOf = (row) => {
    const controls = row?.querySelectorAll(".nc-lead > input, .nc-title, .nc-mark, .nc-more") ?? [];
    return [...controls].filter((control) => control.checkVisibility());
  };
  const boxesOf = (list) => rowsOf(list).flatMap((row) => row.querySelector("[name=selected]") ?? []);

  // Rows whose deletion can still be undone.
  const leaving = () => [...waiting.values()].flatMap(({ rows }) => rows);

  // Show rows that were not deleted after all. Hide days without rows. Show whether all rows are selected.
  const tidy = (list) => {
    const gone = readSent();
    const left = new Set(leaving().map((row) => row.dataset.key));
    for (const row of list.part.querySelectorAll(".nc-row")) {
      const isGone = gone[row.dataset.key] > Date.now() || left.has(row.dataset.key);
      row.classList.toggle("nc-new", row.classList.contains("nc-new") || (row.hidden && !isGone));
      row.hidden = isGone;
    }
    let isEmpty = true;
    for (const item of [...(list.part.querySelector(".nc-list")?.children ?? [])].reverse()) {
      const isRow = item.matches(".nc-row");
      if (!isRow) item.hidden = isEmpty;
      isEmpty = !isRow || (isEmpty && item.hidden);
    }
    const all = list.root.querySelector("#nc-all");
    if (!all) return list.tellStatus(list.emptiness);
    const boxes = boxesOf(list);
    const chosen = boxes.filter((box) => box.checked).length;
    all.checked = chosen === boxes.length;
    const number = list.root.querySelector("#nc-chosen");
    number.textContent = chosen || "";
    const isKeyed = chosen === 1 && list.part.querySelector(".nc-row :focus-visible");
    const hint = isKeyed ? `. ${words("keyed").way}` : "";
    chosen ? list.tellStatus(number.parentElement.textContent, hint) : list.tellStatus(list.emptiness);
    all.indeterminate = chosen > 0 && !all.checked;
  };

  const deselect = (list) => {
    const chosen = rowsOf(list).filter((row) => row.querySelector(":checked"));
    if (document.activeElement.closest(".nc-bulk")) titleOf(chosen[0]).focus(); // the bar disappears
    for (const row of chosen) row.querySelector(":checked").checked = false;
    tidy(list);
    const number = list.root.querySelector("#nc-chosen");
    number.textContent = 0;
    list.tell(number.parentElement.textContent);
  };

  // A deletion begins or ends: hide or show its rows in all lists, and leave those that are unread out of badges.
  const setWaiting = (list, change) => {
    change ? waiting.set(list, change) : waiting.delete(list);
    document.querySelectorAll(".nc-live").forEach((root) => tidy(listOf(root)));
    const detail = leaving().filter((row) => row.matches(".nc-unread")).map((row) => row.dataset.kind);
    document.dispatchEvent(new CustomEvent("notifications:leaving", { detail }));
  };

  const restore = (list, deletion) => {
    if (!deletion) return;
    deletion.isDone = false;
    remember(deletion.rows, 0);
    const other = waiting.get(list);
    setWaiting(list, other === deletion ? null : other);
  };

  const finish = async (list, change, keepalive) => {
    if (!change || change.isDone) return;
    change.isDone = true;
    remember(change.rows, Date.now() + PATIENCE);
    tidy(list);
    const isSaved = await post(list, { ...change, rows: [], deletion: change }, keepalive);
    if (waiting.get(list) === change) setWaiting(list, null);
    return isSaved;
  };

  // Hide rows, and delete them unless that is undone.
  const remove = (list, change) => {
    finish(list, waiting.get(list));
    const { rows, number } = change;
    const isFocused = [...rows, list.root.querySelector(".nc-bulk")].some((part) => part?.contains(document.activeElement));
    const all = rowsOf(list);
    const next = all.slice(all.indexOf(rows.at(-1))).find((row) => !rows.includes(row));
    for (const row of rows) row.querySelectorAll(":checked").forEach((box) => (box.checked = false));
    setWaiting(list, change);
    if (isFocused) next ? titleOf(next).focus() : list.focus();
    const answer = () => {
      restore(list, change);
      const row = rowsOf(list).find((row) => row.dataset.key === rows[0]?.dataset.key);
      row ? titleOf(row).focus() : list.focus();
      list.report("restored", { end: () => {} });
    };
    const text = number > 1 ? words("deleted").many?.replace("{n}", number) : "";
    list.report("deleted", { text, answer, end: () => finish(list, change) });
  };

  const change = (list, button) => {
    const { form, name } = button;
    const isAll = name === "which";
    const url = button.hasAttribute("formaction") ? button.formAction : form.action;
    const body = new URLSearchParams(new FormData(form, button));
    const isMeant = (row) => isAll || (name ? row.contains(button) : row.querySelector(":checked"));
    const rows = rowsOf(list).filter(isMeant);
    list.root.querySelectorAll(":popover-open").forEach((menu) => menu.hidePopover());
    const what = button.ariaLabel || button.textContent;
    const asked = { what, number: isAll ? 0 : rows.length, url, body, rows, undo: button.dataset.undoAt };
    if (!("undo" in button.dataset)) return post(list, asked);
    if (!isAll) return remove(list, asked);
    body.set("until", new Date(list.now + 1000).toISOString()); // the clock of the server has seconds
    const read = rows.filter((row) => row.matches(".nc-read"));
    const number = list.part.querySelector(".nc-pages a") ? 0 : read.length; // other pages may have more
    remove(list, { ...asked, number, rows: read });
  };

  // Delete a notification from its own page: the list does it, where that can be undone.
  const leave = (event, { formAction: url, value: pk, textContent: what, form, dataset }) => {
    if (new URL(form.elements.next.value, location).pathname !== dataset.undo) return; // no list follows
    try { sessionStorage[LEFT] = JSON.stringify({ url, pk, what }); } catch { return; }
    event.preventDefault();
    event.stopPropagation(); // htmx may have boosted the form
    location = form.elements.next.value;
  };

  const arrive = (list) => {
    let left;
    try { left = JSON.parse(sessionStorage[LEFT] ?? "null"); delete sessionStorage[LEFT]; } catch {}
    if (!left) return;
    const body = new URLSearchParams(new FormData(list.root.querySelector("form")));
    body.set("pk", left.pk);
    const rows = rowsOf(list).filter((row) => row.dataset.key === left.pk);
    list.focus();
    if (rows[0]) titleOf(rows[0]).focus(); // and then the next one
    setTimeout(() => remove(list, { what: left.what, number: 1, url: left.url, body, rows }), KNOWN);
  };

  // ---------------------------------------------------------------- events
  // Runs before htmx, which may have boosted the form. Opening a notification leaves the page.
  const onSubmit = (event) => {
    const list = listOf(event.target);
    const button = event.submitter;
    if (button?.matches(".nc-notification [data-undo]")) return leave(event, button);
    if (!list || !button) return;
    event.stopPropagation();
    if (button.matches(".nc-title:not([aria-disabled])")) return;
    event.preventDefault();
    if (!button.closest("[aria-disabled], [aria-busy]")) change(list, button);
  };
  document.addEventListener("submit", onSubmit, { capture: true });

  document.addEventListener("click", (event) => {
    const list = listOf(event.target);
    if (!list) return;
    if (event.target.closest(".nc-toast button")) return list.answer();
    if (event.target.closest("#nc-clear")) return deselect(list);
    if (event.target.closest(".nc-select")) {
      event.target.closest(".nc-row").querySelector("[name=selected]").checked = true;
      return tidy(list);
    }
    const filter = list.root.dataset.url && event.target.closest(".nc-filters a");
    if (!filter || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    list.root.style.minBlockSize = `${list.root.getBoundingClientRect().height}px`; // the filter stays where it was clicked
    list.open(filter);
  });

  document.addEventListener("change", (event) => {
    const list = listOf(event.target);
    if (!list) return;
    if (event.target.id === "nc-has-keys") {
      hasKeys = event.target.checked;
      try { localStorage[KEYS] = hasKeys ? "on" : "off"; } catch {}
    }
    if (event.target.id === "nc-all") boxesOf(list).forEach((box) => (box.checked = event.target.checked));
    tidy(list);
  });

  // Focus the element at an index, or the first or last one. Returns false if it has the focus already.
  const go = (event, elements, index) => {
    const to = elements[Math.max(0, Math.min(elements.length - 1, index))];
    if (!to || to === document.activeElement) return false;
    event.preventDefault();
    to.focus();
    return true;
  };

  let origin = ""; // the id of what arrows went on from, to what floats below the list
  document.addEventListener("keydown", (event) => {
    const at = document.activeElement;
    if (event.defaultPrevented || event.composedPath()[0].matches?.(TYPED)) return;
    const isBusy = at.closest(DIALOG) || document.querySelector(":modal");
    const list = listOf(at) ?? (isBusy ? null : listOf(document.querySelector(".nc-inbox")));
    if (list?.toast.dataset.state === "deleted" && event.key === "z" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      return list.answer();
    }
    if (event.key === "Tab" && !event.shiftKey && at.matches("#nc-keys p > button")) {
      event.preventDefault();
      return at.click(); // closes, and gives the focus back
    }
    if (!list || event.ctrlKey || event.metaKey || event.altKey) return;
    list.root.classList.add("nc-keyed");
    const rows = rowsOf(list);
    const bulk = rows.some((row) => row.querySelector(":checked")) && list.root.querySelector(".nc-bulk");
    if (event.key === "Escape" && !document.querySelector(".nc-menu:popover-open")) {
      if (bulk) return deselect(list);
      if (list.news && !list.news.end) return list.close(); // else a deletion could not be undone any more
    }
    const here = rows.indexOf(at.closest(".nc-row"));
    const controls = controlsOf(rows[here]);
    const place = controls.indexOf(at);
    const bar = [...list.root.querySelectorAll(BAR)].filter((control) => control.checkVisibility());
    if (event.key in ACROSS && (place >= 0 || bar.includes(at))) {
      const isArrow = event.key.startsWith("Arrow");
      const back = document.getElementById(origin);
      const own = place >= 0 ? controls : back?.checkVisibility() ? [back] : [];
      if (place >= 0) origin = at.id;
      const line = isArrow ? [...own, ...bar] : place < 0 ? bar : controls;
      return go(event, line, line.indexOf(at) + (isArrow && at.matches(":dir(rtl)") ? -1 : 1) * ACROSS[event.key]);
    }
    if (event.key in DOWN) {
      const menu = at.closest(".nc-menu") ?? at.popoverTargetElement;
      const items = menu?.matches(".nc-menu:not(.nc-keys):popover-open") ? [...menu.querySelectorAll("a, button")] : null;
      if (items) return go(event, items, items.indexOf(at) + DOWN[event.key]) || event.preventDefault();
      if (here < 0 && !list.root.dataset.url) return; // arrows scroll the page
      return go(event, rows.map((row) => controlsOf(row)[place] ?? titleOf(row)), here + DOWN[event.key]);
    }
    if (!hasKeys || (at.closest("#nc-keys") && event.key !== "?")) return;
    if (event.key in NEXT) {
      if (go(event, rows.map(titleOf), here + NEXT[event.key]) || here < 0 || !list.isFull) return;
      list.part.querySelector(NEXT[event.key] > 0 ? "[rel=next]" : "[rel=prev]")?.click();
    } else if (event.key === "e") {
      const mark = list.part.querySelector(".nc-unread :checked") ? "#nc-read" : "#nc-unread, .nc-mark";
      (bulk || rows[here])?.querySelector(mark).click();
    } else if (event.key === "x") {
      rows[here]?.querySelector("[name=selected]")?.click();
    } else if (event.key === "#" || event.key === "Backspace") {
      (bulk || rows[here])?.querySelector("[data-undo]").click();
    } else if (event.key === "?") {
      document.getElementById("nc-keys")?.togglePopover();
    }
  });

  // Otherwise it would cover what the keyboard goes to next.
  document.addEventListener("focusout", ({ target, relatedTarget: next }) => {
    const left = target.closest?.(".nc-menu, .nc-bell-panel") ?? target.popoverTargetElement;
    if (left && next && !next.closest("[popover]") && next.popoverTargetElement !== left) {
      (document.querySelector(".nc-menu:popover-open") ?? left).hidePopover(); // one may have opened the other
    }
  });

  document.addEventListener("beforetoggle", ({ target, newState }) => {
    if (target.id === "nc-keys") target.querySelector("#nc-has-keys").checked = hasKeys;
    // A menu gives the focus back to its button. Browsers see to that only if it is in no other popover.
    else if (newState === "closed" && target.matches(".nc-menu:focus-within")) target.previousElementSibling.focus();
  }, { capture: true });

  // The menu from which the shortcuts were opened closes with them. What had the focus may have been replaced.
  document.addEventListener("toggle", ({ target, newState }) => {
    if (target.id !== "nc-keys" || newState !== "closed") return;
    const menu = document.querySelector("#nc-menu:popover-open");
    menu?.hidePopover();
    menu?.previousElementSibling.focus();
    const at = document.activeElement; // what is hidden keeps the focus for a moment
    if (at === document.body || target.contains(at)) listOf(target).focus({ preventScroll: true });
  }, { capture: true });

  let isHinted = false;
  document.addEventListener("focusin", ({ target }) => {
    const isKeyed = target.matches(".nc-title:focus-visible");
    if (isKeyed && !isHinted) listOf(target).tell(words("keyed").way);
    isHinted ||= isKeyed;
    if (target.matches(":is(.nc-kinds, .nc-bulk) :focus-visible")) target.scrollIntoView({ block: "nearest", inline: "center" });
    const keys = document.querySelector("#nc-keys:popover-open");
    if (keys && !keys.contains(target)) keys.hidePopover();
  });

  document.addEventListener("notifications:list", (event) => tidy(listOf(event.target)));
  window.addEventListener("pagehide", () => waiting.forEach((change, list) => finish(list, change, true)));

  // ------------------------------------------------------------------ bell
  // All bells open one panel.
  window.ncBells = () => {
    const bells = document.querySelectorAll(".nc-bell button:not([popovertarget])");
    if (!bells.length) return;
    if (!document.getElementById("nc-bell-panel")) {
      const panel = document.querySelector('template[data-state="panel"]').content.cloneNode(true).firstElementChild;
      let behind = []; // what a sheet on a phone dims
      panel.addEventListener("beforetoggle", ({ newState }) => {
        const isSheet = newState === "open" && matchMedia("(max-width: 40rem)").matches;
        if (isSheet) behind = [...document.body.children].filter((part) => part !== panel && !part.inert);
        for (const part of behind) part.inert = isSheet;
      });
      panel.addEventListener("toggle", () => {
        panel.style.minBlockSize = "";
        listOf(panel).refresh(); // if it is open
      });
      panel.addEventListener("notifications:list", () => { // its own head replaces the first one
        if (document.activeElement.closest(".nc-first")) panel.querySelector(".nc-part .nc-close")?.focus();
      });
      document.body.append(panel);
    }
    for (const bell of bells) {
      Object.assign(bell, { type: "button", ariaHasPopup: "dialog" });
      bell.setAttribute("popovertarget", "nc-bell-panel");
    }
  };
  for (const list of [...document.querySelectorAll(".nc-live")].map(listOf)) {
    tidy(list);
    arrive(list);
  }
  new MutationObserver(window.ncBells).observe(document, { childList: true, subtree: true });
  window.ncBells();
})();
