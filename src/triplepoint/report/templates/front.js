"use strict";
// Front page: the table of runs, its comparison, and enlarged figures. All text goes in as text, never as HTML.
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const at = id => document.getElementById(id);
const written = value => value === undefined || value === null ? ""
  : typeof value === "string" ? value
  : Math.abs(value) >= 10000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4)));
const make = (tag, text, attributes = {}) => {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
};

const link = cell => make("a", `${cell.getData().model} ${cell.getData().layout}`, { href: cell.getData().link });
const filtered = (title, field, width, more = {}) => ({
  title, field, width, headerFilter: "input", headerFilterParams: { elementAttributes: { "aria-label": `${title} contains` } },
  formatter: cell => make("span", written(cell.getValue())), ...more,
});
const number = ({ name, label, unit, about }) => ({
  title: unit ? `${label} (${unit})` : label, field: name, width: 118, hozAlign: "right", sorter: "number", sorterParams: { alignEmptyValues: "bottom" },
  headerTooltip: about, headerFilter: "input", headerFilterFunc: atLeast, headerFilterPlaceholder: "≥, or < 5",
  headerFilterParams: { elementAttributes: { "aria-label": `${label} at least, or with < in front below` } },
  formatter: cell => make("span", written(cell.getValue())), accessorPrint: written,
});
function atLeast(wanted, value) {
  const limit = Number(String(wanted).replace(/[<>≥≤= ]/g, ""));
  if (Number.isNaN(limit)) return true;
  return value !== undefined && (/^\s*[<≤]/.test(wanted) ? value <= limit : value >= limit);
}
// A spreadsheet takes a cell that begins with one of these signs for a formula.
const plain = value => typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;

const rows = data.rows.map((row, place) => ({ ...row, place, link: `${data.pages}/${encodeURIComponent(row.page)}.html` }));
const columns = [
  { formatter: "rowSelection", titleFormatter: "rowSelection", titleFormatterParams: { rowRange: "active" }, hozAlign: "center", headerSort: false, frozen: true, width: 40, print: false, download: false },
  filtered("Run", "title", window.innerWidth < 640 ? 150 : 250, { frozen: true, formatter: link, print: false }),
  filtered("Model", "model", 130, { visible: false, print: true, download: true }), filtered("Layout", "layout", 130, { visible: false, print: true, download: true }),
  filtered("Setting", "setting", 240), filtered("Cluster", "cluster", 110), filtered("Origin", "origin", 100),
  filtered("Status", "status", 110, { tooltip: (_, cell) => cell.getData().reason || false }),
  ...data.shown.map(number),
  filtered("Studies", "studies", 150, { print: false }), filtered("Id", "run", 200, { print: false, visible: false, download: true }),
];
const table = new Tabulator("#table", {
  data: rows, columns, index: "place", height: Math.min(36 * rows.length + 130, 640), layout: "fitData", selectableRows: true, selectableRowsRollingSelection: false,
  columnDefaults: { vertAlign: "middle", accessorDownload: plain }, printAsHtml: true, printRowRange: "active", printStyled: false, placeholder: "No run matches",
  groupHeader: (value, count) => { const made = make("span", `${value || "none"} `); made.append(make("span", `(${count} run${count === 1 ? "" : "s"})`)); return made; },
});

table.on("tableBuilt", () => {
  keyboard();
  document.documentElement.dataset.ready = "yes";
});
// Headings take the focus, and Enter or space sorts as a click does.
function keyboard() {
  for (const heading of document.querySelectorAll("#table .tabulator-col.tabulator-sortable")) {
    heading.tabIndex = 0;
    heading.addEventListener("keydown", event => {
      if (event.target === heading && (event.key === "Enter" || event.key === " ")) { event.preventDefault(); heading.querySelector(".tabulator-col-content").click(); }
    });
  }
}
table.on("dataFiltered", (_, found) => { at("told").value = found.length === rows.length ? "" : `${found.length} of ${rows.length} runs`; });
table.on("cellClick", (event, cell) => {
  if (cell.getField() === undefined || event.target.closest("a, input, button") || String(getSelection())) return;
  event.stopImmediatePropagation();
  location.href = cell.getData().link;
});
table.on("rowSelectionChanged", found => {
  at("compare").disabled = found.length < 2;
  at("unmark").disabled = !found.length;
  at("compare").textContent = found.length < 2 ? "Compare marked runs" : `Compare ${found.length} marked runs`;
});
at("search").addEventListener("input", event => {
  const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
  const fields = ["title", "setting", "cluster", "origin", "status", "studies", "run", "reason", "task"];
  table.setFilter(row => words.every(word => fields.some(field => String(row[field]).toLowerCase().includes(word))));
});
at("group").addEventListener("change", event => table.setGroupBy(event.target.value || false));
at("unmark").addEventListener("click", () => table.deselectRow());
at("download").addEventListener("click", () => table.download("csv", "runs.csv", { bom: true }));
at("compare").addEventListener("click", () => { compare(table.getSelectedData()); at("comparison").showModal(); });

