"use strict";
const $ = (id) => document.getElementById(id);
const MOST_FEATURES = 60;
const MOST_LABELS = 200;
const NUMBER = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i;
const blank = (...parts) => Object.assign(Object.create(null), ...parts); // names may be "constructor"
// `invalid`: what is wrong with fields, by feature; `order`: labels as they stand, until they are sorted again.
const state = { about: null, row: blank(), known: blank(), examples: [], answer: null, invalid: new Map(), order: null };
let asked = 0;

// ---------------------------------------------------------------- asking

async function ask(path, options = {}) {
  const token = sessionStorage.getItem("token");
  const own = token ? { Authorization: `Bearer ${/^[!-~]+$/.test(token) ? token : "?"}` } : {};
  const answer = await fetch(path, { ...options, headers: { ...options.headers, ...own } });
  if (answer.status === 401) {
    await tokenFor(token);
    return ask(path, options);
  }
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error || answer.statusText);
  return found;
}

let tokenGiven = null; // resolved by the form
function tokenFor(refused) {
  tokenGiven ??= new Promise((resolve) => {
    $("token-told").textContent = refused ? "That is not the token of this service." : "";
    $("token-form").hidden = false;
    $("token").focus();
    $("token-form").addEventListener("submit", (event) => {
      event.preventDefault();
      sessionStorage.setItem("token", $("token").value.trim());
      $("token-form").hidden = true;
      $("token").value = "";
      tokenGiven = null;
      resolve();
    }, { once: true });
  });
  return tokenGiven;
}

function problem(text) {
  $("problem").textContent = text;
  $("problem").hidden = !text;
}

async function refresh() {
  const number = ++asked;
  try {
    const found = await ask("/conditional", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ rows: [state.row], known: [state.known] }),
    });
    if (number !== asked) return; // a later question is on its way
    state.answer = { probabilities: found.probabilities[0], marginals: found.marginals[0] };
    problem([...state.invalid.values()][0] || "");
    remember();
    show();
  } catch (error) {
    if (number === asked) problem(error.message);
  }
}

let pause = 0;
function soon() {
  clearTimeout(pause);
  pause = setTimeout(refresh, 150);
}

// ---------------------------------------------------------------- the row

function showFeatures() {
  const wanted = $("feature-search").value.trim().toLowerCase();
  const all = state.about.features;
  const matching = all.filter((feature) => feature.name.toLowerCase().includes(wanted));
  const form = $("features");
  form.replaceChildren();
  state.invalid.clear();
  for (const feature of matching.slice(0, MOST_FEATURES)) {
    const label = document.createElement("label");
    const name = document.createElement("span");
    name.textContent = feature.name;
    const input = document.createElement(feature.levels ? "select" : "input");
    if (feature.levels) {
      for (const level of ["", ...feature.levels]) input.append(new Option(level || "(not known)", level));
      const now = state.row[feature.name];
      if (now !== null && !feature.levels.includes(now)) input.append(new Option(`${now} (new)`, now));
    } else {
      input.inputMode = "decimal";
      input.placeholder = "not known";
    }
    const value = state.row[feature.name];
    input.value = value === null ? "" : typeof value === "number" ? String(+value.toPrecision(7)) : value;
    input.addEventListener("input", () => {
      const text = input.value.trim();
      const number = Number(text);
      const bad = !feature.levels && text !== "" && !(NUMBER.test(text) && Number.isFinite(number));
      input.setAttribute("aria-invalid", String(bad));
      state.invalid.delete(feature.name);
      if (bad) {
        state.invalid.set(feature.name, `${feature.name} is “${text}”; give a number, or nothing where it is not known`);
        problem(state.invalid.get(feature.name));
        return;
      }
      state.row[feature.name] = text === "" ? null : feature.levels ? text : number;
      $("example").value = ""; // no longer that row
      soon();
    });
    label.append(name, input);
    form.append(label);
  }
  $("feature-find").hidden = all.length <= 12;
  const hidden = matching.length - Math.min(matching.length, MOST_FEATURES);
  $("more-features").hidden = hidden === 0;
  $("more-features").textContent = `${hidden} more; find them by name.`;
}

function showExamples() {
  const choice = $("example");
  choice.replaceChildren(...state.examples.map((_, k) => new Option(`row ${k + 1}`, String(k))));
  choice.value = "";
  $("example-choice").hidden = state.examples.length === 0;
}

$("example").addEventListener("change", () => {
  take(state.examples[Number($("example").value)]);
});

function take(row) {
  state.row = blank(row);
  state.order = null;
  showFeatures();
  refresh();
}

$("upload").addEventListener("change", async () => {
  const file = $("upload").files[0];
  if (!file) return;
  try {
    state.examples = await ask("/rows", { method: "POST", headers: { "Content-Type": "text/csv" }, body: file });
    problem("");
    showExamples();
    $("example").value = "0";
    take(state.examples[0]);
  } catch (error) {
    const text = error.message.replace("upload.csv", file.name); // what the service calls it
    problem(text.includes(file.name) ? text : `${file.name}: ${text}`);
  }
  $("upload").value = "";
});

