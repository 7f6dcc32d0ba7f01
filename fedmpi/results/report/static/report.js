
"use strict";
// The page's script: curves, toggles, sorting, participation. Text from files only ever goes to textContent.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const root = document.documentElement;

// Theme: the system's, until the button is used.
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
root.dataset.theme = prefersDark.matches ? "dark" : "light";
prefersDark.addEventListener("change", (e) => setTheme(e.matches ? "dark" : "light"));
$("theme").addEventListener("click", () => setTheme(root.dataset.theme === "dark" ? "light" : "dark"));
function setTheme(name) { root.dataset.theme = name; update(); drawWho(); }
const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();

// Colours: Okabe and Ito's for few groups, told apart by colour-blind readers, again for dashed lines; a ramp for many.
const OKABE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A929B"];
const RAMP = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [240, 210, 40]];
function ramp(share) {
  const at = share * (RAMP.length - 1), i = Math.min(Math.floor(at), RAMP.length - 2);
  const lift = root.dataset.theme === "dark" ? 45 : 0;
  const mixed = RAMP[i].map((v, k) => Math.min(255, Math.round(v + (at - i) * (RAMP[i + 1][k] - v) + lift)));
  return `rgb(${mixed})`;
}
function colourOf(group) {
  const count = data.groups.length;
  return count <= 2 * OKABE.length ? OKABE[group % OKABE.length] : ramp(group / (count - 1));
}
const isDashed = (group) => data.groups.length <= 2 * OKABE.length && group >= OKABE.length;

// What is shown.
const groupOf = [];
data.groups.forEach((g, i) => g.runs.forEach((r) => { groupOf[r] = i; }));
const shown = data.runs.map(() => true);
const hasData = (m) => data.runs.some((r) => r.curve[m].some((v) => v !== null));
const metrics = Object.keys(data.metrics).filter(hasData);
const preferred = data.preferred;
const chosen = new Set(metrics.filter((m) => preferred.includes(m)));
if (!chosen.size && metrics.length) chosen.add(metrics[0]);
const manySeeds = data.groups.some((g) => g.runs.length > 1);
$("means").checked = manySeeds;
$("means").disabled = !manySeeds;

// The clock along which curves are drawn: rounds, or another one that all runs hold.
const clocks = Object.keys(data.clocks).filter((c) => c === "rounds" || data.runs.every((r) => c in r.curve));
for (const c of clocks) $("clock").append(new Option(data.clocks[c].label.toLowerCase(), c));
function onClock([rounds, ...values], runs) {
  const clock = $("clock").value;
  if (clock === "rounds") return [rounds, ...values];
  const times = runs.map((r) => new Map(data.runs[r].curve.round.map((t, i) => [t, data.runs[r].curve[clock][i]])));
  const mean = (t) => {
    const known = times.map((of) => of.get(t)).filter((v) => v !== undefined);
    return known.reduce((a, b) => a + b, 0) / known.length;
  };
  return [rounds.map(mean), ...values];
}
const UNITS = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];
function clockText(v) {
  const { unit } = data.clocks[$("clock").value];
  if (!unit || $("clock").value === "seconds") return v.toLocaleString("en", { maximumFractionDigits: 1 }) + (unit && ` ${unit}`);
  const [size, prefix] = UNITS.find(([s]) => v >= s) || [1, ""];
  return `${Number((v / size).toPrecision(4))} ${prefix}${unit}`;
}

// Moving average over a share of the points, as in the paper's figures; gaps stay gaps.
function smooth(values, percent) {
  const half = Math.floor(values.length * percent / 200);
  if (half < 1) return values;
  const sum = [0], count = [0];
  for (const v of values) {
    sum.push(sum[sum.length - 1] + (v === null ? 0 : v));
    count.push(count[count.length - 1] + (v === null ? 0 : 1));
  }
  return values.map((v, i) => {
    if (v === null) return null;
    const a = Math.max(0, i - half), b = Math.min(values.length, i + half + 1);
    return (sum[b] - sum[a]) / (count[b] - count[a]);
  });
}

