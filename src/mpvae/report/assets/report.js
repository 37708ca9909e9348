"use strict";
const data = JSON.parse(document.getElementById("report-data").textContent);
const root = document.documentElement;
const drawn = new Map();

// ---------------------------------------------------------------- figures

function decoded(figure) {
  for (const trace of figure.data) {
    const scale = trace.meta && trace.meta.scale;
    if (!scale) continue;
    const raw = atob(trace.z.bdata);
    const columns = Number(trace.z.shape.split(",")[1]);
    const rows = [];
    for (let start = 0; start < raw.length; start += columns) {
      const row = new Array(columns);
      for (let k = 0; k < columns; k++) {
        const byte = (raw.charCodeAt(start + k) << 24) >> 24;
        row[k] = byte === -128 ? null : byte * scale;
      }
      rows.push(row);
    }
    trace.z = rows;
  }
  return figure;
}

function colours() {
  return { "font.color": getComputedStyle(root).getPropertyValue("--ink").trim() };
}

// On a phone: one thing below the other, and names that fit.
function narrow(figure) {
  const { data, layout } = figure;
  for (const trace of data) if (trace.type === "heatmap") scaleAbove(trace, layout);
  const panels = Object.keys(layout).filter((key) => key.startsWith("xaxis")).length;
  if (panels > 1) oneBelowTheOther(layout, panels);
  const names = data.filter((trace) => trace.mode === "markers+text");
  const written = names.flatMap((trace) => trace.text).filter(Boolean).length;
  if (written > 20) for (const trace of names) trace.mode = "markers"; // a touch shows the name
  if (layout.yaxis && layout.yaxis.ticktext) {
    const lines = layout.yaxis.ticktext;
    layout.yaxis.ticktext = lines.map((text) => text.replace(" / ", " /<br>"));
    layout.yaxis.tickfont = { size: 10 };
    layout.height += 10 * lines.length;
  }
}

function scaleAbove(trace, layout) {
  const text = trace.colorbar.title.text.replaceAll("<br>", " ");
  trace.colorbar = { ...trace.colorbar, orientation: "h", y: 1, yanchor: "bottom", thickness: 10, title: { text } };
  layout.margin = { ...layout.margin, t: 90 };
  layout.height += 60;
}

function oneBelowTheOther(layout, panels) {
  for (let k = 0; k < panels; k++) {
    const number = k === 0 ? "" : String(k + 1);
    const [low, high] = [1 - (k + 0.75) / panels, 1 - k / panels];
    layout[`xaxis${number}`].domain = [0, 1];
    layout[`yaxis${number}`].domain = [low, high];
    if (layout.annotations[k]) Object.assign(layout.annotations[k], { x: 0.5, y: high });
  }
  layout.height = 150 + 170 * panels;
  layout.legend = { ...layout.legend, y: -0.05, yanchor: "top" };
}

function draw(element) {
  const key = element.dataset.figure;
  if (drawn.has(key)) return;
  drawn.set(key, element);
  const figure = decoded(data.figures[key]);
  delete figure.layout.width;
  figure.layout.font = { ...figure.layout.font, color: colours()["font.color"] };
  if (element.clientWidth < 520) narrow(figure);
  element.style.minHeight = `${figure.layout.height || 420}px`;
  Plotly.newPlot(element, figure.data, figure.layout, {
    responsive: true,
    displaylogo: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  });
}

const places = [...document.querySelectorAll("[data-figure]")];
const seen = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        seen.unobserve(entry.target);
        draw(entry.target);
      }
    }
  },
  { rootMargin: "400px" },
);
places.forEach((element) => seen.observe(element));

// ---------------------------------------------------------------- light, dark, print

function theme(name) {
  root.dataset.theme = name;
  const button = document.getElementById("theme");
  button.setAttribute("aria-pressed", String(name === "dark"));
  for (const element of drawn.values()) Plotly.relayout(element, colours());
}
const dark = matchMedia("(prefers-color-scheme: dark)");
theme(dark.matches ? "dark" : "light");
dark.addEventListener("change", (event) => theme(event.matches ? "dark" : "light"));
document.getElementById("theme").addEventListener("click", () => {
  theme(root.dataset.theme === "dark" ? "light" : "dark");
});
const PAGE = 660; // pixels across a printed page, A4 or letter
let before = "light";
addEventListener("beforeprint", () => {
  before = root.dataset.theme;
  places.forEach(draw);
  theme("light");
  for (const element of drawn.values()) Plotly.relayout(element, { width: PAGE });
});
addEventListener("afterprint", () => {
  for (const element of drawn.values()) Plotly.relayout(element, { width: null, autosize: true });
  theme(before);
});

// ---------------------------------------------------------------- tables

const titles = {
  label: "label", prevalence: "prevalence", f1: "F1", auc: "AUC", threshold: "threshold", group: "group",
  label_a: "label", label_b: "other label", residual_correlation: "residual", low: "low", high: "high",
  raw_correlation: "raw", by_features: "by features", share_by_features: "share by features",
};

function shown(value) {
  if (value === null) return "–";
  return typeof value === "number" && !Number.isInteger(value) ? value.toFixed(3) : String(value);
}

function fill(table) {
  const rows = data[table.dataset.rows].map((row) => ({ ...row }));
  if (!rows.length) return;
  const names = Object.keys(rows[0]);
  const numeric = (name) => rows.some((row) => typeof row[name] === "number");
  const head = table.createTHead().insertRow();
  for (const name of names) {
    const cell = document.createElement("th");
    cell.scope = "col";
    if (numeric(name)) cell.className = "number";
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = titles[name] || name;
    button.addEventListener("click", () => sort(name, cell));
    cell.append(button);
    head.append(cell);
  }
  const body = table.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    row.line = line;
    row.text = names.filter((name) => !numeric(name)).map((name) => row[name]).join(" ").toLowerCase();
    for (const name of names) {
      const cell = line.insertCell();
      cell.textContent = shown(row[name]);
      if (numeric(name)) cell.className = "number";
    }
  }
  function sort(name, cell) {
    const down = cell.getAttribute("aria-sort") !== "descending" && numeric(name)
      || cell.getAttribute("aria-sort") === "ascending";
    for (const other of head.cells) other.removeAttribute("aria-sort");
    cell.setAttribute("aria-sort", down ? "descending" : "ascending");
    const sign = down ? -1 : 1;
    rows.sort((a, b) => {
      if (a[name] === null || b[name] === null) return (a[name] === null) - (b[name] === null);
      return sign * (numeric(name) ? a[name] - b[name] : String(a[name]).localeCompare(String(b[name])));
    });
    body.append(...rows.map((row) => row.line));
  }
  const count = document.querySelector(`[data-count="${table.id}"]`);
  const search = document.querySelector(`[data-search="${table.id}"]`);
  const filter = () => {
    const wanted = search.value.trim().toLowerCase();
    let n = 0;
    for (const row of rows) {
      row.line.hidden = !row.text.includes(wanted);
      n += !row.line.hidden;
    }
    count.textContent = `${n} of ${rows.length}`;
  };
  search.addEventListener("input", filter);
  filter();
}
document.querySelectorAll("table[data-rows]").forEach(fill);