// ---------------------------------------------------------------- the labels

const percent = (p) => (p === 1 || (p >= 0.0995 && p <= 0.9005) ? (100 * p).toFixed(0) : (100 * p).toFixed(1)) + " %";
const signed = (x) => (Math.abs(x) < 5e-5 ? "" : (x > 0 ? "+" : "−") + (100 * Math.abs(x)).toFixed(1));

function entries() {
  const { probabilities, marginals } = state.answer;
  return state.about.labels.map((label, k) => ({
    name: label.name, p: probabilities[k], was: marginals[k], change: probabilities[k] - marginals[k],
    known: state.known[label.name],
  }));
}

const nextState = { undefined: 1, 1: 0, 0: undefined };
const spoken = { undefined: "not known; press to mark present", 1: "known to be present; press to mark absent",
  0: "known to be absent; press to forget" };

function show() {
  const all = entries();
  const order = $("order").value;
  const by = {
    probability: (a, b) => b.p - a.p,
    change: (a, b) => Math.abs(b.change) - Math.abs(a.change),
    name: (a, b) => a.name.localeCompare(b.name),
  }[order];
  const isKnown = (entry) => entry.known !== undefined;
  if (!state.order) { // kept while labels are clicked: a second click meets the same label
    const sorted = [...all].sort((a, b) => isKnown(b) - isKnown(a) || by(a, b));
    state.order = new Map(sorted.map((entry, place) => [entry.name, place]));
  }
  const wanted = $("search").value.trim().toLowerCase();
  const sorted = all.filter((entry) => entry.name.toLowerCase().includes(wanted))
    .sort((a, b) => state.order.get(a.name) - state.order.get(b.name));
  const focused = document.activeElement && document.activeElement.dataset.label;
  const list = $("labels");
  list.replaceChildren(...sorted.slice(0, MOST_LABELS).map(item));
  const hidden = sorted.length - Math.min(sorted.length, MOST_LABELS);
  $("more-labels").hidden = hidden === 0;
  $("more-labels").textContent = `${hidden} more; find them by name.`;
  if (focused) {
    const again = list.querySelector(`[data-label="${CSS.escape(focused)}"]`);
    if (again) again.focus({ preventScroll: true });
  }
  tell(all);
  requestAnimationFrame(() => setTimeout(drawMap, 0, all)); // bars first
}

function item(entry) {
  const line = document.createElement("li");
  const button = document.createElement("button");
  button.type = "button";
  button.dataset.label = entry.name;
  button.dataset.probability = String(entry.p);
  if (entry.known !== undefined) button.dataset.known = String(entry.known);
  const part = (kind, text = "") => {
    const element = document.createElement("span");
    element.className = kind;
    element.textContent = text;
    return element;
  };
  const track = part("track");
  const fill = part("fill");
  fill.style.width = `${100 * entry.p}%`;
  const was = part("was");
  was.style.left = `calc(${100 * entry.was}% - 1px)`;
  track.append(fill, was);
  track.setAttribute("aria-hidden", "true");
  const change = part(`change ${entry.change > 0 ? "up" : "down"}`, entry.known === undefined ? signed(entry.change) : "known");
  button.append(part("label", entry.name), track, part("percent", percent(entry.p)), change);
  button.append(part("spoken", ` ${spoken[entry.known]}`));
  button.addEventListener("click", () => {
    const next = nextState[state.known[entry.name]];
    if (next === undefined) delete state.known[entry.name];
    else state.known[entry.name] = next;
    refresh();
  });
  line.append(button);
  return line;
}

function tell(all) {
  const known = all.filter((entry) => entry.known !== undefined);
  if (!known.length) {
    $("status").textContent = "From the features alone. Click a label to mark it present, again for absent.";
    return;
  }
  const most = all.filter((entry) => entry.known === undefined && Math.abs(entry.change) >= 5e-4)
    .sort((a, b) => Math.abs(b.change) - Math.abs(a.change)).slice(0, 3)
    .map((entry) => `${entry.name} ${signed(entry.change)}`);
  $("status").textContent = `${known.length} known. ` +
    (most.length ? `Moved most, in points: ${most.join(", ")}.` : "Nothing else moves.");
}

function sortAgain() {
  state.order = null;
  if (state.answer) show();
}
$("order").addEventListener("input", sortAgain);
$("sort").addEventListener("click", sortAgain);
$("search").addEventListener("input", () => state.answer && show());
$("feature-search").addEventListener("input", showFeatures);
$("clear").addEventListener("click", () => {
  state.known = blank();
  state.order = null;
  refresh();
});

// ---------------------------------------------------------------- the map

function wide(values, share) { // room for names beside the outermost points
  const low = Math.min(...values);
  const high = Math.max(...values);
  const room = share * (high - low || 1);
  return [low - room, high + room];
}

