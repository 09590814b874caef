// Attention as equations between matrices, one below the other: each stage is written out for the selected cell.
//
// Reads queries, keys, values, products, factor, scaled, weights and output of the result; with inputs, w_q, w_k and w_v
// a first stage shows the projections. `words` names the tokens.
import { cssColour, shader, textColourOn } from "lab/colour.js";
import { h, fill } from "lab/dom.js";

const TEXT = {
  project: { en: "project", zh: "投影" }, dot: { en: "dot products", zh: "点积" }, scale: { en: "scale", zh: "缩放" },
  softmax: { en: "softmax over the row", zh: "逐行 softmax" }, sum: { en: "weighted sum", zh: "加权求和" },
  products: { en: "scores", zh: "分数" }, scaled: { en: "scaled", zh: "缩放后" }, weights: { en: "weights", zh: "权重" }, output: { en: "output", zh: "输出" },
  hint: { en: "Click a cell of the scores, the weights or the output; the arrow keys move.", zh: "点击分数、权重或输出里的格子，也可以用方向键移动。" },
};
const COLOURS = { queries: "--query", w_q: "--query", keys: "--key", w_k: "--key", values: "--value", w_v: "--value", output: "--output", inputs: "--faint" };
const SELECTABLE = { products: "pair", scaled: "pair", weights: "pair", output: "out" };
const SUBSCRIPTS = "₀₁₂₃₄₅₆₇₈₉";
const transpose = rows => rows[0].map((_, j) => rows.map(row => row[j]));
const number = (x, digits = 2) => (Number.isInteger(x) && Math.abs(x) < 1000 ? String(x) : x.toFixed(digits)).replace("-", "−");
const bracket = x => x < 0 ? `(${number(x)})` : number(x);
const row = { display: "flex", "flex-wrap": "wrap", gap: "6px 8px", "align-items": "center" };

export function draw(host, result, lab) {
  const at = { i: 0, j: 1, c: 0 };
  const show = now => {
    const focus = host.contains(document.activeElement) ? document.activeElement.dataset : null, again = focus && `[data-name="${focus.name}"][data-i="${focus.i}"][data-j="${focus.j}"]`;
    Object.assign(at, { i: Math.min(at.i, now.queries.length - 1), j: Math.min(at.j, now.keys.length - 1), c: Math.min(at.c, now.values[0].length - 1) });
    fill(host, h("div", { style: { display: "grid", gap: "14px" } }, stages(now, at, lab).map(stage => stageNode(stage, lab))), h("p", { class: "soft", style: { margin: "10px 0 0" } }, lab.localize(TEXT.hint)));
    if (again) host.querySelector(again)?.focus({ preventScroll: true });
  };
  const select = (name, i, j) => (Object.assign(at, SELECTABLE[name] === "out" ? { i, c: j } : { i, j }), show(latest));
  let latest = result;
  host.addEventListener("click", event => { const cell = event.target.closest("button[data-name]"); if (cell) select(cell.dataset.name, Number(cell.dataset.i), Number(cell.dataset.j)); });
  host.addEventListener("keydown", event => {
    const cell = event.target.closest("button[data-name]"), move = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!cell || !move) return;
    event.preventDefault();
    const { name } = cell.dataset, i = Number(cell.dataset.i) + move[0], j = Number(cell.dataset.j) + move[1];
    if (latest[name][i]?.[j] === undefined) return;
    select(name, i, j), host.querySelector(`[data-name="${name}"][data-i="${i}"][data-j="${j}"]`)?.focus({ preventScroll: true });
  });
  show(result);
  return now => show(latest = now);
}

// The equations: parts are texts or matrices {name, data, marks(i, j), rows, columns}, `line` the arithmetic of the selected cell.
function stages(now, { i, j, c }, lab) {
  const t = key => lab.localize(TEXT[key]), names = now.words ?? null, dim = now.keys[0].length;
  const queryNames = names ?? now.queries.map((_, n) => `q${SUBSCRIPTS[n + 1]}`), keyNames = names ?? now.keys.map((_, n) => `k${SUBSCRIPTS[n + 1]}`);
  const matrix = (name, data, title, marks, rows = queryNames, columns = null, turned = false) => ({ name, data, title, marks, rows, columns, turned });
  const pair = name => matrix(name, now[name], t(name), (r, k) => r === i && k === j ? "strong" : "", queryNames, keyNames);
  const sum = (left, right) => left.map((x, n) => `${number(x)}·${bracket(right[n])}`).join(" + ");
  const scaledRow = now.scaled[i], powers = scaledRow.map(Math.exp), total = powers.reduce((a, b) => a + b, 0), sign = "·";
  const list = [
    { badge: "1", key: "dot", parts: [matrix("queries", now.queries, "Q", r => r === i ? "weak" : ""), sign, matrix("keys", transpose(now.keys), "Kᵀ", (_, k) => k === j ? "weak" : "", [], keyNames, true), "=", pair("products")],
      line: [b(queryNames[i]), " · ", b(keyNames[j]), ` = ${sum(now.queries[i], now.keys[j])} = ${number(now.products[i][j])}`] },
    { badge: "2", key: "scale", parts: [pair("products"), now.factor === 1 ? "÷ 1" : `÷ √${dim}`, "=", pair("scaled")],
      line: [`${number(now.products[i][j])} ÷ ${number(now.factor)} = ${number(now.scaled[i][j])}`] },
    { badge: "3", key: "softmax", parts: [matrix("scaled", now.scaled, t("scaled"), r => r === i ? "weak" : "", queryNames, keyNames), "→", matrix("weights", now.weights, t("weights"), (r, k) => r !== i ? "" : k === j ? "strong" : "weak", queryNames, keyNames)],
      line: ["e", h("sup", {}, number(scaledRow[j])), ` ÷ (${powers.map(x => number(x)).join(" + ")}) = ${number(powers[j])} ÷ ${number(total)} = ${number(now.weights[i][j], 3)}`] },
    { badge: "4", key: "sum", parts: [matrix("weights", now.weights, t("weights"), r => r === i ? "weak" : "", queryNames, keyNames), sign, matrix("values", now.values, "V", (_, k) => k === c ? "weak" : "", keyNames), "=", matrix("output", now.output, t("output"), (r, k) => r === i && k === c ? "strong" : "")],
      line: [sum(now.weights[i], now.values.map(value => value[c])), ` = ${number(now.output[i][c])}`] },
  ];
  if (!now.inputs) return list;
  const project = [["w_q", "W_q", "queries", "Q"], ["w_k", "W_k", "keys", "K"], ["w_v", "W_v", "values", "V"]].map(([name, title, target, letter]) =>
    [matrix("inputs", now.inputs, "X", r => r === (name === "w_q" ? i : j) ? "weak" : ""), sign, matrix(name, now[name], title, () => "", []), "=", matrix(target, now[target], letter, r => r === (name === "w_q" ? i : j) ? "weak" : "")]);
  ["2", "3a", "3b", "4"].forEach((badge, n) => { list[n].badge = badge; });
  return [{ badge: "1", key: "project", lines: project, line: [b(queryNames[i]), " → q,  ", b(keyNames[j]), " → k, v"] }, ...list];
}
const b = words => h("b", { translate: "no" }, words);

