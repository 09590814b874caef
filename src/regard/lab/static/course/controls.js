// What a reader changes in a step: sliders, choices, words, fields of numbers, painted masks.
// Each maker returns a node and `show(value)`, which displays a value that was set elsewhere.
import { bar } from "lab/controls.js";
import { fill, h, newId } from "lab/dom.js";
import { gridKeys, paint } from "lab/course/painting.js";
import { labelNode, roundTo } from "lab/course/labels.js";

const MAKERS = { Slider: makeSlider, Choice: makeChoice, Words: makeWords, Numbers: makeNumbers, MaskGrid: makeMask };

export const makeControl = (control, value, lab, step, change) => MAKERS[control.type](control, value, lab, newValue => change({ [control.name]: newValue }), step);
export const plainNumber = x => Object.is(x, -0) ? "0" : String(x);

// A field whose number is typed, stepped by the arrow keys, or dragged sideways.
export function numberField(control, value, label, onValue, attributes = {}) {
  const input = h("input", { type: "text", inputmode: "decimal", class: "digits-field", value: plainNumber(value), autocomplete: "off", "aria-label": label, translate: "no", ...attributes });
  let held = value, from = null;
  const fit = () => { input.style.width = `${Math.max(3, input.value.length) + 1.2}ch`; };
  const set = x => { held = roundTo(control, x), input.value = plainNumber(held), fit(), onValue(held); };
  input.addEventListener("input", () => { const x = Number(input.value.replace("−", "-")); fit(); if (input.value.trim() && Number.isFinite(x) && x >= control.low && x <= control.high) held = x, onValue(x); });
  input.addEventListener("change", () => { const x = Number(input.value.replace("−", "-")); if (!input.value.trim() || !Number.isFinite(x)) input.value = plainNumber(held), fit(); else if (x < control.low || x > control.high) set(x); });
  input.addEventListener("keydown", event => { const by = { ArrowUp: 1, ArrowDown: -1 }[event.key]; if (by) event.preventDefault(), set(held + by * control.step * (event.shiftKey ? 10 : 1)); });
  input.addEventListener("pointerdown", event => { if (event.pointerType === "mouse" && document.activeElement !== input) from = { x: event.clientX, value: held, moved: false }; });
  input.addEventListener("pointermove", event => {
    if (!from || (!from.moved && Math.abs(event.clientX - from.x) < 4)) return;
    if (!from.moved) from.moved = true, input.setPointerCapture(event.pointerId), input.blur();
    set(from.value + Math.round((event.clientX - from.x) / 4) * control.step);
  });
  input.addEventListener("pointerup", () => { if (from?.moved) input.blur(); from = null; });
  fit();
  return { node: input, show: x => { held = x; if (document.activeElement !== input || Number(input.value) !== x) input.value = plainNumber(x), fit(); } };
}