function difference(value, first, unit) {
  if (value === undefined || first === undefined) return "";
  const signed = (change, word) => `${change >= 0 ? "+" : "−"}${written(Math.abs(Number(change.toPrecision(3))))} ${word}`;
  if (unit === "%") return signed(value - first, "points");
  if (unit === "°C") return signed(value - first, "K");
  return first ? signed((value / first - 1) * 100, "%") : "";
}
function compare(found) {
  const made = make("table", "", { class: "plain" }), head = make("tr", "");
  head.append(make("th", "Compared", { scope: "col" }));
  for (const row of found) { const heading = make("th", "", { scope: "col" }); heading.append(make("a", row.title, { href: row.link })); head.append(heading); }
  made.createTHead().append(head);
  const body = made.createTBody();
  const line = (label, cells, attributes = {}) => { const row = make("tr", "", attributes); row.append(make("th", label, { scope: "row" })); for (const cell of cells) row.append(cell); body.append(row); };
  const heading = text => { const row = make("tr", "", { class: "group" }); row.append(make("th", text, { colspan: found.length + 1, scope: "rowgroup" })); body.append(row); };
  heading("Settings that differ");
  for (const { label, values } of data.settings) {
    const texts = found.map(row => values[row.place]);
    if (new Set(texts).size > 1) line(label, texts.map(text => make("td", text)));
  }
  for (const field of ["origin", "status"]) if (new Set(found.map(row => row[field])).size > 1) line(field, found.map(row => make("td", row[field])));
  heading("Quantities");
  for (const { name, label, unit } of data.compared) {
    if (!found.some(row => name in row)) continue;
    line(unit ? `${label} (${unit})` : label, found.map((row, place) => cellOf(row, found[0], name, unit, place)));
  }
  at("compared").replaceChildren(made);
  if (found.length !== 2) return;
  const why = make("p", "Where the step's time went, kernel by kernel: ", { class: "soft" });
  why.append(make("code", `triplepoint compare ${found[0].run} ${found[1].run}`));
  at("compared").append(why);
}
function cellOf(row, first, name, unit, place) {
  const cell = make("td", written(row[name]), { class: "number" }), ends = row[`${name}:ends`], firsts = first[`${name}:ends`];
  if (ends) cell.append(make("br", ""), make("span", `(${written(ends[0])} to ${written(ends[1])})`, { class: "soft" }));
  if (place && row[name] !== undefined) {
    const overlap = ends && firsts && ends[0] <= firsts[1] && firsts[0] <= ends[1] ? ", overlap" : "";
    cell.append(make("br", ""), make("span", difference(row[name], first[name], unit) + overlap));
  }
  return cell;
}

// At once, not by the browser's DecompressionStream: a page printed as soon as it is loaded has all figures.
for (const figure of document.querySelectorAll(".packed")) {
  const bytes = Uint8Array.from(atob(figure.dataset.svg), sign => sign.charCodeAt(0));
  // The report's own figure, cleaned when it was written: nothing in it can act.
  figure.outerHTML = fflate.strFromU8(fflate.gunzipSync(bytes));
}

// The picture itself moves into the dialog and back, so that its identifiers stay unique.
const large = at("large");
let shown, home;
for (const button of document.querySelectorAll(".picture")) button.addEventListener("click", () => {
  shown = button.firstElementChild;
  home = button;
  home.style.height = `${home.offsetHeight}px`;
  large.lastElementChild.replaceChildren(shown);
  large.showModal();
});
large.addEventListener("close", () => { home.append(shown); home.style.height = ""; home.focus(); });
large.addEventListener("click", event => { if (event.target === large) large.close(); });
// A link to a figure unfolds it. What is folded away is told on paper, but for the rows of claims and further findings.
const folds = [...document.querySelectorAll("details.fold")];
const unfold = () => { const found = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)))?.querySelector("details.fold"); if (found) { found.open = true; found.scrollIntoView(); } };
addEventListener("hashchange", unfold);
unfold();
for (const link of document.querySelectorAll('a[href^="#"]')) link.addEventListener("click", () => setTimeout(unfold));
at("unfold")?.addEventListener("click", event => {
  const closed = folds.some(fold => !fold.open && fold.closest("#figures"));
  for (const fold of folds) if (fold.closest("#figures")) fold.open = closed;
  event.target.textContent = closed ? "Close all figures" : "Open all figures";
});
addEventListener("beforeprint", () => { for (const found of [...folds, ...document.querySelectorAll("figcaption details")]) found.open = true; });
})();
