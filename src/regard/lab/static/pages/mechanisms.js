// Mechanisms: the four parts of a call as pictures to choose and to drag; their mask and bias, code, formula and cost; and the soft dictionary.
import { cssColour, colourTable, hatch, shader } from "lab/colour.js";
import { button, copyButton, number } from "lab/controls.js";
import { clamp, formatBrief, formatBytes, formatExact, formatShort, fill, untranslated, h, m, newId, formatPercent, scaleCanvas } from "lab/dom.js";
import { heatMap, zeroCentred } from "lab/heat_map.js";
import { largest } from "lab/matrix.js";
import { cards, fold, stage } from "lab/stage.js";
import { curves, numbersTable } from "lab/charts.js";

export const name = "mechanisms";
export const text = {
  en: {
    title: "Mechanisms",
    lead: "An attention mechanism has four parts: score, position, mask and method. Choose a picture, drag a slider or drag in the map; the map, the code line and the cost follow. Below, attention as a soft dictionary.",
    score: "Score", position: "Position", mask: "Mask", method: "Method", ask_score: "Similarity of a query and a key", ask_position: "Bias or rotation by position",
    ask_mask: "Which keys a query can attend to", ask_method: "Exact or approximate",
    none_score: "Dot()", none_position: "none", none_mask: "none (all keys visible)", none_method: "Exact()", own: "expression, editable", ready: "presets",
    heads: "heads", queries: "queries", keys: "keys", head_dim: "head dim",
    maskTitle: "Mask", maskHow: "Rows = queries, columns = keys.", allowed: "visible", some: "partly visible",
    none: "masked", cellAllowed: (i, j) => `query ${i} can attend to key ${j}`, cellSome: (i, j) => `some of queries ${i} can attend to some of keys ${j}`,
    cellAll: (i, j) => `all of queries ${i} can attend to all of keys ${j}`, cellNone: (i, j) => `query ${i} cannot attend to key ${j}`,
    share: part => `${part} of all query-key pairs are visible.`,
    tiles: (r, c) => `There are too many pairs to draw: each cell is a tile of ${r} × ${c} pairs. The mask classifies each tile as a whole, without testing the pairs.`,
    formula: "Formula", plan: "Cost", backend: "backend", reason: "why not", operations: "operations", moved: "bytes moved", peak: "peak extra memory",
    visited: "tiles visited", unknown: "unknown", refused: "This combination is refused:", python: "Python", layer: "As a trainable layer",
    curve: "Position bias by distance, one line per head", curveX: "distance i − j", curveY: "bias added to the score", headName: n => `head ${n}`,
    approximate: "An approximation compares no single pair of query and key, so presets start without position and mask. Add them to see what is refused.",
    look: (most, keys, share) => `a query sees at most ${most} of ${keys} keys; ${share} of all pairs are visible.`, lookTiles: work => ` The backend visits ${work} of the tiles.`, lookBias: (head, low) => `In head ${head} the bias falls to ${low} at the farthest visible key.`, dragHow: "Drag in the map to widen or narrow the window.", biasTitle: head => `Mask and position bias of head ${head}`, biasWhat: "bias", code: "Code", headSlider: "head shown",
    m0: "everything", m1: "causal", m2: "window", m3: "causal window", m4: "dilated", m5: "window + global", m6: "Longformer", m7: "BigBird", m8: "random blocks", m9: "all but near", p0: "none", p1: "ALiBi", p2: "rotary", p3: "learned bias", p4: "T5", p5: "Shaw", p6: "Transformer-XL",
    dictionary: "Soft dictionary",
    dictionaryHow: "A dictionary returns one value for an exact key. Attention compares the query with every key and returns the weighted mean of all values.",
    asked: "Query", entry: "key", value: "value", weight: "weight", part: "weight × value", sharpness: "Inverse temperature", answer: "Soft lookup", hard: "Hard lookup",
    hardHow: word => `only the value of “${word}”`, add: "Add a key", remove: word => `Remove ${word}`,
    unknownWord: "This query has no hand-made vector: it matches only an equal key.", newWord: "word",
  },
  zh: {
    title: "机制", lead: "一种注意力机制由四部分组成：分数、位置、掩码和方法。选一幅小图，拖动滑块或直接在图中拖动，图、代码和开销都会跟着变。下方把注意力演示为软字典。",
    score: "分数", position: "位置", mask: "掩码", method: "方法", ask_score: "查询与键的相似度", ask_position: "按位置加偏置或旋转", ask_mask: "查询可以关注哪些键", ask_method: "精确或近似",
    none_score: "Dot()", none_position: "无", none_mask: "不遮挡（全部可见）", none_method: "Exact()", own: "表达式，可编辑", ready: "预设",
    heads: "头数", queries: "查询数", keys: "键数", head_dim: "每头维数",
    maskTitle: "掩码", maskHow: "行 = 查询，列 = 键。", allowed: "可见", some: "部分可见", none: "已掩码", cellAllowed: (i, j) => `查询 ${i} 可以关注键 ${j}`,
    cellSome: (i, j) => `查询 ${i} 中的一部分可以关注键 ${j} 中的一部分`, cellAll: (i, j) => `查询 ${i} 全部可以关注键 ${j} 的全部`, cellNone: (i, j) => `查询 ${i} 不能关注键 ${j}`,
    share: part => `所有查询-键对中有 ${part} 可见。`, tiles: (r, c) => `查询-键对太多，无法逐一画出：每格是 ${r} × ${c} 的分块，由掩码整体判断，不逐对检查。`,
    formula: "公式", plan: "开销", backend: "后端", reason: "不可用的原因", operations: "运算次数", moved: "访存字节数", peak: "额外内存峰值", visited: "访问的分块", unknown: "未知", refused: "不支持这种组合：",
    python: "Python", layer: "作为可训练的层", curve: "位置偏置随距离的变化，每个头一条线", curveX: "距离 i − j", curveY: "加到分数上的偏置", headName: n => `头 ${n}`,
    approximate: "近似方法不逐对比较查询和键，因此预设不带位置项和掩码。加上它们，可以看到哪些组合不被支持。",
    look: (most, keys, share) => `每个查询最多看到 ${keys} 个键中的 ${most} 个；所有查询-键对中有 ${share} 可见。`, lookTiles: work => `后端只访问 ${work} 的分块。`, lookBias: (head, low) => `头 ${head} 的偏置在最远的可见键上降到 ${low}。`, dragHow: "在图中拖动，可以加宽或收窄窗口。", biasTitle: head => `头 ${head} 的掩码与位置偏置`, biasWhat: "偏置", code: "代码", headSlider: "显示的头",
    m0: "全部可见", m1: "因果", m2: "窗口", m3: "因果窗口", m4: "空洞", m5: "窗口 + 全局", m6: "Longformer", m7: "BigBird", m8: "随机分块", m9: "仅远处", p0: "无", p1: "ALiBi", p2: "旋转", p3: "可学习偏置", p4: "T5", p5: "Shaw", p6: "Transformer-XL",
    dictionary: "软字典", dictionaryHow: "普通字典用精确匹配的键返回一个值。注意力把查询与每个键比较，返回所有值的加权平均。",
    asked: "查询", entry: "键", value: "值", weight: "权重", part: "权重 × 值", sharpness: "逆温度", answer: "软查找", hard: "硬查找", hardHow: word => `只取“${word}”的值`, add: "添加一个键",
    remove: word => `删除 ${word}`, unknownWord: "这个查询没有人工设定的向量，只能匹配相同的键。", newWord: "词",
  },
};
const QUESTIONS = ["mask", "position", "score", "method"], START = { score: "Dot()", position: "Alibi()", mask: "Causal() & Window(before=8)", method: "" }, SIZES = { heads: 8, queries: 48, keys: 48, head_dim: 32 };
// The numbers of a part that can be dragged, with their ranges; `keys` stands for the number of keys.
const RANGES = { before: [0, "keys"], after: [0, "keys"], window: [1, "keys"], tokens: [0, 16], step: [1, 8], block: [2, 24], count: [1, 6], random: [0, 6], reach: [1, 64], buckets: [4, 64], landmarks: [2, 48], features: [8, 256], rank: [2, 48], scale: [0.1, 20], base: [10, 10000] };
const SIGNS = { "Rotary()": "↻", "Bias(reach=16)": "b", "Shaw(reach=8)": "q·a", "TransformerXL(reach=32)": "q·r" };