function makeSlider(control, value, lab, set) {
  const id = newId(), range = h("input", { type: "range", id, min: control.low, max: control.high, step: control.step, value, class: "slider", "data-control": control.name, oninput: event => { const x = Number(event.target.value); field.show(x), set(x); } });
  const field = numberField(control, value, lab.localize(control.label), x => { range.value = x, set(x); });
  return { node: h("div", { class: "course-control slider-control" }, h("label", { for: id }, lab.localize(control.label)), h("div", { class: "slider-line" }, range, field.node)), show: x => { range.value = x, field.show(x); } };
}
function makeChoice(control, value, lab, set) {
  const node = h("div", { class: "course-control", "data-control": control.name }), build = now => fill(node, bar(lab.localize(control.label), control.options.map(([name, words]) => [name, lab.localize(words)]), now, set));
  build(value);
  return { node, show: now => { for (const input of node.querySelectorAll("input")) input.checked = input.value === now; } };
}
function makeWords(control, value, lab, set) {
  const input = h("input", { type: "text", class: "words-field", value, translate: "no", spellcheck: "false", autocomplete: "off", maxlength: 200, "data-control": control.name, oninput: () => {
    const words = input.value.split(/\s+/).filter(Boolean), fits = words.length > 0 && words.length <= control.most;
    input.setAttribute("aria-invalid", String(!fits));
    if (fits) set(input.value);
  } });
  return { node: h("label", { class: "field course-control" }, h("span", {}, `${lab.localize(control.label)} · ${lab.t("mostWords", control.most)}`), input), show: now => { if (document.activeElement !== input) input.value = now; } };
}
function makeNumbers(control, value, lab, set, step) {
  const matrix = Array.isArray(value[0]), rows = matrix ? value : [value], fields = [];
  const write = (i, j, x) => { const now = step.values[control.name]; set(matrix ? now.map((row, r) => r === i ? row.map((old, c) => c === j ? x : old) : row) : now.map((old, c) => c === j ? x : old)); };
  const label = words => ({ words: lab.localize(words) });
  // a vector may be labelled by its rows or by its columns
  const heads = (matrix || control.columns.length ? control.columns : control.rows).map(label), sides = matrix ? control.rows.map(label) : [];
  const cell = (x, i, j) => { const field = numberField(control, x, [lab.localize(control.label), sides[i]?.words ?? (matrix ? i + 1 : ""), heads[j]?.words ?? j + 1].filter(word => word !== "").join(" "), now => write(i, j, now), { "data-control": control.name, "data-i": matrix ? i : j, "data-j": matrix ? j : null }); fields.push({ field, i, j }); return field.node; };
  const grid = h("div", { class: "number-grid", style: { "grid-template-columns": `${sides.length ? "auto " : ""}repeat(${rows[0].length}, auto)` } },
    heads.length ? [sides.length ? h("span", {}) : null, heads.map(head => labelNode("span", head, { class: "grid-head" }))] : null,
    rows.map((row, i) => [sides.length ? labelNode("span", sides[i], { class: "grid-side" }) : null, row.map((x, j) => cell(x, i, j))]));
  const body = h("div", { class: "number-scroll" }, grid), large = rows.length * rows[0].length > 24;
  return { node: large ? h("details", { class: "course-control fold" }, h("summary", {}, lab.localize(control.label)), body) : h("div", { class: "course-control", role: "group", "aria-label": lab.localize(control.label) }, h("span", { class: "control-name" }, lab.localize(control.label)), body),
    show: now => { for (const { field, i, j } of fields) field.show(matrix ? now[i][j] : now[j]); } };
}
function makeMask(control, value, lab, set, step) {
  const label = words => ({ words: lab.localize(words) }), columns = control.columns.map(label), rows = control.rows.map(label);
  const cells = value.map((row, i) => row.map((on, j) => h("button", { type: "button", class: "mask-cell", "data-control": control.name, "data-i": i, "data-j": j, tabindex: i + j ? -1 : 0, "aria-pressed": Boolean(on), "aria-label": `${rows[i]?.words ?? i + 1} → ${columns[j]?.words ?? j + 1}` })));
  const upright = columns.some(column => column.words.replace(/[⟦⟧]/g, "").length > 3);
  const grid = h("div", { class: `mask-grid ${upright ? "upright" : ""}`, style: { "grid-template-columns": `${rows.length ? "auto" : "0"} repeat(${value[0].length}, minmax(16px, 30px))` } }, columns.length ? [h("span", {}), columns.map(column => labelNode("span", column, { class: "grid-head" }))] : null, value.map((_, i) => [labelNode("span", rows[i], { class: "grid-side" }), cells[i]]));
  paint(grid, ".mask-cell", (i, j) => step.values[control.name][i][j], (i, j, on) => set(step.values[control.name].map((row, r) => row.map((old, c) => r === i && c === j ? on : old))));
  gridKeys(grid, ".mask-cell", value[0].length);
  return { node: h("div", { class: "course-control", role: "group", "aria-label": lab.localize(control.label) }, h("span", { class: "control-name" }, lab.localize(control.label)), h("div", { class: "number-scroll" }, grid), h("p", { class: "soft" }, lab.t("paintHelp"))),
    show: now => cells.forEach((row, i) => row.forEach((cell, j) => cell.setAttribute("aria-pressed", String(Boolean(now[i][j]))))) };
}
