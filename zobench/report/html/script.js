"use strict";

/* ---- making elements: text only ever enters as text ---- */

const SVG = "http://www.w3.org/2000/svg";

function make(tag, attributes, ...children) {
  const node = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) node.setAttribute(name, value);
  node.append(...children.map((child) => (child instanceof Node ? child : document.createTextNode(child))));
  return node;
}

/* ---- sorting ---- */

const NUMBER = /^\s*[<>~≈×x(]*([-+−]?)((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)(e[-+]?\d+)?/i;
const NOTHING = new Set(["", "-", "—", "·", "n/a"]);
const ORDER = { none: "ascending", ascending: "descending", descending: "none" };

function sortKey(cell) {
  const copy = cell.cloneNode(true);
  for (const mark of copy.querySelectorAll("sup")) mark.remove();
  const text = (cell.dataset.sort ?? copy.textContent).trim();
  if (NOTHING.has(text) || cell.classList.contains("blank")) return { rank: 2 };
  const found = NUMBER.exec(text);
  if (!found) return { rank: 1, text };
  const size = Number(found[2].replaceAll(",", "") + (found[3] ?? ""));
  return { rank: 0, value: found[1] === "-" || found[1] === "−" ? -size : size };
}

function compare(a, b, sign) {
  if (a.rank !== b.rank) return a.rank - b.rank;
  if (a.rank === 0) return sign * (a.value - b.value);
  return a.rank === 1 ? sign * a.text.localeCompare(b.text, "en", { numeric: true }) : 0;
}

function makeSortable(table) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  const headers = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  headers.forEach((header, column) => {
    header.querySelector(".sort").addEventListener("click", () => {
      const order = ORDER[header.getAttribute("aria-sort") ?? "none"];
      for (const other of headers) other.removeAttribute("aria-sort");
      header.setAttribute("aria-sort", order);
      const rows = original.map((row) => ({ row, key: sortKey(row.cells[column]) }));
      if (order !== "none") rows.sort((a, b) => compare(a.key, b.key, order === "ascending" ? 1 : -1));
      body.append(...rows.map(({ row }) => row));
    });
  });
}

/* ---- the list of runs ---- */

function makeFilters(list) {
  const rows = [...list.tBodies[0].rows].map((row) => ({ row, text: row.textContent.toLowerCase() }));
  const find = document.getElementById("find");
  const selects = [...document.querySelectorAll(".filters select")];
  const update = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const { row, text } of rows) {
      const chosen = selects.every((select) => !select.value || row.dataset[select.dataset.column] === select.value);
      row.hidden = !(chosen && words.every((word) => text.includes(word)));
      count += row.hidden ? 0 : 1;
    }
    const all = count === rows.length;
    document.getElementById("shown").textContent = all ? `${count} runs` : `${count} of ${rows.length} runs`;
  };
  find.addEventListener("input", update);
  for (const select of selects) select.addEventListener("change", update);
  update();
}

/* ---- JSON as the result's file has it: numbers are copied, never parsed ---- */

const TOKEN = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;
const SHOWN = { "\\u003c": "<", "\\u003e": ">", "\\u0026": "&" };

function pretty(compact) {
  const tokens = compact.match(TOKEN);
  let depth = 0;
  let text = "";
  tokens.forEach((token, i) => {
    const newline = () => "\n" + " ".repeat(depth);
    if ((token === "}" || token === "]") && !"{[".includes(tokens[i - 1])) {
      depth -= 1;
      text += newline() + token;
    } else if ((token === "{" || token === "[") && !"}]".includes(tokens[i + 1])) {
      depth += 1;
      text += token + newline();
    } else if (token === ",") text += token + newline();
    else if (token === ":") text += ": ";
    else text += token.replace(/\\(?:u[0-9a-f]{4}|.)/g, (escape) => SHOWN[escape] ?? escape);
  });
  return text + "\n";
}

/* ---- numbers and axes ---- */

