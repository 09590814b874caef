// Pictures of the course. Each picture of a step is drawn into a host element of its own and follows the values.
//
// A drawing of your own is a module `course/drawings/<name>.js` with one function:
//
//   export function draw(host, result, lab, step, change) {
//     host.append(…);                        // an empty <div>, as wide as the column: host.clientWidth
//     return result => { … };                // optional: shows a new result in place
//   }
//
//   host    the element to draw into. Use the helpers h, s, fill of "lab/dom.js" and the colours of style.css:
//           var(--query), var(--key), var(--value), var(--output), var(--accent), var(--ink), var(--soft), var(--line)
//   result  what `compute` returned, by name: numbers, nested lists of numbers, texts, lists of texts;
//           infinities and NaN are JavaScript's own
//   lab     lab.localize({en, zh}) picks a text of the page's language; lab.language is "en" or "zh" ("xx" in a test)
//   step    the step as `course/list` sends it (name, title, controls, …) with
//           step.values   the present value of each control, by name, always up to date
//           step.picture  this picture, as Python declares it
//   change  change({name: value, …}) sets controls: the page computes the new result and calls the update function.
//           Values must be within the control's bounds; round them to its step: roundTo(control, x) of
//           "lab/course/labels.js", which also has readLabels, labelNode, roleColour, shortNumber.
//
// A module that also has `export const wide = true` gets the whole width of the page: the controls stand below it.
// Without an update function the host is emptied and `draw` is called again for each result: fine for a small SVG, but
// what is being dragged must stay in the page, so a drawing with handles returns one. A drawing that runs a clock stops
// it at lab.signal's "abort" and stays still when prefersReducedMotion() says so. Texts are written in the module as
// {en, zh}; words that need no translation carry translate="no". Each number that a reader may compare gets
// data-name, data-value (and data-i, data-j): tests read those.
import { cssColour, hatch, shader, textColourOn } from "lab/colour.js";
import { fill, h, scaleCanvas } from "lab/dom.js";
import { labelNode, readLabels, roleColour, shortNumber } from "lab/course/labels.js";
import { drawLines } from "lab/course/lines.js";
import { drawPlane } from "lab/course/plane.js";
import { gridKeys, paint } from "lab/course/painting.js";

const GENERIC = { Bars: drawBars, Heatmap: drawHeatmap, Plane: drawPlane, Lines: drawLines, NumberTable: drawTable };
const CELLS_WITH_NUMBERS = 14, CELLS_IN_DOM = 900;

// A figure with its title; returns the node and an update function.
export async function makePicture(picture, result, lab, step, change) {
  const { draw, wide = false } = picture.type === "Drawing" ? await import(`lab/course/drawings/${picture.name}.js`) : { draw: GENERIC[picture.type] };
  const host = h("div", { class: "picture-host" }), own = Object.create(step, { picture: { value: picture } });
  const title = lab.localize(picture.title);
  const whole = picture.type === "NumberTable" && (Boolean(picture.links) || Math.max(...[result[picture.data]].flat().map(row => Array.isArray(row) ? row.length : 1)) > 2);
  const node = h("figure", { class: `picture picture-${picture.type.toLowerCase()} ${whole ? "picture-whole" : ""}`, "data-picture": picture.name ?? picture.data ?? picture.type }, title ? h("figcaption", {}, title) : null, host);
  let follow = null;
  // the host must be in the page before it can be measured
  const start = now => { follow = draw(host, now, lab, own, change); };
  const update = now => follow ? follow(now) : (fill(host), delete host.dataset.shape, start(now));
  return { node, wide, start: () => start(result), update, redraw: now => { fill(host), delete host.dataset.shape, start(now); } };
}