export async function show(root, lab) {
  const { t, state } = lab, [{ choices }, pictures] = await Promise.all([lab.request("mechanisms/choices", {}), lab.request("mechanisms/pictures", {})]), lines = Object.fromEntries(QUESTIONS.map(key => [key, state[key] ?? START[key]])), sizes = Object.fromEntries(Object.entries(SIZES).map(([key, usual]) => [key, Number(state[key] ?? usual)]));
  const page = { lab, lines, sizes, shownHead: clamp(Number(state.shown ?? 0), 0, sizes.heads - 1), place: h("div", { class: "mechanism" }), formulas: {}, fields: {}, sliders: h("div", { class: "mechanism-sliders" }), ask: lab.latestRequest(), code: h("pre", { class: "code-line", translate: "no", tabindex: 0 }) };
  page.again = () => lab.attempt(async () => {
    lab.set({ ...Object.fromEntries(QUESTIONS.map(key => [key, lines[key] || (START[key] ? "-" : null)])), ...sizes, shown: page.shownHead || null });
    const clean = Object.fromEntries(QUESTIONS.map(key => [key, lines[key] === "-" ? "" : lines[key]])), found = await page.ask("mechanisms/plan", { ...clean, sizes, head: page.shownHead }).catch(error => { if (error.name !== "AbortError") throw error; });
    page.place.querySelector(".error")?.remove();
    if (found) page.found = found, showPlan(page);
  }, page.place);
  // Linformer's projection is made for one number of keys, and approximations compare no single pair: they take no position bias and few masks.
  page.fitted = line => line.replace(/Linformer\(tokens=\d+/, `Linformer(tokens=${sizes.keys}`);
  page.choose = (key, line) => {
    if (key === "method") { page.lines.method = line || "-"; if (line) lines.position = "-", lines.mask = "-"; else lines.position = START.position, lines.mask = START.mask; } else lines[key] = line || "-";
    for (const name of QUESTIONS) page.fields[name].value = lines[name] === "-" ? "" : lines[name];
    showSliders(page), mark(page);
    return page.again();
  };
  page.numbers = h("div", { class: "row sizes" }, Object.keys(SIZES).map(key => number(t(key), sizes[key], { min: 1, max: 131072 }, value => { sizes[key] = value; if (key === "heads") page.shownHead = Math.min(page.shownHead, value - 1); if (key === "keys") lines.method = page.fitted(lines.method), page.fields.method.value = lines.method === "-" ? "" : lines.method; showSliders(page), page.again(); })));
  page.map = null, page.box = h("div", { class: "mechanism-map" }), page.details = h("div", { class: "mechanism-details" });
  page.questions = QUESTIONS.map(key => question(page, key, choices[key], pictures[key]));
  page.stage = stage(lab, { picture: [page.box, h("p", { class: "soft help" }, t("dragHow"))], side: [h("section", { class: "card code-card" }, h("div", { class: "map-head" }, h("h3", {}, t("code")), copyButton(lab, () => page.code.textContent)), page.code, page.place), page.questions[0], page.sliders, page.questions[1], page.questions[2], page.questions[3], page.numbers], wide: true });
  root.append(page.stage.element, page.details);
  showSliders(page), mark(page);
  await page.again();
  await dictionary(root, lab);
  // a saved view has every mask and position that can be chosen
  const keep = () => ["mask", "position"].flatMap(key => choices[key].map(line => ({ path: "mechanisms/plan", body: { ...Object.fromEntries(QUESTIONS.map(name => [name, lines[name] === "-" ? "" : lines[name]])), [key]: line, sizes: { ...sizes }, head: page.shownHead } })));
  lab.expose({ keep, read: () => ({ plan: page.found?.plan, python: page.found?.python, code: page.code.textContent, allowed: page.found?.allowed, lines: { ...lines }, ...lab.dictionary }) });
}

// One part: pictures or names to choose from, and its expression.
function question(page, key, listed, pictures) {
  const { lab, lines } = page, { t } = lab, known = listed.map(line => key === "method" ? page.fitted(line) : line), words = (line, n) => pictures ? t(`${key[0]}${n}`) : line === "" ? t(`none_${key}`) : line;
  const choice = (line, n) => h("button", { type: "button", class: pictures ? "preset picture" : "chip preset", "data-line": line, "aria-pressed": false, translate: pictures || !line ? null : "no", onclick: () => page.choose(key, key === "method" ? page.fitted(line) : line) }, pictures ? h("span", { translate: "no", title: line || null }, thumbnail(key, pictures[n], line)) : null, h("span", {}, words(line, n)));
  const own = h("input", { type: "text", value: lines[key] === "-" ? "" : lines[key], spellcheck: "false", translate: "no", placeholder: t(`none_${key}`), "aria-label": `${t(key)}: ${t("own")}`, onchange: event => { lines[key] = event.target.value.trim() || "-", showSliders(page), mark(page), page.again(); } });
  page.fields[key] = own, page.formulas[key] = h("span", { class: "soft", translate: "no" });
  return h("section", { class: "question", "data-question": key }, h("div", { class: "question-head" }, h("h3", { title: t(`ask_${key}`) }, t(key)), own), h("div", { class: pictures ? "gallery" : "chips" }, known.map(choice)), key === "method" ? h("p", { class: "soft approximate", hidden: true }, t("approximate")) : null);
}
function thumbnail(key, held, line) {
  if (!held || (key === "position" && held.data.every(x => x === 0))) return h("span", { class: "preset-sign", "aria-hidden": "true" }, SIGNS[line] ?? "·");
  const canvas = h("canvas", { "aria-hidden": "true" }), pen = scaleCanvas(canvas, 46, 46), [rows, columns] = held.shape, most = largest(held.data), shade = key === "mask" ? null : shader("scores", [-most, most]), solid = cssColour(colourTable("weights")[158]);
  pen.fillStyle = hatch(pen), pen.fillRect(0, 0, 46, 46);
  for (let n = 0; n < rows * columns; n++) { if (key === "mask" && !held.data[n]) continue; pen.fillStyle = key === "mask" ? solid : cssColour(shade(held.data[n])), pen.fillRect(n % columns * 46 / columns, Math.floor(n / columns) * 46 / rows, 46 / columns + 0.4, 46 / rows + 0.4); }
  return canvas;
}
function mark(page) {
  for (const [n, key] of QUESTIONS.entries()) for (const node of page.questions[n].querySelectorAll(".preset")) node.setAttribute("aria-pressed", node.dataset.line === (page.lines[key] === "-" ? "" : page.lines[key]) || shape(node.dataset.line) === shape(page.lines[key]) && page.lines[key] !== "-");
  page.questions[3].querySelector(".approximate").hidden = ["", "-", "Exact()"].includes(page.lines.method);
}
const shape = line => line.replace(/\d+(\.\d+)?/g, "#");
// A slider for every number of the parts; the map follows it.
function showSliders(page) {
  const { lab, lines, sizes } = page, { t } = lab, all = [];
  for (const key of QUESTIONS) for (const found of lines[key].matchAll(/(\w+)=(\d+(?:\.\d+)?)/g)) {
    const [, name, value] = found, range = RANGES[name];
    if (!range || (key === "method" && name === "tokens")) continue;
    all.push({ key, name, value: Number(value), at: found.index, low: range[0], high: range[1] === "keys" ? Math.max(8, Math.min(sizes.keys - 1, 512)) : range[1], step: range[0] % 1 ? 0.1 : 1, length: found[0].length });
  }
  const slider = ({ name, value, low, high, step }, oninput, words = name) => { const id = newId(), out = h("output", { for: id, translate: "no" }, value); return h("label", { class: "slider", for: id }, h("span", { translate: words === name ? "no" : null }, words), h("input", { type: "range", id, min: low, max: high, step, value, "data-slider": name, oninput: event => { fill(out, event.target.value), oninput(event.target.value); } }), out); };
  fill(page.sliders, all.map((one, n) => slider(one, value => setNumber(page, one.key, n - all.findIndex(other => other.key === one.key), value))),
    lines.position !== "-" && lines.position ? slider({ name: "head", value: page.shownHead, low: 0, high: sizes.heads - 1, step: 1 }, value => { page.shownHead = Number(value), page.again(); }, t("headSlider")) : null);
}
// The n-th number of a part that has a slider.
function setNumber(page, key, n, value) {
  let seen = -1;
  page.lines[key] = page.lines[key].replace(/(\w+)=(\d+(?:\.\d+)?)/g, (whole, name) => RANGES[name] && !(key === "method" && name === "tokens") && ++seen === n ? `${name}=${value}` : whole);
  page.fields[key].value = page.lines[key], page.again();
}
// Dragging in the map sets how far a window reaches: to the left of the diagonal `before`, to the right `after`.
function dragWindow(page) {
  const { canvas } = page.map;
  let dragging = false;
  const set = event => {
    const edge = canvas.getBoundingClientRect(), { box } = page.map, { queries, keys } = page.found.sizes, scale = page.found.tile ?? [1, 1];
    const j = clamp(Math.floor((event.clientX - edge.left - box.left) / box.w * scale[1]), 0, keys - 1), i = clamp(Math.floor((event.clientY - edge.top - box.top) / box.h * scale[0]), 0, queries - 1) + keys - queries, name = j <= i ? "before" : "after";
    if (!new RegExp(`\\b${name}=\\d+`).test(page.lines.mask)) return;
    const line = page.lines.mask.replace(new RegExp(`\\b${name}=\\d+`), `${name}=${Math.abs(i - j)}`);
    if (line !== page.lines.mask) page.lines.mask = line, page.fields.mask.value = line, showSliders(page), page.again();
  };
  canvas.addEventListener("pointerdown", event => { if (event.button === 0) dragging = true, canvas.setPointerCapture?.(event.pointerId); });
  canvas.addEventListener("pointermove", event => { if (dragging) set(event); });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { dragging = false; });
}