const MIB = 1048576;

function short(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

function extent(values, fromZero) {
  let low = fromZero ? 0 : Math.min(...values);
  let high = Math.max(...values, low);
  const room = high > low ? (high - low) * 0.06 : Math.abs(high) * 0.05 || 1;
  if (!fromZero) low -= room;
  return [low, high + room];
}

function frame(width, height, margin, xRange, yRange) {
  const [x0, x1] = xRange;
  const [y0, y1] = yRange;
  const right = width - margin.right;
  const bottom = height - margin.bottom;
  return {
    x: (value) => margin.left + ((value - x0) / (x1 - x0 || 1)) * (right - margin.left),
    y: (value) => bottom - ((value - y0) / (y1 - y0 || 1)) * (bottom - margin.top),
    left: margin.left, right, top: margin.top, bottom,
  };
}

function xAxis(svg, area, values, label, height) {
  svg.append(make("svg:line", { class: "axis", x1: area.left, x2: area.right, y1: area.bottom, y2: area.bottom }));
  for (const value of values) {
    svg.append(make("svg:text", { x: area.x(value), y: area.bottom + 15, "text-anchor": "middle" }, short(value)));
  }
  svg.append(make("svg:text", { x: area.right, y: height - 2, "text-anchor": "end" }, label));
}

/* A section whose drawing of `count` things follows the width of its place. */
function plot(title, look, count, draw) {
  const host = make("div");
  const section = make("section", look, make("h3", {}, title), host);
  if (count === 0) {
    host.append(make("p", { class: "remark" }, "Not recorded."));
    return section;
  }
  let drawn = 0;
  new ResizeObserver(() => {
    const width = Math.floor(host.clientWidth);
    if (width === drawn || width === 0) return;
    drawn = width;
    host.replaceChildren(...draw(width));
  }).observe(host);
  return section;
}

/* ---- a chart of lines: series = [{name, color, points: [[x, y, open]]}] ---- */

function lineChart({ series, ...about }) {
  const drawn = series.map((each) => ({ ...each, points: each.points.filter(([x, y]) => x !== null && y !== null) }));
  const all = drawn.flatMap((each) => each.points);
  return plot(about.title, {}, all.length, (width) => drawLines(width, about, drawn, all));
}

function drawLines(width, about, series, all) {
  const height = 210;
  const xs = all.map(([x]) => x);
  const xRange = [Math.min(...xs), Math.max(...xs)];
  if (xRange[0] === xRange[1]) { xRange[0] -= 0.5; xRange[1] += 0.5; }
  const yRange = extent(all.map(([, y]) => y), about.fromZero);
  const area = frame(width, height, { left: 58, right: 12, top: 20, bottom: 34 }, xRange, yRange);
  const svg = make("svg:svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, height, tabindex: 0, role: "img",
    "aria-label": `${about.title}, ${all.length} values from ${short(Math.min(...all.map(([, y]) => y)))} to ` +
      `${short(Math.max(...all.map(([, y]) => y)))}; arrow keys read them` });
  svg.append(make("svg:text", { x: 0, y: 10 }, about.yLabel));
  for (const value of ticks(...yRange, 4)) {
    svg.append(make("svg:line", { class: "grid", x1: area.left, x2: area.right, y1: area.y(value), y2: area.y(value) }));
    svg.append(make("svg:text", { x: area.left - 8, y: area.y(value) + 4, "text-anchor": "end" }, short(value)));
  }
  const across = ticks(...xRange, Math.max(2, Math.floor(width / 90)));
  xAxis(svg, area, about.whole ? across.filter(Number.isInteger) : across, about.xLabel, height);
  for (const { color, points } of series) svg.append(trace(area, color, points));
  return [legendOf(series, svg, area, about), svg];
}