function drawBars(host, result, lab, step) {
  const { picture } = step;
  return (show => (show(result), show))(now => {
    const data = now[picture.data], grouped = Array.isArray(data[0]), rows = grouped ? data : [data];
    const labels = readLabels(lab, picture.labels, now), groups = readLabels(lab, picture.groups, now);
    const shape = `${rows.length}x${rows[0].length}x${labels.map(label => label.words).join()}`;
    if (host.dataset.shape !== shape) host.dataset.shape = shape, fill(host, rows.map((row, i) => barGroup(picture, row, i, labels, groups[i], grouped)));
    const all = rows.flat().filter(Number.isFinite), low = picture.low ?? Math.min(0, ...all), high = picture.high ?? (Math.max(0, ...all) || 1), span = high - low || 1;
    const share = x => 100 * (Math.max(low, Math.min(high, x)) - low) / span;
    host.querySelectorAll(".bar-row").forEach(node => {
      const x = rows[node.dataset.i][node.dataset.j], zero = share(0), to = Number.isFinite(x) ? share(x) : x > 0 ? 100 : zero;
      node.querySelector(".bar-fill").style.cssText = `left:${Math.min(zero, to)}%;width:${Math.abs(to - zero)}%`;
      const digits = node.querySelector(".digits");
      digits.textContent = shortNumber(x), digits.dataset.value = x, digits.title = String(x);
    });
  });
}
function barGroup(picture, row, i, labels, group, grouped) {
  return h("div", { class: `bar-group ${row.length > 12 ? "many" : ""}`, style: { "--role": roleColour(picture.role) } }, group ? labelNode("p", group, { class: "bar-group-name" }) : null,
    row.map((_, j) => h("div", { class: "bar-row", "data-i": i, "data-j": j }, labelNode("span", labels[j], { class: "bar-label" }),
      h("span", { class: "bar-track" }, h("span", { class: "bar-fill" })), h("span", { class: "digits", "data-name": picture.data, "data-i": grouped ? i : j, "data-j": grouped ? j : null }))));
}

