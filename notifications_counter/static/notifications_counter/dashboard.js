// Draws the charts of the dashboard with Chart.js, each from a column of the table below, and collapses the table.
// Without Chart.js, the table stays.
(() => {
  "use strict";

  const { Chart } = window;

  const draw = (charts) => {
    const { labels, separator } = charts.dataset;
    const { color, direction, fill, stroke, fontFamily: family } = getComputedStyle(charts.querySelector("canvas"));
    const start = direction === "rtl" ? "right" : "left";
    const font = { family, size: 11 };
    const axis = JSON.parse(labels);
    const rows = [...charts.nextElementSibling.querySelectorAll("tbody tr")];
    if (start === "left") [axis, rows].forEach((newestFirst) => newestFirst.reverse());
    const times = rows.map((row) => row.cells[0].textContent);
    const canvases = [...charts.querySelectorAll("canvas")];
    const columns = canvases.map((_, i) => rows.map((row) => row.cells[i + 1].textContent));
    const numbersOf = (texts) => texts.map((text) => Number(text.replace(/[^\d-]/g, "")) || null);
    const most = Math.max(...columns.flatMap(numbersOf));
    canvases.forEach((canvas, i) => {
      const texts = columns[i];
      Chart.getChart(canvas)?.destroy();
      new Chart(canvas, {
        type: "bar",
        data: {
          labels: times,
          datasets: [{ data: numbersOf(texts), backgroundColor: fill, hoverBackgroundColor: color }],
        },
        options: {
          animation: false,
          maintainAspectRatio: false,
          barPercentage: 0.8,
          categoryPercentage: 1,
          minBarLength: 1, // so that small numbers are visible
          interaction: { mode: "index", intersect: false },
          scales: {
            x: {
              border: { display: false },
              grid: { display: false },
              ticks: { color, font, autoSkipPadding: 8, maxRotation: 0, callback: (value) => axis[value] },
              afterBuildTicks: (scale) => (scale.ticks = scale.ticks.filter(({ value }) => axis[value])),
            },
            y: {
              position: start,
              beginAtZero: true,
              suggestedMax: most, // so that charts can be compared
              border: { display: false },
              grid: { color: stroke, drawTicks: false },
              ticks: {
                color,
                font,
                maxTicksLimit: 5,
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
              titleFont: font,
              bodyAlign: start,
              bodyFont: font,
              callbacks: { label: ({ dataIndex }) => texts[dataIndex] },
            },
          },
        },
      });
    });
  };

  const all = document.querySelectorAll(".nc-charts");
  for (const charts of all) {
    charts.hidden = !Chart;
    charts.nextElementSibling.open = !Chart;
  }
  if (!Chart) return;

  const drawAll = () => all.forEach(draw);
  drawAll();
  // The theme follows the system or a choice on the page.
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  new MutationObserver(drawAll).observe(document.documentElement, { attributeFilter: ["class", "data-theme"] });
})();
