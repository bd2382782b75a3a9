// Draws the charts of the dashboard with Chart.js, each from a column of the table below, and collapses the table.
// Without Chart.js, the table stays. Refreshes the page in place, if that is wanted.
(() => {
  "use strict";

  const { Chart } = window;

  // Highlight the bars, with their tooltip.
  const point = (chart, bars) => {
    chart.tooltip.setActiveElements(bars, { x: 0, y: 0 });
    chart.setActiveElements(bars);
    chart.update();
  };

  const draw = (charts) => {
    const { labels, separator } = charts.dataset;
    const style = getComputedStyle(charts.querySelector("canvas"));
    const { color, direction, fill, stroke, stopColor: pale, floodColor: hovered, lightingColor: band, caretColor: gap, fontFamily: family } = style;
    const start = direction === "rtl" ? "right" : "left";
    const font = { family, size: 11 };
    const axis = JSON.parse(labels);
    const rows = [...charts.nextElementSibling.querySelectorAll("tbody tr")];
    if (start === "left") [axis, rows].forEach((newestFirst) => newestFirst.reverse());
    const isAtTheEdge = (i) => (start === "left" ? rows.length - i : i) < rows.length / 15; // where a label in the middle of its bar has no room
    const times = rows.map((row) => row.cells[0].textContent);
    const [incomplete, late, unrecorded] = ["incomplete", "late", "unrecorded"].map((look) => rows.filter((row) => row.querySelector(`.nc-${look}`)));
    if (incomplete.length > 1) late.push(...incomplete);
    const canvases = [...charts.querySelectorAll("canvas")];
    const columns = canvases.map((_, i) => rows.map((row) => row.cells[i + 1].textContent));
    const numbersOf = (texts) => texts.map((text) => Number(text.replace(/[^\d-]/g, "")) || null);
    const most = Math.max(...columns.flatMap(numbersOf));
    const fills = rows.map((row) => (incomplete.includes(row) && !late.includes(row) ? pale : fill));
    const shade = ({ ctx, chartArea: { left, right, top, bottom } }) => {
      const edges = rows.map((_, i) => Math.round(left + ((right - left) * i) / rows.length)).concat(right);
      rows.forEach((row, i) => {
        ctx.fillStyle = late.includes(row) ? band : unrecorded.includes(row) ? gap : "transparent";
        ctx.fillRect(edges[i], top, edges[i + 1] - edges[i], bottom - top);
        if (!late.includes(row) || late.includes(rows[i - 1])) return;
        ctx.fillStyle = color; // the edge of a pale band
        ctx.fillRect(edges[i], top, 1, bottom - top);
      });
    };
    // Bars begin and end at whole pixels, so that all gaps are alike.
    const snap = (chart) => {
      const { left, right } = chart.chartArea;
      const pixel = 1 / chart.currentDevicePixelRatio;
      const whole = (length) => Math.round(length / pixel) * pixel;
      const step = (right - left) / rows.length;
      const space = Math.max(pixel, whole(step / 5));
      chart.getDatasetMeta(0).data.forEach((bar, i) => {
        const [from, to] = [i, i + 1].map((edge) => whole(left + edge * step));
        const width = Math.max(pixel, to - from - space);
        Object.assign(bar, { width, x: from + width / 2 });
      });
    };
    // A pointer at one chart points at the same time of the others.
    const copy = (chart, { changed, replay }) => {
      if (!changed || replay) return;
      const others = canvases.filter((canvas) => canvas !== chart.canvas);
      others.forEach((canvas) => point(Chart.getChart(canvas), chart.getActiveElements()));
    };
    canvases.forEach((canvas, i) => {
      const texts = columns[i];
      const own = Math.max(...numbersOf(texts));
      Chart.getChart(canvas)?.destroy();
      new Chart(canvas, {
        type: "bar",
        plugins: [{ id: "counters", beforeDraw: shade, beforeDatasetsDraw: snap, afterEvent: copy }],
        data: {
          labels: times,
          datasets: [
            {
              data: numbersOf(texts),
              backgroundColor: fills,
              hoverBackgroundColor: hovered,
              borderColor: fill,
              borderRadius: 2,
              borderWidth: fills.map((each) => (each === pale ? 1 : 0)),
            },
          ],
        },
        options: {
          animation: false,
          layout: { padding: { top: 8 } }, // also without labels
          maintainAspectRatio: false,
          minBarLength: 1, // so that small numbers are visible
          interaction: { mode: "index", intersect: false },
          scales: {
            x: {
              border: { display: false },
              grid: { display: false },
              ticks: { color, font, maxRotation: 0, callback: (value) => axis[value] },
              afterFit: (scale) => (scale[start === "left" ? "paddingRight" : "paddingLeft"] = 0),
              afterBuildTicks: (scale) => (scale.ticks = scale.ticks.filter(({ value }) => axis[value] && !isAtTheEdge(value))),
            },
            y: {
              position: start,
              beginAtZero: true,
              suggestedMax: Math.max(4, own && most > 4 * own ? own : most), // so that charts can be compared
              border: { display: false },
              grid: { color: stroke, drawTicks: false },
              ticks: {
                color,
                font,
                maxTicksLimit: 6,
                padding: 6,
                precision: 0,
                callback: (value) => String(value).replace(/\B(?=(\d{3})+$)/g, separator),
              },
            },
          },
          plugins: {
            legend: { display: false },
            tooltip: {
              backgroundColor: "#222",
              borderColor: color,
              borderWidth: 1,
              displayColors: false,
              titleAlign: start,
              titleFont: { ...font, weight: "normal" },
              bodyAlign: start,
              bodyFont: { family, size: 13, weight: 600 },
              yAlign: "bottom",
              callbacks: { label: ({ dataIndex }) => texts[dataIndex] },
            },
          },
        },
      });
    });
  };

  const all = () => [...document.querySelectorAll(".nc-charts")];
  const drawAll = () => Chart && all().forEach(draw);
  for (const charts of all()) {
    charts.hidden = !Chart;
    charts.nextElementSibling.open = !Chart;
  }
  drawAll();
  // The theme follows the system or a choice on the page.
  for (const scheme of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) {
    matchMedia(scheme).addEventListener("change", drawAll);
  }
  new MutationObserver(drawAll).observe(document.documentElement, { attributeFilter: ["class", "data-theme"] });
  document.addEventListener("keydown", ({ key }) => {
    if (key !== "Escape" || !Chart) return;
    for (const chart of Object.values(Chart.instances)) point(chart, []);
  });

  // The keyboard stops at a table only to scroll it.
  const findCut = () => {
    for (const table of document.querySelectorAll(".nc-table")) {
      table.dataset.label ??= table.ariaLabel;
      const isCut = table.scrollWidth > table.clientWidth || table.scrollHeight > table.clientHeight;
      Object.assign(table, { role: isCut ? "region" : null, ariaLabel: isCut ? table.dataset.label : null });
      isCut ? (table.tabIndex = 0) : table.removeAttribute("tabindex");
    }
  };
  findCut();
  window.addEventListener("resize", findCut);
  document.addEventListener("toggle", findCut, { capture: true });

  const ATTRIBUTES = "action aria-current class data-kind data-labels disabled href id name title value".split(" ");

  // Change only what is another, so that the focus stays, and what is open stays open.
  const update = (old, now) => {
    if (old.nodeName !== now.nodeName || old.childNodes.length !== now.childNodes.length) {
      old.querySelectorAll?.("canvas").forEach((canvas) => Chart?.getChart(canvas)?.destroy());
      old.replaceWith(now);
    } else if (old.nodeType === Node.TEXT_NODE) {
      if (old.data !== now.data) old.data = now.data;
    } else if (old.matches?.("canvas")) {
      old.setAttribute("aria-label", now.getAttribute("aria-label"));
    } else {
      for (const name of old.attributes ? ATTRIBUTES : []) {
        now.hasAttribute(name) ? old.setAttribute(name, now.getAttribute(name)) : old.removeAttribute(name);
      }
      const children = [...now.childNodes]; // one that replaces another leaves its parent
      [...old.childNodes].forEach((child, i) => update(child, children[i]));
    }
  };

  const main = () => document.getElementById("content-main"); // which a refresh may replace
  const sentence = () => main().querySelector(".nc-sentence").textContent.replace(/\s+/g, " ").trim();
  const subject = () => main().querySelector(".nc-sentence").dataset.kind || sentence(); // without times that go on
  const asOf = () => main().querySelector(".nc-links bdi").textContent;
  const told = document.getElementById("nc-told");
  const [words, login] = told.children;

  // Also what was told before: a screen reader is told of changes only.
  const tell = (text) => {
    words.textContent = "";
    setTimeout(() => (words.textContent = text), 100);
  };

  // Focus what has taken the place of a link or a button.
  const focusAgain = (old) => {
    const isSame = (each) => each.href === old.href && each.textContent === old.textContent;
    const all = [...main().querySelectorAll("a, button, summary")];
    (all.find(isSame) ?? main().querySelector(".nc-links a")).focus({ preventScroll: true });
  };

  let turns = 0;
  const refresh = async (url = location.href) => {
    if (document.hidden) return; // until the next time
    const turn = ++turns;
    const reply = await fetch(url, { signal: AbortSignal.timeout(20_000) }).catch(() => null);
    const text = await reply?.text().catch(() => "");
    if (turn !== turns) return; // a later one shows the page
    if (!text || !reply.ok || reply.redirected) {
      tell(`${told.dataset.failed} ${asOf()}`);
      login.hidden = !reply?.redirected;
      login.href = reply?.url ?? "";
      told.className = "nc nc-health nc-alarm nc-warned"; // for all to see
      return;
    }
    history.replaceState(null, "", url);
    const page = new DOMParser().parseFromString(text, "text/html");
    document.title = page.title;
    const [before, focused] = [subject(), document.activeElement];
    const isOpen = [...main().querySelectorAll("details")].map((details) => details.open);
    update(main(), page.getElementById("content-main"));
    for (const charts of all()) charts.hidden = !Chart;
    const now = [...main().querySelectorAll("details")];
    if (now.length === isOpen.length) now.forEach((details, i) => (details.open = isOpen[i]));
    drawAll();
    findCut();
    login.hidden = true;
    if (!focused.checkVisibility()) focusAgain(focused);
    if (subject() !== before || told.className !== "visually-hidden") tell(sentence());
    told.className = "visually-hidden";
  };
  document.addEventListener("click", async (event) => {
    const link = event.target.closest("#nc-refresh, .nc-tabs a");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault(); // so that the focus stays
    await refresh(link.href);
    if (told.className !== "visually-hidden") return;
    tell(link.id === "nc-refresh" ? `${asOf()} ${sentence()}` : link.textContent);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== " " || !event.target.matches(".nc-switch")) return;
    event.preventDefault();
    event.target.click();
  });
  const seconds = main().dataset.refresh;
  if (seconds) setInterval(() => refresh(), seconds * 1000);
})();