function trace(area, color, points) {
  const group = make("svg:g", { class: color });
  const path = points.map(([x, y], i) => `${i ? "L" : "M"}${area.x(x).toFixed(1)} ${area.y(y).toFixed(1)}`).join("");
  group.append(make("svg:path", { class: "line", d: path }));
  if (points.length <= 60) {
    for (const [x, y, open] of points) {
      group.append(make("svg:circle", { class: open ? "open" : "point", cx: area.x(x), cy: area.y(y), r: 3 }));
    }
  }
  return group;
}

/* The legend, and at its end the value under the pointer or the arrow keys. */
function legendOf(series, svg, area, about) {
  const legend = make("div", { class: "legend" });
  if (series.length > 1) {
    for (const { name, color } of series) {
      legend.append(make("span", { class: color }, make("i"), make("span", {}, name)));
    }
  }
  if (series.some(({ points }) => points.some(([, , open]) => open))) {
    legend.append(make("span", {}, make("i", { class: "ring" }), "warm-up"));
  }
  const readout = make("span", { class: "readout" });
  const cursor = make("svg:line", { class: "cursor", y1: area.top, y2: area.bottom, visibility: "hidden" });
  svg.append(cursor);
  legend.append(readout);
  const stops = [...new Set(series.flatMap(({ points }) => points.map(([x]) => x)))].sort((a, b) => a - b);
  let at = -1;
  const show = (i) => {
    at = Math.min(Math.max(i, 0), stops.length - 1);
    const x = area.x(stops[at]);
    for (const [name, value] of [["x1", x], ["x2", x], ["visibility", "visible"]]) cursor.setAttribute(name, value);
    const values = series.flatMap(({ name, points }) =>
      points.filter(([px]) => px === stops[at]).map(([, y]) => `${series.length > 1 ? name + " " : ""}${short(y)}`));
    readout.textContent = `${about.xName} ${short(stops[at])}: ${values.join(", ")}`;
  };
  svg.addEventListener("pointermove", (event) => {
    const x = event.clientX - svg.getBoundingClientRect().left;
    show(stops.reduce((best, stop, i) => (Math.abs(area.x(stop) - x) < Math.abs(area.x(stops[best]) - x) ? i : best), 0));
  });
  svg.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (move) { event.preventDefault(); show(at < 0 ? 0 : at + move); }
  });
  return legend;
}

/* ---- the lanes of one step: events = [[lane, kind, block, start, end]] ---- */

const LANES = ["upload", "compute", "offload"];

function timelineChart(events) {
  return plot("Timeline of the last step", { class: "wide" }, events.length, (width) => drawTimeline(width, events));
}

function inOrder(names) {
  const different = [...new Set(names)];
  return [...LANES.filter((lane) => different.includes(lane)), ...different.filter((name) => !LANES.includes(name))];
}

function drawTimeline(width, events) {
  const lanes = inOrder(events.map(([lane]) => lane));
  const kinds = inOrder(events.map(([, kind]) => kind));
  const color = (kind) => `c${LANES.includes(kind) ? LANES.indexOf(kind) : 3}`;
  const last = Math.max(...events.map(([, , , , finish]) => finish));
  const [scale, unit] = last < 1 ? [1e3, "ms"] : [1, "s"];
  const range = [Math.min(...events.map(([, , , begin]) => begin), 0) * scale, last * scale];
  const row = 30;
  const height = lanes.length * row + 44;
  const area = frame(width, height, { left: 62, right: 12, top: 6, bottom: 34 }, range, [0, 1]);
  const svg = make("svg:svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, height, role: "img",
    "aria-label": `Timeline: ${events.length} operations on ${lanes.length} lanes in ${short(range[1])} ${unit}` });
  const readout = make("span", { class: "readout" });
  lanes.forEach((lane, i) => svg.append(make("svg:text", { x: 0, y: area.top + i * row + 19 }, lane)));
  xAxis(svg, area, ticks(...range, Math.max(2, Math.floor(width / 90))), `time (${unit})`, height);
  for (const [lane, kind, block, begin, finish] of events) {
    const x = area.x(begin * scale);
    const wide = Math.max(area.x(finish * scale) - x - 0.5, 1);
    const y = area.top + lanes.indexOf(lane) * row + 4;
    const told = `${kind}, block ${block}: ${short(begin * scale)} to ${short(finish * scale)} ${unit}`;
    const bar = make("svg:rect", { class: "bar", x, y, width: wide, height: row - 8, rx: 2 });
    bar.addEventListener("pointerenter", () => { readout.textContent = told; });
    const group = make("svg:g", { class: color(kind) }, bar);
    if (wide > 22) {
      const middle = { class: "inside", x: x + wide / 2, y: y + 15, "text-anchor": "middle" };
      group.append(make("svg:text", middle, String(block)));
    }
    svg.append(group);
  }
  const names = kinds.map((kind) => make("span", { class: color(kind) }, make("i"), make("span", {}, kind)));
  return [make("div", { class: "legend" }, ...names, make("span", {}, "numbers are blocks"), readout), svg];
}