function inwards(values) { // names of the outermost points stand towards the middle
  const low = Math.min(...values);
  const span = Math.max(...values) - low || 1;
  return values.map((v) => ((v - low) / span < 0.15 ? "top right" : (v - low) / span > 0.85 ? "top left" : "top center"));
}

function drawMap(all) {
  const labels = state.about.labels;
  if (labels[0].x === undefined) {
    $("map-section").hidden = true;
    return;
  }
  const ink = getComputedStyle(document.body).color;
  const largest = Math.max(0.02, ...all.map((e) => (e.known === undefined ? Math.abs(e.change) : 0)));
  const size = (e) => (e.known !== undefined ? 18 : 7 + 20 * Math.abs(e.change) / largest);
  const colour = (e) => (e.known !== undefined ? ink : e.change > 5e-5 ? "#0072b2" : e.change < -5e-5 ? "#d55e00" : "#8a929c");
  const symbol = (e) => (e.known === 1 ? "star" : e.known === 0 ? "x" : e.change < -5e-5 ? "diamond" : "circle");
  const named = labels.length <= 40;
  const moved = [...all].sort((a, b) => Math.abs(b.change) - Math.abs(a.change)).slice(0, 12);
  const withName = new Set(moved.filter((e) => Math.abs(e.change) > 1e-3).map((e) => e.name));
  Plotly.react("map", [{
    type: "scatter", mode: "markers+text",
    x: labels.map((l) => l.x), y: labels.map((l) => l.y),
    text: all.map((e) => (named || withName.has(e.name) || e.known !== undefined ? e.name : "")),
    textposition: inwards(labels.map((l) => l.x)), textfont: { size: 11, color: ink }, cliponaxis: false,
    hovertext: all.map((e) => `${e.name}<br>${percent(e.p)} (${percent(e.was)} from the features alone)`),
    hoverinfo: "text",
    marker: { size: all.map(size), color: all.map(colour), symbol: all.map(symbol), opacity: 0.9 },
  }], {
    margin: { l: 5, r: 5, t: 5, b: 5 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    xaxis: { visible: false, range: wide(labels.map((l) => l.x), 0.16) },
    yaxis: { visible: false, range: wide(labels.map((l) => l.y), 0.08) }, showlegend: false, hovermode: "closest",
    font: { family: "system-ui, sans-serif" },
  }, { responsive: true, displaylogo: false, displayModeBar: false });
}

// ---------------------------------------------------------------- sharing

function remember() {
  const words = new URLSearchParams({ row: JSON.stringify(state.row) });
  if (Object.keys(state.known).length) words.set("known", JSON.stringify(state.known));
  history.replaceState(null, "", `#${words}`);
}

function recall() {
  const words = new URLSearchParams(location.hash.slice(1));
  const read = (name) => {
    try {
      const found = JSON.parse(words.get(name) || "{}");
      return found && typeof found === "object" && !Array.isArray(found) ? found : {};
    } catch {
      return {};
    }
  };
  const row = read("row");
  const known = read("known");
  for (const { name, levels } of state.about.features) {
    const value = Object.hasOwn(row, name) ? row[name] : undefined;
    if (value === null || (levels ? typeof value === "string" : Number.isFinite(value))) state.row[name] = value;
  }
  const names = new Set(state.about.labels.map((label) => label.name));
  state.known = blank();
  for (const [name, v] of Object.entries(known)) if (names.has(name) && (v === 0 || v === 1)) state.known[name] = v;
}

addEventListener("hashchange", () => { // a link was pasted into the open page
  if (!state.about || !/[#&](row|known)=/.test(location.hash)) return;
  recall();
  $("example").value = "";
  take(state.row);
});
$("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address holds the state
  $("labels").focus();
});

$("share").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(location.href);
    $("status").textContent = "The link is copied; it holds the row and what is known.";
  } catch {
    $("status").textContent = "The address of this page holds the row and what is known: copy it.";
  }
});

$("download").addEventListener("click", () => {
  if (!state.answer) return;
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const lines = entries().map((e) => [quoted(e.name), e.was, e.p, e.known ?? ""].join(","));
  const text = ["label,from_features,given_known,known", ...lines].join("\n") + "\n";
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = "labels.csv";
  link.click();
  URL.revokeObjectURL(link.href);
});

// ---------------------------------------------------------------- beginning

async function begin() {
  try {
    state.about = await ask("/about");
  } catch (error) {
    problem(error.message);
    return;
  }
  $("name").textContent = state.about.name;
  document.title = `${state.about.name}: label explorer`;
  state.examples = state.about.examples;
  for (const feature of state.about.features) state.row[feature.name] = feature.usual;
  if (state.examples.length) state.row = blank(state.examples[0]);
  recall();
  showExamples();
  if (state.examples.length && !location.hash.includes("row=")) $("example").value = "0";
  showFeatures();
  refresh();
}
begin();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => state.answer && show());