function showPlan(page) {
  const { lab, place, found } = page, { t } = lab, options = maskOptions(lab, found, page.shownHead), kind = `${options.kind}${found.tiles ? "t" : ""}`;
  if (page.map && page.kind === kind) page.map.update(options);
  else page.map = heatMap(lab, options), page.kind = kind, fill(page.box, page.map.element, page.map.readout), dragWindow(page);
  fill(page.code, found.python.split("\n").at(-1).replace(/^y = /, ""));
  fill(place, found.refused ? h("div", { class: "error", role: "alert" }, h("p", {}, t("refused")), h("p", { translate: "no" }, found.refused)) : null);
  const share = found.allowed === null ? null : formatPercent(found.allowed), low = found.bias ? Math.min(...found.bias.data.filter((_, n) => found.mask.data[n])) : 0;
  const [rows, columns] = found.mask?.shape ?? [0, 0], most = Math.max(...Array.from({ length: rows }, (_, i) => found.mask.data.subarray(i * columns, (i + 1) * columns).reduce((sum, x) => sum + (x ? 1 : 0), 0)));
  page.stage.look([share ? t("look", most, columns, share) : t("tiles", ...found.tile), found.plan.tiles < 0.995 ? t("lookTiles", formatPercent(found.plan.tiles)) : "", found.bias && low < 0 ? ` ${t("lookBias", page.shownHead, formatShort(low))}` : ""]);
  const heads = found.curve?.added.shape[0] ?? 0, width = found.curve?.distance.shape[0], palette = colourTable("weights");
  fill(page.details, h("section", { class: "card" }, h("h3", {}, t("formula")), h("div", { class: "math", tabindex: 0, role: "region", "aria-label": t("formula") }, formulaOf(found))),
    cards(found.curve ? h("section", { class: "card" }, curves(lab, { title: t("curve"), xWords: t("curveX"), yWords: t("curveY"), width: 460, height: 200,
      series: Array.from({ length: Math.min(heads, 8) }, (_, n) => ({ name: t("headName", n), strong: n === page.shownHead ? true : false, xs: found.curve.distance.data, ys: found.curve.added.data.subarray(n * width, (n + 1) * width), colour: cssColour(palette[90 + Math.floor(n * 150 / Math.max(1, Math.min(heads, 8) - 1))]) })) })) : null, planCard(lab, found.plan)),
    fold(t("python"), code(lab, t("python"), found.python), found.layer ? code(lab, t("layer"), found.layer) : null));
}
// The first key that a query sees.
const farthest = ({ shape: [, columns], data }, row) => { const first = data.subarray(row * columns, (row + 1) * columns).findIndex(Boolean); return first < 0 ? Math.min(row, columns - 1) : first; };
function maskOptions(lab, found, shownHead) {
  const { t } = lab, { tiles, bias } = found, held = tiles ?? found.mask, [r, c] = found.tile ?? [1, 1], span = (n, step, size) => step === 1 ? String(n) : `${n * step}–${Math.min(size, (n + 1) * step) - 1}`;
  const state = (i, j) => tiles ? tiles.data[i * held.shape[1] + j] : 2 * held.data[i * held.shape[1] + j], row = i => span(i, r, found.sizes.queries), column = j => span(j, c, found.sizes.keys), shade = colourTable("weights");
  const swatch = (value, words) => h("span", { class: "swatch" }, h("span", { class: value === null ? "hatched" : "patch", style: value === null ? {} : { background: cssColour(shade[Math.round(255 * value)]) } }), words);
  const plain = { masked: Uint8Array.from(held.data, (_, n) => state(Math.floor(n / held.shape[1]), n % held.shape[1]) === 0 ? 1 : 0), shape: held.shape, rowNames: row, columnNames: column, sums: false, top: 0, name: "mask", height: Math.min(560, innerHeight * 0.6), aside: true, selected: [Math.floor(held.shape[0] / 2), farthest(held, Math.floor(held.shape[0] / 2))], rowNumber: () => "", columnNumber: () => "" };
  if (bias && !tiles) return { ...plain, title: t("biasTitle", shownHead), values: bias.data, kind: "scores", domain: zeroCentred(bias.data.filter((_, n) => held.data[n])), what: t("biasWhat"), digits: 1, orientation: t("maskHow"), words: null, legend: null };
  return { ...plain, title: t("maskTitle"), values: Float32Array.from(held.data, (_, n) => state(Math.floor(n / held.shape[1]), n % held.shape[1]) === 2 ? 0.62 : 0.25), kind: "weights", domain: [0, 1], scale: "linear", orientation: t("maskHow"),
    legend: h("div", { class: "legend" }, swatch(0.62, t("allowed")), tiles ? swatch(0.25, t("some")) : null, swatch(null, t("none"))), words: (i, j) => t(["cellNone", "cellSome", tiles ? "cellAll" : "cellAllowed"][state(i, j)], row(i), column(j)) };
}
function planCard(lab, plan) {
  const { t } = lab, told = x => x ? x.toLocaleString("en") : t("unknown"), size = x => x ? formatBytes(x) : t("unknown");
  return h("section", { class: "card" }, h("h3", {}, t("plan")),
    h("dl", { class: "plan" },
      [[t("backend"), untranslated(plan.backend)], [t("operations"), told(plan.operations)], [t("moved"), size(plan.bytes)], [t("peak"), size(plan.peak)],
        [t("visited"), formatPercent(plan.tiles)]].map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    numbersTable(lab, { caption: t("reason"), folded: true, columns: [t("backend"), t("reason")], rows: Object.entries(plan.reasons) }));
}
const code = (lab, title, words) => [h("div", { class: "map-head" }, h("h3", {}, title), copyButton(lab, () => words)),
  h("pre", { translate: "no", tabindex: 0 }, words)];
// A part's formula, as it prints itself, in MathML.
function mathOf(words) {
  const parts = words.match(/[\p{L}_][\p{L}\p{M}\p{N}_]*|[\d.]+|\s+|./gu) ?? [];
  return m("math", {},
    m("mrow", {},
      parts.map(part => /^\s+$/.test(part) ? m("mspace",
        { width: "0.25em" }) : /^[\p{L}_]/u.test(part) ? (/^(and|or|not|if)$/.test(part) ? m("mtext", {}, ` ${part} `) : m("mi",
          { class: /^q/.test(part) ? "query" : /^k/.test(part) ? "key" : /^v$/.test(part) ? "value" : null }, part)) : /^[\d.]+$/.test(part) ? m("mn",
        {}, part) : m("mo", {}, part))));
}
function formulaOf({ formula, parts }) {
  const inside = [...mathOf(formula.score).children], minus = /^[−-]/.test(formula.position ?? ""), added = formula.position ? [m("mo", {}, minus ? "−" : "+"), ...mathOf(formula.position.replace(/^[−-]\s*/, "")).children] : [],
    sub = (letter, index, role) => m("msub", { class: role }, m("mi", {}, letter), m("mi", {}, index));
  if (parts.method && !/^Exact/.test(parts.method.line)) return m("math", { display: "block" },
    m("mrow", {}, m("mi", { class: "output" }, "o"), m("mo", {}, "≈"), ...mathOf(formula.method).children));
  return m("math", { display: "block" },
    m("mrow", {}, sub("o", "i", "output"), m("mo", {}, "="),
      m("munder", {}, m("mo", {}, "∑"), formula.mask ? m("mrow", {}, m("mi", {}, "j"), m("mo", {}, ":"), ...mathOf(formula.mask).children) : m("mi", {}, "j")),
      m("msub", {}, m("mi", {}, "softmax"), m("mi", {}, "j")), m("mrow", {}, m("mo", {}, "("), ...inside, ...added, m("mo", {}, ")")), sub("v", "j", "value")));
}

// The soft dictionary: fruit → apple, banana, chair.
async function dictionary(root, lab) {
  const { t, state } = lab, ask = lab.latestRequest(), read = () => { try { return JSON.parse(state.entries ?? ""); } catch { return { apple: 10, banana: 5, chair: 2 }; } };
  const it = { asked: state.asked ?? (lab.language === "zh" ? "水果" : "fruit"),
    entries: state.entries ? read() : lab.language === "zh" ? { 苹果: 10, 香蕉: 5, 椅子: 2 } : read(), sharpness: Number(state.sharpness ?? 1) },
    result = h("div", { id: "dictionary" }), id = newId();
  const slider = h("input",
    { type: "range", id, min: 0, max: 3, step: 0.05, value: it.sharpness, oninput: event => { it.sharpness = Number(event.target.value), again(); } }),
    told = h("output", { for: id });
  const asked = h("input",
    { type: "text", value: it.asked, translate: "no", "aria-label": t("asked"), onchange: event => { it.asked = event.target.value.trim(), again(); } }),
    concepts = h("span", { class: "chips" });
  const again = () => lab.attempt(async () => {
    lab.set({ asked: it.asked, sharpness: it.sharpness, entries: JSON.stringify(it.entries) });
    const found = await ask("mechanisms/dictionary", { asked: it.asked, entries: it.entries, sharpness: it.sharpness });
    lab.dictionary = { dictionary: { words: found.words, weights: Array.from(found.weights.data), answer: found.answer } };
    showDictionary(found);
  }, result);
  function showDictionary(found) {
    fill(told, formatBrief(it.sharpness, 2));
    fill(concepts,
      found.concepts.flat().map(word => button(word, () => { it.asked = word, asked.value = word, again(); },
        { class: "chip", translate: "no", "aria-pressed": word === it.asked })));
    const focus = result.contains(document.activeElement) && document.activeElement.dataset.at, most = Math.max(...found.weights.data);
    const rename = (old, word) => { it.entries = Object.fromEntries(Object.entries(it.entries).map(([key, value]) => [key === old ? word || old : key, value])),
      again(); };
    fill(result, found.known ? null : h("p", { class: "note" }, t("unknownWord")),
      h("table", { class: "numbers soft-dictionary" },
        h("thead", {},
          h("tr", {},
            [t("entry"), "q·k", t("weight"), "", t("value"), t("part"), ""].map(words => words ? h("th", { scope: "col", translate: words === "q·k" ? "no" : null }, words) : h("td", {})))),
        h("tbody", {}, found.words.map((word, n) => h("tr", {},
      h("td", {},
        h("input",
          { type: "text", value: word, size: 9, translate: "no", "aria-label": t("entry"), "data-at": `w${n}`,
            onchange: event => rename(word, event.target.value.trim()) })),
        h("td", { class: "number", title: formatExact(found.scores.data[n]) }, formatBrief(found.scores.data[n])), h("td", { class: "number", "data-weight": found.weights.data[n], title: formatExact(found.weights.data[n]) }, formatBrief(found.weights.data[n])),
        h("td", { class: "bar" }, h("span", { style: { width: `${100 * found.weights.data[n] / most}%` } })),
      h("td", {},
        h("input",
          { type: "number", value: it.entries[word], "aria-label": t("value"), "data-at": `v${n}`,
            onchange: event => { it.entries[word] = Number(event.target.value), again(); } })),
        h("td", { class: "number", title: formatExact(Math.fround(found.weights.data[n] * found.v.data[n])) }, formatBrief(found.weights.data[n] * found.v.data[n])),
        h("td", {}, found.words.length > 1 ? button("×", () => { delete it.entries[word], again(); }, { class: "small", "aria-label": t("remove", word) }) : null))))),
      h("div", { class: "answers" }, h("p", {}, t("answer"), " ", h("b", { class: "output", "data-answer": found.answer, title: formatExact(Math.fround(found.answer)) }, formatBrief(found.answer))),
        h("p", { class: "soft" }, t("hard"), " ", h("b", {}, formatExact(found.hard.value)), " · ", t("hardHow", found.hard.word))),
        fold(t("python"), code(lab, t("python"), found.python)));
    if (focus) result.querySelector(`[data-at="${focus}"]`)?.focus();
  }
  root.append(h("section", { class: "card" }, h("h2", {}, t("dictionary")), h("p", { class: "soft" }, t("dictionaryHow")),
    h("div", { class: "row" }, h("div", { class: "field" }, h("span", {}, t("asked")), asked), concepts,
      h("label", { class: "field", for: id }, h("span", {}, t("sharpness"), " ", told), slider),
      button(t("add"), () => { let word = t("newWord"), n = 2; while (word in it.entries) word = `${t("newWord")} ${n++}`; it.entries[word] = 1, again(); })),
    result));
  await again();
}