/* ---- one run ---- */

const UNITS = [[/_bytes$|^device_memory$/, (value) => `${short(value / MIB)} MiB`], [/_seconds$/, (value) => `${short(value)} s`],
  [/_joules$/, (value) => `${short(value)} J`], [/_watts$/, (value) => `${short(value)} W`], [/_hz$/, (value) => `${short(value / 1e6)} MHz`]];

function told(name, value, absent) {
  if (value === null) return absent;
  if (typeof value === "number") {
    const unit = UNITS.find(([ending]) => ending.test(name));
    return unit && value ? unit[1](value) : String(value);
  }
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "string") return value || "none";
  return Array.isArray(value) ? value.map((item) => told("", item, absent)).join(", ") || "none" : JSON.stringify(value);
}

function facts(title, values, absent) {
  const rows = Object.entries(values ?? {}).map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, told(name, value, absent))));
  return rows.length ? [make("h3", {}, title), make("dl", { class: "facts" }, ...rows)] : [];
}

function steps(run, name) {
  const warm = run.warmup?.[name] ?? [];
  const points = (values, offset, open) => values.map((value, i) => [i + offset, value, open]);
  return [{ name, color: "c0", points: [...points(warm, 1 - warm.length, true), ...points(run.samples?.[name] ?? [], 1, false)] }];
}

function memory(run) {
  const seconds = run.trace?.seconds ?? [];
  const line = (name, color, values) => ({ name, color, points: seconds.map((s, i) => [s, values[i] == null ? null : values[i] / MIB]) });
  const lines = [];
  if (run.trace?.rss_bytes?.length) lines.push(line("process (RSS)", "c0", run.trace.rss_bytes));
  if (run.trace?.device_bytes?.length) lines.push(line("device", "c1", run.trace.device_bytes));
  return lines;
}

function charts(run) {
  const step = { xLabel: "step (0 and below: warm-up)", xName: "step", whole: true };
  return make("div", { class: "charts" },
    lineChart({ ...step, title: "Loss", yLabel: "loss", series: steps(run, "loss") }),
    lineChart({ ...step, title: "Step time", yLabel: "step time (s)", series: steps(run, "step_seconds"), fromZero: true }),
    lineChart({ title: "Memory over time", xLabel: "time (s)", xName: "s", yLabel: "memory (MiB)", series: memory(run), fromZero: true }),
    timelineChart(run.timeline ?? []));
}