function stageNode({ badge, key, parts, lines, line }, lab) {
  const sign = words => h("span", { translate: "no", style: { "font-size": "18px", color: "var(--soft)", "white-space": "nowrap" } }, words);
  // a sign stays with the matrix that follows it when the line wraps
  const equation = held => h("div", { style: row }, held.map((part, n) => typeof part === "string" ? null :
    h("div", { style: { display: "flex", gap: "8px", "align-items": "center", "max-width": "100%", "min-width": 0 } }, held.slice(held.slice(0, n).findLastIndex(before => typeof before !== "string") + 1, n).map(sign), matrixNode(part))));
  return h("section", { "data-stage": key, style: { "border-left": "3px solid var(--line)", "padding-left": "12px" } },
    h("p", { style: { margin: "0 0 4px", "font-weight": 650 } }, h("span", { translate: "no", style: { color: "var(--accent)", "margin-right": "8px" } }, badge), lab.localize(TEXT[key])),
    lines ? h("div", { style: { display: "grid", gap: "10px" } }, lines.map(equation)) : equation(parts),
    h("p", { translate: "no", class: "stage-line", style: { margin: "6px 0 0", "font-variant-numeric": "tabular-nums", "font-size": "14px", "overflow-wrap": "anywhere" } }, line));
}

function matrixNode({ name, data, title, marks, rows, columns, turned }) {
  const all = data.flat(), most = Math.max(...all.map(Math.abs), 1e-9), role = COLOURS[name];
  const shade = name === "weights" ? shader("weights", [0, 1], "root") : shader("scores", [-most, most]);
  const colour = x => role ? { background: `color-mix(in srgb, var(${role}) ${Math.round(4 + 40 * Math.abs(x) / most)}%, var(--paper))`, color: "var(--ink)" } : { background: cssColour(shade(x)), color: textColourOn(shade(x)) };
  const small = { "font-size": "11.5px", color: "var(--soft)", "white-space": "nowrap" };
  const cell = (x, r, k) => h(name in SELECTABLE ? "button" : "span", { type: name in SELECTABLE ? "button" : null, translate: "no", tabindex: name in SELECTABLE ? (marks(r, k) === "strong" ? 0 : -1) : null,
    "aria-pressed": name in SELECTABLE ? marks(r, k) === "strong" : null, "aria-label": name in SELECTABLE ? `${title} ${rows[r] ?? ""} ${columns?.[k] ?? ""}: ${number(x)}` : null,
    "data-name": name, "data-i": turned ? k : r, "data-j": turned ? r : k, "data-value": x, title: String(x),
    style: { ...colour(x), "min-width": "34px", padding: "3px 2px", "text-align": "center", "font-size": "12.5px", "font-variant-numeric": "tabular-nums", border: 0, "border-radius": "4px", "line-height": 1.5,
      "box-shadow": marks(r, k) === "strong" ? "0 0 0 2.5px var(--accent)" : marks(r, k) === "weak" ? "0 0 0 1.5px var(--accent)" : "none", cursor: name in SELECTABLE ? "pointer" : "default" } }, number(x));
  return h("div", { style: { "max-width": "100%", "overflow-x": "auto", padding: "3px" } },
    h("div", { style: { ...small, "font-weight": 650, color: role ? `var(${role})` : "var(--soft)", "text-align": "center" } }, title),
    h("div", { style: { display: "grid", gap: "3px", "align-items": "center", "grid-template-columns": `${rows.length ? "auto " : ""}repeat(${data[0].length}, auto)` } },
      columns ? [rows.length ? h("span", {}) : null, columns.map(words => h("span", { translate: "no", style: { ...small, "text-align": "center" } }, words))] : null,
      data.map((values, r) => [rows.length ? h("span", { translate: "no", style: { ...small, "text-align": "right", "padding-right": "3px" } }, rows[r]) : null, values.map((x, k) => cell(x, r, k))])));
}