function runTable(r, metric, percent) {
  const c = data.runs[r].curve, scale = metric.endsWith("accuracy") ? 100 : 1;
  const x = [], y = [];
  c.round.forEach((t, i) => { if (c[metric][i] !== null) { x.push(t); y.push(scale * c[metric][i]); } });
  return [x, smooth(y, percent)];
}

// Mean and standard deviation over the runs of a group, where all that are shown have a value.
function groupTable(runs, metric, percent) {
  const tables = runs.map((r) => runTable(r, metric, percent)).filter((t) => t[0].length);
  if (!tables.length) return null;
  const joined = uPlot.join(tables);
  const x = [], mean = [], low = [], high = [];
  joined[0].forEach((t, i) => {
    const values = joined.slice(1).map((col) => col[i]).filter((v) => v !== null && v !== undefined);
    if (values.length < tables.length) return;
    const m = values.reduce((a, b) => a + b, 0) / values.length;
    const s = values.length > 1 ? Math.sqrt(values.reduce((a, b) => a + (b - m) ** 2, 0) / (values.length - 1)) : 0;
    x.push(t); mean.push(m); low.push(m - s); high.push(m + s);
  });
  return [x, mean, low, high];
}

// One chart for a metric: the joined data, series and bands.
function chartParts(metric) {
  const percent = Number($("smooth").value), tables = [], series = [{}], bands = [];
  const line = (label, group, width) => ({
    label, stroke: colourOf(group), width, spanGaps: true, points: { show: false },
    dash: isDashed(group) ? [6, 4] : [],
  });
  const many = data.runs.length > 30;
  data.groups.forEach((g, i) => {
    const runs = g.runs.filter((r) => shown[r]);
    if ($("means").checked) {
      const t = runs.length ? groupTable(runs, metric, percent) : null;
      if (!t || !t[0].length) return;
      tables.push(onClock(t, runs));
      series.push(line(g.label, i, 2));
      const edge = { stroke: "transparent", width: 0, spanGaps: true, points: { show: false }, isEdge: true };
      series.push({ ...edge, label: "low" }, { ...edge, label: "high" });
      const fill = colourOf(i).startsWith("#") ? colourOf(i) + "38" : colourOf(i).replace(")", ", .15)").replace("rgb", "rgba");
      if (runs.length > 1) bands.push({ series: [series.length - 1, series.length - 2], fill });
    } else {
      for (const r of runs) {
        const t = runTable(r, metric, percent);
        if (!t[0].length) continue;
        tables.push(onClock(t, [r]));
        series.push(line(data.runs[r].label, i, many ? 1 : 1.5));
      }
    }
  });
  const joined = tables.length ? uPlot.join(tables) : [[]];
  return { joined, series: series.slice(0, joined.length), bands };
}

// Where the curves have settled: the first steep fall would hide the rest.
function settledRange(u, low, high) {
  let a = Infinity, b = -Infinity;
  const xs = u.data[0], from = u.scales.x.min ?? xs[0], to = u.scales.x.max ?? Infinity;
  const start = from <= xs[0] ? xs[0] + (xs[xs.length - 1] - xs[0]) / 20 : from;
  for (let s = 1; s < u.data.length; s++) {
    u.data[s].forEach((v, i) => {
      if (v !== null && v !== undefined && xs[i] >= start && xs[i] <= to) { a = Math.min(a, v); b = Math.max(b, v); }
    });
  }
  if (!(a < b)) return low === high || low === null ? [(low ?? 0) - 1, (high ?? 0) + 1] : [low, high];
  const room = 0.05 * (b - a);
  return [a - room, b + room];
}

const number = (v) => v === null ? "" : Math.abs(v) >= 1e5 || (v && Math.abs(v) < 1e-3) ? v.toExponential(2) : String(Number(v.toPrecision(6)));
let charts = [];
function drawCharts() {
  charts.forEach((u) => u.destroy());
  charts = [];
  const place = $("charts");
  place.replaceChildren();
  for (const metric of metrics.filter((m) => chosen.has(m))) {
    const box = document.createElement("div");
    box.className = "chart";
    place.append(box);
    charts.push(makeChart(box, metric));
  }
  resize();
  const percent = Number($("smooth").value);
  $("smooth-text").textContent = percent ? `${percent} % of points` : "off";
}