function drawHeatmap(host, result, lab, step, change) {
  const { picture } = step, first = result[picture.data];
  const mask = picture.masked && step.controls.find(control => control.type === "MaskGrid" && control.value.length === first.length && control.value[0].length === first[0].length);
  return (show => (show(result), show))(now => {
    const data = now[picture.data], masked = picture.masked ? now[picture.masked] ?? [] : [], rows = readLabels(lab, picture.rows, now), columns = readLabels(lab, picture.columns, now);
    const all = data.flat().filter(Number.isFinite), low = Math.min(...all), most = Math.max(...all.map(Math.abs), 1e-9);
    const shade = picture.role === "weight" && low >= 0 && most <= 1 + 1e-9 ? shader("weights", [0, 1], "root") : low >= 0 ? shader("weights", [0, most]) : shader("scores", [-most, most]);
    if (data.length * data[0].length > CELLS_IN_DOM) return paintCanvas(host, data, masked, shade);
    const shape = `${data.length}x${data[0].length}x${[...rows, ...columns].map(label => label.words).join()}`;
    if (host.dataset.shape !== shape) host.dataset.shape = shape, buildHeatmap(host, data, rows, columns, picture, mask, step, change, lab);
    const digits = data[0].length <= CELLS_WITH_NUMBERS && (host.clientWidth - 40) / data[0].length > 26;
    host.querySelectorAll(".heat-cell").forEach(cell => {
      const { i, j } = cell.dataset, x = data[i][j], off = Boolean(masked[i]?.[j]), colour = off || !Number.isFinite(x) ? null : shade(x);
      cell.classList.toggle("hatched", off);
      cell.style.background = colour ? cssColour(colour) : "", cell.style.color = colour ? textColourOn(colour) : "var(--soft)";
      cell.textContent = digits ? off ? "×" : typeof x === "number" && Number.isFinite(x) ? x.toFixed(Math.abs(x) >= 10 ? 1 : 2).replace("-", "−") : shortNumber(x) : "";
      cell.dataset.value = x, cell.title = `${rows[i]?.words ?? i} · ${columns[j]?.words ?? j}: ${x}`;
      if (mask) cell.setAttribute("aria-pressed", String(!off));
    });
  });
}
function buildHeatmap(host, data, rows, columns, picture, mask, step, change, lab) {
  const cell = (_, i, j) => h(mask ? "button" : "div", { type: mask ? "button" : null, class: "heat-cell", translate: "no", "data-name": picture.data, "data-i": i, "data-j": j, tabindex: mask ? (i + j ? -1 : 0) : null });
  const grid = h("div", { class: `heat ${mask ? "paint" : ""} ${Math.max(data.length, data[0].length) > 8 ? "dense" : ""}`, style: { "grid-template-columns": `${rows.length ? "auto" : "0"} repeat(${data[0].length}, minmax(0, 1fr))`, "max-width": `${Math.max(220, Math.min(data[0].length * (data.length > 8 ? 44 : 62) + 120, 620))}px` } },
    columns.length ? [h("span", {}), columns.map(label => labelNode("span", label, { class: "heat-column" }))] : null,
    data.map((row, i) => [labelNode("span", rows[i], { class: "heat-row" }), row.map((x, j) => cell(x, i, j))]));
  fill(host, h("div", { class: "heat-scroll" }, grid));
  if (mask) paint(grid, ".heat-cell", (i, j) => step.values[mask.name][i][j], (i, j, on) => change({ [mask.name]: step.values[mask.name].map((row, r) => row.map((old, c) => r === i && c === j ? on : old)) })), gridKeys(grid, ".heat-cell", data[0].length);
}
function paintCanvas(host, data, masked, shade) {
  const canvas = host.querySelector("canvas") ?? (delete host.dataset.shape, fill(host).appendChild(h("canvas", { class: "heat-canvas" }))), size = Math.max(1, Math.floor(Math.min(host.clientWidth || 480, 520) / data[0].length));
  const pen = scaleCanvas(canvas, size * data[0].length, size * data.length), cross = hatch(pen);
  data.forEach((row, i) => row.forEach((x, j) => { pen.fillStyle = masked[i]?.[j] || !Number.isFinite(x) ? cross : cssColour(shade(x)), pen.fillRect(j * size, i * size, size, size); }));
}

function drawTable(host, result, lab, step) {
  const { picture } = step;
  return (show => (show(result), show))(now => {
    const data = now[picture.data].map(row => Array.isArray(row) ? row : [row]), rows = readLabels(lab, picture.rows, now), columns = readLabels(lab, picture.columns, now);
    const cell = (x, i, j) => h("td", { class: typeof x === "number" ? "number digits" : "", translate: "no", "data-name": picture.data, "data-i": i, "data-j": j, "data-value": x, title: typeof x === "number" ? String(x) : null }, shortNumber(x));
    fill(host, h("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": lab.localize(picture.title) }, h("table", { class: "numbers" },
      columns.length ? h("thead", {}, h("tr", {}, rows.length ? h("td", {}) : null, columns.map(label => labelNode("th", label, { scope: "col" })))) : null,
      h("tbody", {}, data.map((row, i) => h("tr", {}, rows.length ? labelNode("th", rows[i], { scope: "row" }) : null, row.map((x, j) => cell(x, i, j)), now[picture.links] ? h("td", {}, sourceLink(lab, now[picture.links][i])) : null))))));
  });
}
// Where a number was measured: "step:name" or "experiment:name".
function sourceLink(lab, source) {
  const [place, name] = source.split(":"), keep = Object.fromEntries(["lang", "theme"].filter(key => lab.state[key]).map(key => [key, lab.state[key]]));
  const [page, state] = place === "step" ? ["course", { step: name }] : lab.pages.includes("experiments") ? ["experiments", { experiment: name }] : ["runs", { view: "experiments", experiment: name }];
  return h("a", { href: `#${page}?${new URLSearchParams({ ...state, ...keep })}`, translate: "no", class: "lab-link", "data-source": source }, `${name} →`);
}
