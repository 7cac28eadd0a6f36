"use strict";
// Page of a run: its data are loaded and unpacked, then drawn by uPlot on one axis of time.
const triplepoint = (() => {
const at = id => document.getElementById(id);
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const dark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => dark.matches && !matchMedia("print").matches;
const ink = () => isDark() ? "#e8e8ea" : "#1b1b1f", faint = () => isDark() ? "#3a3f48" : "#d5d8dd";
// Colours come with the data, each for light and for dark ground.
const shade = pair => pair[isDark() ? 1 : 0];
const LANE = 13, GUTTER = 84, AXIS = { time: false, range: (_, from, to) => [from, to] };
let content, charts = [], whole = [0, 1], view, rows = [];

async function receive(packed) {
  const bytes = Uint8Array.from(atob(packed), sign => sign.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  content = JSON.parse(await new Response(stream).text());
  at("loading").remove();
  prepare();
  choices();
  draw();
  kernels();
  document.documentElement.dataset.ready = "yes";
}

const summed = steps => { let sum = 0; return steps.map(step => sum += step); };

function prepare() {
  const { telemetry, lanes } = content;
  const times = telemetry.times.map(steps => summed(steps).map(tick => tick / 1e6));
  for (const panel of telemetry.panels) for (const line of panel.lines) {
    const breaks = new Set(line.breaks), values = summed(line.values);
    line.x = []; line.y = [];
    times[line.time].forEach((time, place, all) => {
      if (breaks.has(place)) { line.x.push((time + all[place - 1]) / 2); line.y.push(null); }
      line.x.push(time);
      line.y.push(values[place] * panel.resolution * (panel.unit === "1" ? 100 : 1));
    });
  }
  const ends = telemetry.steps.flatMap(step => [step[2], step[3]]).concat(times.flatMap(one => [one[0], one[one.length - 1]]));
  if (lanes) {
    const profiled = telemetry.steps.find(step => step[1] === "profiled");
    lanes.zero = profiled ? profiled[2] : 0;
    const unit = lanes.unit_ns / 1e9;
    lanes.rows = lanes.lanes.map(([rank, starts, lengths, looks]) => {
      const start = summed(starts).map(tick => lanes.zero + tick * unit);
      return { rank, start, end: start.map((time, place) => time + lengths[place] * unit), looks, lane: lanes.looks[looks[0]][0] };
    });
    ends.push(lanes.zero, lanes.zero + lanes.end * unit);
  }
  whole = [Math.min(...ends), Math.max(...ends)];
  view = whole;
}

function choices() {
  const names = [...new Set(content.telemetry.panels.flatMap(panel => panel.lines.map(line => line.name)))];
  const add = (select, value, text) => select.append(Object.assign(document.createElement("option"), { value, textContent: text }));
  add(at("devices"), "", "lowest, mean and highest");
  for (const node of new Set(names.map(name => name.split(" ").slice(0, 2).join(" ")))) add(at("devices"), `${node} `, `all of ${node}`);
  for (const name of names) add(at("devices"), name, name);
  const ranks = content.lanes ? [...new Set(content.lanes.rows.map(row => row.rank))] : [];
  add(at("ranks"), "first", "first of every pipeline stage");
  add(at("ranks"), "all", `all ${ranks.length} traced`);
  for (const rank of ranks) add(at("ranks"), rank, `rank ${rank}`);
  at("ranks").parentElement.hidden = !content.lanes;
  at("devices").parentElement.hidden = names.length < 2;
  for (const id of ["devices", "ranks"]) at(id).addEventListener("change", draw);
}

function chosenRows() {
  const wanted = at("ranks").value, seen = new Set(), { rows: all, looks } = content.lanes;
  if (wanted === "all") return all;
  if (wanted !== "first") return all.filter(row => String(row.rank) === wanted);
  const firsts = new Set();
  for (const row of all) {
    const stage = row.lane === "phase" ? looks[row.looks.find(look => looks[look][3] !== null) ?? row.looks[0]][3] : null;
    if (row.lane === "phase" && !seen.has(stage)) { seen.add(stage); firsts.add(row.rank); }
  }
  if (!firsts.size) firsts.add(all[0].rank);
  return all.filter(row => firsts.has(row.rank));
}

function draw() {
  for (const chart of charts) chart.destroy();
  charts = [];
  at("charts").replaceChildren();
  rows = content.lanes ? chosenRows() : [];
  for (const panel of content.telemetry.panels) telemetry(panel);
  if (rows.length) lanes();
  show(...view);
}

function box(title, label, id) {
  const made = document.createElement("div"), heading = document.createElement("h3"), inner = document.createElement("div");
  made.className = "chart"; heading.textContent = title; if (id) inner.id = id;
  inner.setAttribute("role", "img"); inner.setAttribute("aria-label", label);
  made.append(heading, inner);
  at("charts").append(made);
  return inner;
}

function options(height, more) {
  return {
    width: Math.max(at("charts").clientWidth, 280), height,
    cursor: { sync: { key: "run", setSeries: false }, drag: { x: true, y: false, setScale: true }, focus: { prox: 20 }, bind: { dblclick: () => () => { show(...whole); return null; } } },
    scales: { x: AXIS },
    ...more,
    axes: [{ stroke: ink, grid: { stroke: faint }, ticks: { stroke: faint } }, more.axis],
    hooks: { setScale: [(chart, key) => { if (key === "x") moved(chart); }], drawClear: [ground], ...more.hooks },
  };
}

function moved(chart) {
  const { min, max } = chart.scales.x, wanted = shown(chart);
  if (min === null || (min === wanted[0] && max === wanted[1])) return;
  show(min, max);
}
// What a chart shows of a stretch: the timeline always shows something of the step it was traced in.
function shown(chart) {
  if (!chart.traced) return view;
  const [start, end] = chart.traced, [from, to] = view;
  return from < end && to > start && to - from < 2 * (end - start) ? view : chart.traced;
}
function ground(chart) {
  const context = chart.ctx, { left, top, width, height } = chart.bbox;
  for (const [number, kind, start, end] of content.telemetry.steps) {
    const from = Math.max(chart.valToPos(start, "x", true), left), to = Math.min(chart.valToPos(end, "x", true), left + width);
    if (to <= from) continue;
    const pair = content.telemetry.grounds[kind];
    if (pair && !chart.traced) { context.fillStyle = `${shade(pair)}2e`; context.fillRect(from, top, to - from, height); }
    // Steps are marked by a line at their start, and by their number where there is room.
    if (to - from < 4 * devicePixelRatio) continue;
    context.fillStyle = faint();
    context.fillRect(from, top, devicePixelRatio, height);
    if (to - from < 22 * devicePixelRatio || chart.traced) continue;
    context.fillStyle = ink(); context.font = `${10 * devicePixelRatio}px system-ui, sans-serif`; context.textAlign = "left"; context.textBaseline = "top";
    context.fillText(String(number), from + 3 * devicePixelRatio, top + 2 * devicePixelRatio);
  }
}

function telemetry(panel) {
  const wanted = at("devices").value, found = panel.lines.filter(line => !wanted || (wanted.endsWith(" ") ? line.name.startsWith(wanted) : line.name === wanted));
  if (!found.length) return;
  const unit = panel.unit === "1" ? "%" : panel.unit, several = found.length > 1 && !wanted;
  const joined = found.length > 1 ? uPlot.join(found.map(line => [line.x, line.y])) : [found[0].x, found[0].y];
  const values = several ? summary(joined) : joined;
  const names = several ? ["highest", "mean", "lowest"] : found.map(line => line.name);
  const flat = values[1].filter(value => value !== null), highest = flat.reduce((one, other) => Math.max(one, other), -Infinity);
  const label = `${panel.title} over time: ${names.length > 3 ? `${names.length} devices` : names.join(", ")}; highest ${highest.toPrecision(4)} ${unit}. Values are in telemetry.parquet.`;
  const colour = place => several || found.length === 1 ? shade(panel.colour) : shade(content.telemetry.colours[place % content.telemetry.colours.length]);
  const series = names.map((name, place) => ({ label: name, stroke: () => colour(place), width: several && place !== 1 ? 0.5 : 1.6, spanGaps: false, points: { show: false }, value: (_, value) => value === null ? "–" : `${value.toPrecision(4)} ${unit}` }));
  charts.push(new uPlot(options(190, {
    series: [{ label: "time (s)", value: (_, value) => value === null ? "–" : value.toFixed(3) }, ...series],
    bands: several ? [{ series: [1, 3], fill: () => `${shade(panel.colour)}33` }] : [],
    axis: { stroke: ink, grid: { stroke: faint }, ticks: { stroke: faint }, size: GUTTER, label: unit, labelSize: 18 },
    legend: { show: names.length <= 8 },
  }), values, box(`${panel.title} (${unit})`, label)));
}

// Nodes are not read at the same times: each keeps its last value until its next.
function summary([x, ...lines]) {
  const last = lines.map(() => null), made = [[], [], []];
  x.forEach((_, place) => {
    let low = Infinity, high = -Infinity, sum = 0, count = 0, ended = false;
    lines.forEach((line, number) => {
      const value = line[place];
      if (value === null) { last[number] = null; ended = true; } else if (value !== undefined) last[number] = value;
      if (last[number] !== null) { low = Math.min(low, last[number]); high = Math.max(high, last[number]); sum += last[number]; count++; }
    });
    const shown = count && !(ended && count < lines.length / 2);
    [high, sum / count, low].forEach((value, number) => made[number].push(shown ? value : null));
  });
  return [x, ...made];
}

function lanes() {
  const height = rows.length * LANE + 50;
  const names = rows.map((row, place) => place && rows[place - 1].rank === row.rank ? row.lane : `${row.rank} ${row.lane}`);
  const label = `Timeline of the profiled step, ${new Set(rows.map(row => row.rank)).size} ranks: phases, computation, communication and copies. Spans are in timeline.parquet.`;
  const chart = new uPlot(options(height, {
    series: [{}, { show: true, stroke: "transparent", points: { show: false } }], legend: { show: false },
    scales: { x: AXIS, y: { range: () => [0, rows.length], dir: -1 } },
    axis: { stroke: ink, grid: { show: false }, ticks: { show: false }, size: GUTTER + 18, splits: () => names.map((_, place) => place + 0.5), values: () => names, font: "10px system-ui, sans-serif" },
    hooks: { draw: [spans], setCursor: [tell] },
  }), [whole, [0, 0]], box("Timeline of the profiled step", label, "lanes-scroll"));
  chart.traced = [content.lanes.zero, content.lanes.zero + content.lanes.end * content.lanes.unit_ns / 1e9];
  charts.push(chart);
  legend();
}

// First place in a sorted list whose value is above a limit.
function above(sorted, limit) {
  let low = 0, high = sorted.length;
  while (low < high) { const middle = (low + high) >> 1; if (sorted[middle] > limit) high = middle; else low = middle + 1; }
  return low;
}
function spans(chart) {
  const { ctx, bbox } = chart, { colours } = content.lanes, ratio = devicePixelRatio, { min, max } = chart.scales.x;
  ctx.save();
  ctx.beginPath(); ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height); ctx.clip();
  rows.forEach((row, number) => {
    const top = chart.valToPos(number, "y", true) + ratio, tall = (LANE - 2) * ratio;
    let drawn = -Infinity;
    for (let place = Math.max(above(row.start, min) - 1, 0); place < row.start.length && row.start[place] <= max; place++) {
      const from = chart.valToPos(row.start[place], "x", true), to = Math.max(chart.valToPos(row.end[place], "x", true), from + 1);
      if (to <= drawn) continue;
      ctx.fillStyle = shade(colours[row.looks[place]]);
      ctx.fillRect(Math.max(from, drawn), top, to - Math.max(from, drawn), tall);
      drawn = to;
    }
  });
  ctx.restore();
}
function tell(chart) {
  const { left, top } = chart.cursor;
  if (left < 0) return;
  const row = rows[Math.floor(chart.posToVal(top, "y"))], time = chart.posToVal(left, "x");
  if (!row) return;
  const place = above(row.start, time) - 1;
  if (place < 0 || row.end[place] < time) return;
  const [lane, label, group, stage, microbatch] = content.lanes.looks[row.looks[place]];
  const words = [`rank ${row.rank}, ${lane}: ${label}`, group, stage === null ? null : `stage ${stage}`, microbatch === null ? null : `micro-batch ${microbatch}`];
  at("reading").textContent = `${words.filter(Boolean).join(", ")}, ${((row.end[place] - row.start[place]) * 1e3).toPrecision(4)} ms from ${row.start[place].toFixed(6)} s`;
}
function legend() {
  const shown = new Map();
  for (const [number, [lane, label]] of content.lanes.looks.entries()) shown.set(`${lane}: ${label}`, content.lanes.colours[number]);
  at("legend").replaceChildren(...[...shown].map(([text, [light, night]]) => {
    const made = document.createElement("span"), chip = document.createElement("i");
    chip.style.background = `light-dark(${light},${night})`;
    made.append(chip, text);
    return made;
  }));
}

function show(from, to) {
  const least = 1e-6;
  from = Math.max(Math.min(from, to - least), whole[0]);
  to = Math.min(Math.max(to, from + least), whole[1]);
  view = [from, to];
  for (const chart of charts) { const [min, max] = shown(chart); chart.batch(() => chart.setScale("x", { min, max })); }
  at("range").value = `${from.toFixed(3)} to ${to.toFixed(3)} s`;
}
function press(key) {
  const [from, to] = view, middle = (from + to) / 2, half = (to - from) / 2;
  if (key === "Home") show(...whole);
  else if (key === "+" || key === "=") show(middle - half / 2, middle + half / 2);
  else if (key === "-") show(middle - half * 2, middle + half * 2);
  else if (key === "ArrowLeft") { const step = Math.min(half / 2, from - whole[0]); show(from - step, to - step); }
  else if (key === "ArrowRight") { const step = Math.min(half / 2, whole[1] - to); show(from + step, to + step); }
  else return false;
  return true;
}
function toSteps(kind) {
  const found = content.telemetry.steps.filter(step => step[1] === kind);
  if (found.length) show(found[0][2], found[found.length - 1][3]);
}

function kernels() {
  if (!content.kernels.length) return;
  at("kernels").hidden = false;
  const number = (title, field) => ({ title, field, hozAlign: "right", sorter: "number", width: 120 });
  const text = (title, field, width) => ({ title, field, width, headerFilter: "input", formatter: cell => document.createTextNode(cell.getValue()), headerFilterParams: { elementAttributes: { "aria-label": `${title} contains` } } });
  new Tabulator("#kernel-table", {
    data: content.kernels, height: Math.min(36 * content.kernels.length + 90, 520), layout: "fitData", printAsHtml: true, printStyled: false,
    columns: [text("Kernel", "name", Math.min(innerWidth / 2, 420)), text("Class", "class", 110), text("Kind", "kind", 130), text("Group", "group", 90), number("Per rank and step", "count"), number("Sum (ms)", "ms"), number("Share (%)", "share"), number("Mean (µs)", "mean_us"), number("Shortest (µs)", "min_us"), number("Longest (µs)", "max_us")],
  });
}

at("charts").addEventListener("keydown", event => { if (!event.ctrlKey && !event.metaKey && content && press(event.key)) event.preventDefault(); });
for (const button of document.querySelectorAll("[data-key]")) button.addEventListener("click", () => press(button.dataset.key));
for (const button of document.querySelectorAll("[data-kind]")) button.addEventListener("click", () => toSteps(button.dataset.kind));
dark.addEventListener("change", () => content && draw());
addEventListener("resize", () => { for (const chart of charts) chart.setSize({ width: Math.max(at("charts").clientWidth, 280), height: chart.height }); });
const source = document.createElement("script");
source.src = at("recording").dataset.source;
source.onerror = () => { at("loading").textContent = `${at("recording").dataset.source} is missing beside this page; make the report again.`; };
setTimeout(() => document.body.append(source));
return { receive };
})();