function makeChart(box, metric) {
  const { joined, series, bands } = chartParts(metric);
  const isLog = $("log").checked && metric.endsWith("loss");
  const tip = document.createElement("div");
  tip.className = "tip";
  const axis = { stroke: css("--quiet"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") } };
  const ticks = (u, values) => values.map((v) => v === null ? "" : clockText(v));
  const y = isLog ? { distr: 3 } : { range: settledRange };
  let near = null;
  const options = {
    title: data.metrics[metric] + (metric.endsWith("accuracy") ? " (%)" : ""),
    width: 500, height: 340, series, bands,
    legend: { show: false },
    scales: { x: { time: false }, y },
    axes: [{ ...axis, label: data.clocks[$("clock").value].label, labelSize: 22, values: ticks, space: 70 }, { ...axis, size: 62, values: (u, vs) => vs.map((v) => v === null ? "" : number(v)) }],
    cursor: { sync: { key: "fedmpi" }, focus: { prox: 24 }, drag: { x: true, y: false }, points: { show: false } },
    focus: { alpha: series.length > 8 ? 0.25 : 1 },
    hooks: {
      setSeries: [(u, i) => { near = i; }],
      setCursor: [(u) => {
        const { idx, left, top } = u.cursor;
        const v = near && idx !== null && idx !== undefined ? u.data[near][idx] : null;
        if (v === null || v === undefined || left < 0 || u.series[near].isEdge) { tip.style.display = "none"; return; }
        tip.textContent = `${u.series[near].label}: ${number(v)} at ${$("clock").value === "rounds" ? "round " : ""}${clockText(u.data[0][idx])}`;
        tip.style.display = "block";
        const right = left > u.over.clientWidth / 2;
        tip.style.left = right ? "auto" : `${left + 75}px`;
        tip.style.right = right ? `${u.over.clientWidth - left + 25}px` : "auto";
        tip.style.top = `${top + 40}px`;
      }],
    },
  };
  const u = new uPlot(options, joined, box);
  u.metric = metric;
  box.append(tip);
  return u;
}
function resize() { charts.forEach((u) => u.setSize({ width: u.root.parentElement.clientWidth, height: 340 })); }
addEventListener("resize", resize);

// Controls.
function checkbox(label, checked, onChange) {
  const box = document.createElement("input");
  box.type = "checkbox";
  box.checked = checked;
  box.addEventListener("change", () => onChange(box.checked));
  const whole = document.createElement("label");
  whole.append(box, label);
  return whole;
}
for (const m of metrics) {
  const label = checkbox(data.metrics[m], chosen.has(m), (on) => { on ? chosen.add(m) : chosen.delete(m); drawCharts(); });
  label.firstChild.dataset.metric = m;
  $("metrics").append(label);
}
for (const id of ["means", "log", "clock"]) $(id).addEventListener("change", drawCharts);
$("smooth").addEventListener("input", drawCharts);

function drawLegend() {
  const wanted = $("find").value.toLowerCase(), list = $("legend");
  list.replaceChildren();
  data.groups.forEach((g, i) => {
    if (!g.label.toLowerCase().includes(wanted)) return;
    const name = document.createElement("span"), swatch = document.createElement("span");
    swatch.className = "swatch";
    swatch.style.borderColor = colourOf(i);
    if (isDashed(i)) swatch.style.borderTopStyle = "dashed";
    name.className = "name";
    name.textContent = g.label;
    const item = document.createElement("li");
    const box = checkbox(name, g.runs.some((r) => shown[r]), (on) => { g.runs.forEach((r) => { shown[r] = on; }); update(); });
    box.insertBefore(swatch, name);
    item.append(box);
    if (g.runs.length > 1) {
      const seeds = document.createElement("ul");
      for (const r of g.runs) {
        const label = data.runs[r].label.split(", ").pop();
        const entry = document.createElement("li");
        entry.append(checkbox(label, shown[r], (on) => { shown[r] = on; update(); }));
        seeds.append(entry);
      }
      const more = document.createElement("details");
      const summary = document.createElement("summary");
      summary.textContent = `${g.runs.length} seeds`;
      more.open = openSeeds.has(i);
      more.addEventListener("toggle", () => { more.open ? openSeeds.add(i) : openSeeds.delete(i); });
      more.append(summary, seeds);
      item.append(more);
    }
    list.append(item);
  });
}
const openSeeds = new Set();
function update() { drawLegend(); drawCharts(); }
function setAll(on) {
  const wanted = $("find").value.toLowerCase();
  data.groups.forEach((g) => { if (g.label.toLowerCase().includes(wanted)) g.runs.forEach((r) => { shown[r] = on; }); });
  update();
}
$("all").addEventListener("click", () => setAll(true));
$("none").addEventListener("click", () => setAll(false));
$("find").addEventListener("input", drawLegend);

// Sorting: numbers by their full value, missing ones last.
document.querySelectorAll("table.sortable").forEach((table) => {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending", body = table.tBodies[0];
    heads.forEach((h) => h.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const value = (row) => {
      const cell = row.cells[column];
      return "v" in cell.dataset ? (cell.dataset.v === "" ? null : Number(cell.dataset.v)) : cell.textContent;
    };
    const rows = [...body.rows].sort((p, q) => {
      const a = value(p), b = value(q);
      if (a === null || b === null) return (a === null) - (b === null);
      const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
      return up ? order : -order;
    });
    body.append(...rows);
  }));
});