function jsonView(run, compact) {
  const text = pretty(compact);
  const view = make("pre", { id: "detail-json", tabindex: 0, "aria-label": "The run's JSON" }, text);
  const said = make("output", { "aria-live": "polite" });
  const copy = make("button", { type: "button", class: "button" }, "Copy");
  const save = make("button", { type: "button", class: "button" }, "Download");
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      said.textContent = "Copied.";
    } catch {
      getSelection().selectAllChildren(view);
      said.textContent = "Selected; copy it with the keyboard.";
    }
  });
  save.addEventListener("click", () => {
    const { model, engine, dtype } = run.spec;
    const name = [model.slice(0, 80), engine, dtype, run.spec_hash].join("-").replace(/[^A-Za-z0-9._-]+/g, "_").replace(/^\.+/, "");
    const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    make("a", { href: address, download: `${name}.json` }).click();
    URL.revokeObjectURL(address);
  });
  return [make("h3", {}, "JSON"), make("div", { class: "tools" }, copy, save, said), view];
}

function detail(source, row) {
  const compact = source.textContent;
  const run = JSON.parse(compact);
  const close = make("button", { type: "button", class: "button" }, "Close");
  close.addEventListener("click", () => document.getElementById("detail").close());
  const where = `${run.environment.machine ?? ""}, ${run.environment.description ?? ""}, ${run.spec_hash}`;
  const title = make("h2", { id: "detail-title" }, [...row.cells].slice(0, 4).map((cell) => cell.textContent).join(" "), " ",
    make("span", { class: `outcome ${run.outcome}` }, run.outcome), make("small", {}, where));
  const body = make("div", { class: "detail-body" });
  if (run.reason) body.append(make("p", { class: "callout" }, run.reason));
  for (const warning of run.warnings ?? []) body.append(make("p", { class: "callout" }, "Warning: ", warning));
  body.append(charts(run), ...facts("Memory", run.memory, "not available"),
    ...facts("Specification", run.spec, "not set"), ...facts("Power and clocks", run.power, "not available"),
    ...facts("Environment", run.environment, "not available"));
  if (run.traceback) body.append(make("h3", {}, "Traceback"), make("pre", {}, run.traceback));
  body.append(...jsonView(run, compact));
  return [make("div", { class: "detail-head" }, title, close), body];
}

/* ---- what is folded opens where a link leads ---- */

function unfold() {
  const target = document.querySelector(":target");
  const part = target?.querySelector(":scope > details.part");
  if (part) part.open = true;
  let folded = false;
  for (let fold = target?.closest("details"); fold; fold = fold.parentElement.closest("details")) {
    folded ||= !fold.open;
    fold.open = true;
  }
  if (folded) target.scrollIntoView();
}

function follow() {
  const dialog = document.getElementById("detail");
  const name = location.hash.slice(1);
  const source = [...document.querySelectorAll("script[data-run]")].find((each) => each.dataset.run === name);
  if (!source) {
    if (dialog.open) dialog.close();
    return;
  }
  dialog.replaceChildren(...detail(source, document.getElementById(name)));
  if (!dialog.open) dialog.showModal();
  dialog.focus();
  dialog.scrollTop = 0;
}

/* ---- tables and figures that go on beyond their right edge say so ---- */

function tellWide() {
  for (const box of document.querySelectorAll(".scroll, .plate"))
    box.classList.toggle("more", box.scrollWidth - box.clientWidth - box.scrollLeft > 1);
}

function start() {
  for (const table of document.querySelectorAll("table")) makeSortable(table);
  const list = document.getElementById("run-list");
  if (list) makeFilters(list);
  const dialog = document.getElementById("detail");
  dialog.addEventListener("close", () => {
    dialog.replaceChildren();
    if (!location.hash.startsWith("#run-")) return;
    document.getElementById(location.hash.slice(1))?.querySelector("a")?.focus({ preventScroll: true });
    history.replaceState(null, "", "#runs");
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  addEventListener("hashchange", follow);
  for (const event of ["hashchange", "load"]) addEventListener(event, unfold);
  addEventListener("resize", tellWide);
  document.addEventListener("scroll", tellWide, true);
  document.addEventListener("toggle", tellWide, true);
  addEventListener("beforeprint", () => { for (const fold of document.querySelectorAll("details")) fold.open = true; });
  tellWide();
  follow();
}

start();
