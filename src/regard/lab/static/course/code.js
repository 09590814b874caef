// The NumPy of a step with the reader's values in it, which can be edited there; its numbers; and the same in Regard.
import { copyButton } from "lab/controls.js";
import { fill, h, scientific } from "lab/dom.js";
import { numberField } from "lab/course/controls.js";
import { shortNumber } from "lab/course/labels.js";

const MOST_FIELDS = 64, MOST_NUMBERS = 12;
const PYTHON = /(#.*)|("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|\b(for|in|if|else|return|def|lambda|import|from|as|not|and|or|None|True|False|while|is)\b|\b(\d+(?:\.\d*)?(?:e[-+]?\d+)?)\b|\b([A-Za-z_]\w*)(?=\()/g;
const CLASSES = ["comment", "string", "keyword", "digit", "call"];

export function highlight(code) {
  const parts = [];
  let from = 0;
  for (const match of code.matchAll(PYTHON)) {
    const n = match.slice(1).findIndex(group => group !== undefined);
    parts.push(code.slice(from, match.index), h("span", { class: `code-${CLASSES[n]}` }, match[0])), from = match.index + match[0].length;
  }
  return [...parts, code.slice(from)];
}

// The assignments of the controls: every number is a field.
function assignment(control, value, lab, step, change, shows) {
  const set = x => change({ [control.name]: x }), label = lab.localize(control.label), start = [h("span", {}, control.name), " = "];
  if (control.type === "Slider") {
    const field = numberField(control, value, label, set, { "data-code": control.name });
    shows.push(now => field.show(now[control.name]));
    return [start, field.node, "\n"];
  }
  if (control.type === "Choice" || control.type === "Words") {
    const words = h("span", { class: "code-string" }, JSON.stringify(value));
    shows.push(now => { words.textContent = JSON.stringify(now[control.name]); });
    return [start, words, "\n"];
  }
  const matrix = Array.isArray(value[0]), rows = matrix ? value : [value], count = rows.length * rows[0].length;
  if (count > MOST_FIELDS || rows.some(row => Array.isArray(row[0]))) return [start, `np.array(…)  `, h("span", { class: "code-comment" }, `# ${shapeOf(value)}`), "\n"];
  const entry = (x, i, j) => control.type === "MaskGrid" ? maskEntry(control, i, j, x, step, set, shows) : numberEntry(control, matrix, i, j, x, label, step, set, shows);
  const inner = row => row.flatMap((x, j) => [j ? ", " : "", x]);
  const indent = " ".repeat(control.name.length + 12);
  const lines = rows.map((row, i) => [i ? `,\n${indent}` : "", matrix ? "[" : "", inner(row.map((x, j) => entry(x, i, j))), matrix ? "]" : ""]);
  return [start, "np.array([", lines, "])", "\n"];
}
function numberEntry(control, matrix, i, j, x, label, step, set, shows) {
  const field = numberField(control, x, `${label} ${matrix ? `${i + 1} ` : ""}${j + 1}`, now => { const held = step.values[control.name]; set(matrix ? held.map((row, r) => r === i ? row.map((old, c) => c === j ? now : old) : row) : held.map((old, c) => c === j ? now : old)); }, { "data-code": control.name });
  shows.push(now => field.show(matrix ? now[control.name][i][j] : now[control.name][j]));
  return field.node;
}
function maskEntry(control, i, j, x, step, set, shows) {
  const node = h("button", { type: "button", class: "code-switch", "aria-label": `${control.name} ${i + 1} ${j + 1}`, onclick: () => set(step.values[control.name].map((row, r) => row.map((old, c) => r === i && c === j ? !old : old))) });
  const show = on => { node.textContent = on ? "True" : "False", node.setAttribute("aria-pressed", String(Boolean(on))); };
  show(x), shows.push(now => show(now[control.name][i][j]));
  return node;
}

export function codeBlock(lab, step, change) {
  const shows = [], results = h("pre", { tabindex: 0, class: "code-results", translate: "no" }), regard = h("pre", { tabindex: 0, class: "code-results", translate: "no" });
  const values = step.controls.map(control => assignment(control, step.values[control.name], lab, step, change, shows));
  const numpy = h("section", { class: "code-part" }, h("div", { class: "code-head" }, h("h3", {}, lab.t("inNumpy")), copyButton(lab, () => sourceOf(step))),
    h("pre", { tabindex: 0, class: "code", translate: "no" }, values, values.length ? "\n" : "", highlight(step.code)), results);
  const same = step.attend ? h("section", { class: "code-part" }, h("div", { class: "code-head" }, h("h3", {}, lab.t("inRegard"))), h("pre", { tabindex: 0, class: "code", translate: "no" }, highlight(step.attend)), regard) : null;
  function update(answer) {
    for (const show of shows) show(step.values);
    fill(results, Object.entries(answer.result).flatMap(([name, value]) => [h("span", { class: "code-name", "data-result": name }, name), ` = ${describe(value)}\n`]));
    if (answer.attend) fill(regard, h("span", { class: "code-name" }, "output"), ` = ${describe(answer.attend.output)}\n`, h("span", { class: "code-comment", "data-difference": answer.attend.difference }, `# ${lab.t("difference", scientific(answer.attend.difference.toExponential(0)))}`));
  }
  return { node: h("div", { class: `code-parts ${same ? "two" : ""}` }, numpy, same), update };
}
// Python that stands alone, for the clipboard.
function sourceOf(step) {
  const literal = value => Array.isArray(value) ? `[${value.map(literal).join(", ")}]` : typeof value === "boolean" ? (value ? "True" : "False") : JSON.stringify(value);
  const lines = step.controls.map(control => `${control.name} = ${Array.isArray(step.values[control.name]) ? `np.array(${literal(step.values[control.name])}${control.type === "Numbers" ? ", dtype=float" : ""})` : literal(step.values[control.name])}`);
  return ["import numpy as np", "", ...lines, "", step.code, ""].join("\n");
}
const shapeOf = value => Array.isArray(value) ? [value.length, shapeOf(value[0])].filter(Boolean).join(" × ") : "";
function describe(value) {
  if (!Array.isArray(value)) return typeof value === "string" ? JSON.stringify(value) : shortNumber(value);
  if (value.flat(9).length > MOST_NUMBERS || Array.isArray(value[0]?.[0])) return `[…]  # ${shapeOf(value)}`;
  return `[${value.map(describe).join(", ")}]`;
}