// Participation: a picture of clients over rounds, and how often each took part.
function drawWho() {
  if (!$("who")) return;
  const picture = data.pictures[data.pictureOf[Number($("who").value)]];
  const part = picture[$("span").value] || picture.whole;
  const { rows } = picture, { columns, rounds } = part;
  const levels = Uint8Array.from(atob(part.levels), (c) => c.charCodeAt(0));
  const canvas = $("raster"), context = canvas.getContext("2d");
  canvas.width = columns;
  canvas.height = rows;
  const image = context.createImageData(columns, rows), dark = root.dataset.theme === "dark";
  const from = dark ? [20, 23, 27] : [255, 255, 255], to = dark ? [120, 200, 255] : [0, 60, 110];
  for (let r = 0; r < rows; r++) for (let c = 0; c < columns; c++) {
    const share = levels[r * columns + c] / 255, at = 4 * ((rows - 1 - r) * columns + c);
    for (let k = 0; k < 3; k++) image.data[at + k] = from[k] + share * (to[k] - from[k]);
    image.data[at + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  const bars = $("often"), pen = bars.getContext("2d"), most = Math.max(...picture.often, 1);
  bars.width = 300;
  bars.height = 600;
  pen.fillStyle = dark ? "#e0903a" : "#b33c00";
  picture.often.forEach((n, r) => {
    const top = Math.round(600 - (r + 1) * 600 / rows), bottom = Math.round(600 - r * 600 / rows);
    pen.fillRect(0, top, 300 * n / most, Math.max(bottom - top - 2, 1));
  });
  const text = (v) => v.toLocaleString("en");
  $("last-round").textContent = `round ${text(part.first + rounds)}`;
  $("first-round").textContent = `round ${text(part.first)}`;
  $("most-often").textContent = `${text(Math.round(most))} times`;
  $("who-text").textContent = `${text(picture.clients)} clients; each took part `
    + (picture.least === picture.most ? `${text(picture.least)} times` : `${text(picture.least)} to ${text(picture.most)} times`)
    + (picture.never ? `, ${text(picture.never)} of them never` : "");
}
if ($("who")) {
  data.runs.forEach((run, r) => {
    if (data.pictureOf[r] !== null) $("who").append(new Option(run.label, r));
  });
  $("who").addEventListener("change", drawWho);
  $("span").addEventListener("change", drawWho);
}

update();
drawWho();
