// Mechanisms: the four parts of a call, their mask, formula, cost and Python code; and the soft dictionary.
import { cssColour, colourTable } from "lab/colour.js";
import { button, copyButton, number, select } from "lab/controls.js";
import { formatBrief, formatBytes, formatExact, fill, untranslated, h, m, newId, formatPercent } from "lab/dom.js";
import { heatMap } from "lab/heat_map.js";
import { curves, numbersTable } from "lab/charts.js";

export const name = "mechanisms";
export const text = {
  en: {
    title: "Mechanisms",
    lead: "An attention mechanism has four parts: score, position, mask and method. Choose them to see the mask, the formula, the cost and the backend, and copy the Python code. Below, attention as a soft dictionary.",
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
    dictionary: "Soft dictionary",
    dictionaryHow: "A dictionary returns one value for an exact key. Attention compares the query with every key and returns the weighted mean of all values.",
    asked: "Query", entry: "key", value: "value", weight: "weight", part: "weight × value", sharpness: "Inverse temperature", answer: "Soft lookup", hard: "Hard lookup",
    hardHow: word => `only the value of “${word}”`, add: "Add a key", remove: word => `Remove ${word}`,
    unknownWord: "This query has no hand-made vector: it matches only an equal key.", newWord: "word",
  },
  zh: {
    title: "机制", lead: "一种注意力机制由四部分组成：分数、位置、掩码和方法。选择它们，查看掩码、公式、开销和后端，并复制 Python 代码。下方把注意力演示为软字典。",
    score: "分数", position: "位置", mask: "掩码", method: "方法", ask_score: "查询与键的相似度", ask_position: "按位置加偏置或旋转", ask_mask: "查询可以关注哪些键", ask_method: "精确或近似",
    none_score: "Dot()", none_position: "无", none_mask: "不遮挡（全部可见）", none_method: "Exact()", own: "表达式，可编辑", ready: "预设",
    heads: "头数", queries: "查询数", keys: "键数", head_dim: "每头维数",
    maskTitle: "掩码", maskHow: "行 = 查询，列 = 键。", allowed: "可见", some: "部分可见", none: "已掩码", cellAllowed: (i, j) => `查询 ${i} 可以关注键 ${j}`,
    cellSome: (i, j) => `查询 ${i} 中的一部分可以关注键 ${j} 中的一部分`, cellAll: (i, j) => `查询 ${i} 全部可以关注键 ${j} 的全部`, cellNone: (i, j) => `查询 ${i} 不能关注键 ${j}`,
    share: part => `所有查询-键对中有 ${part} 可见。`, tiles: (r, c) => `查询-键对太多，无法逐一画出：每格是 ${r} × ${c} 的分块，由掩码整体判断，不逐对检查。`,
    formula: "公式", plan: "开销", backend: "后端", reason: "不可用的原因", operations: "运算次数", moved: "访存字节数", peak: "额外内存峰值", visited: "访问的分块", unknown: "未知", refused: "不支持这种组合：",
    python: "Python", layer: "作为可训练的层", curve: "位置偏置随距离的变化，每个头一条线", curveX: "距离 i − j", curveY: "加到分数上的偏置", headName: n => `头 ${n}`,
    approximate: "近似方法不逐对比较查询和键，因此预设不带位置项和掩码。加上它们，可以看到哪些组合不被支持。",
    dictionary: "软字典", dictionaryHow: "普通字典用精确匹配的键返回一个值。注意力把查询与每个键比较，返回所有值的加权平均。",
    asked: "查询", entry: "键", value: "值", weight: "权重", part: "权重 × 值", sharpness: "逆温度", answer: "软查找", hard: "硬查找", hardHow: word => `只取“${word}”的值`, add: "添加一个键",
    remove: word => `删除 ${word}`, unknownWord: "这个查询没有人工设定的向量，只能匹配相同的键。", newWord: "词",
  },
};
const QUESTIONS = ["score", "position", "mask", "method"], START = { score: "Dot()", position: "Alibi()", mask: "Causal() & Window(before=8)", method: "" },
  SIZES = { heads: 8, queries: 48, keys: 48, head_dim: 32 };

export async function show(root, lab) {
  const { t, state } = lab, { choices } = await lab.request("mechanisms/choices", {}), lines = Object.fromEntries(QUESTIONS.map(key => [key, state[key] ?? START[key]])),
    sizes = Object.fromEntries(Object.entries(SIZES).map(([key, usual]) => [key, Number(state[key] ?? usual)]));
  const approximate = !["", "-", "Exact()"].includes(lines.method), ask = lab.latestRequest(), place = h("div", { class: "mechanism" }), formulas = {}, page = { lab, place, formulas };
  const again = () => lab.attempt(async () => {
    lab.set({ ...Object.fromEntries(QUESTIONS.map(key => [key, lines[key] || (START[key] ? "-" : null)])), ...sizes });
    place.querySelector(".error")?.remove();
    const clean = Object.fromEntries(QUESTIONS.map(key => [key, lines[key] === "-" ? "" : lines[key]]));
    page.found = await ask("mechanisms/plan", { ...clean, sizes });
    showPlan(page);
  }, place);
  // Linformer's projection is made for one number of keys, and approximations compare no single pair: they take no position bias and few masks.
  const fitted = line => line.replace(/tokens=\d+/, `tokens=${sizes.keys}`);
  const pickMethod = line => lab.set({ ...sizes, method: line || "-", position: line ? "-" : null, mask: line ? "-" : null }, { show: true });
  const question = key => {
    const known = choices[key].map(line => key === "method" ? fitted(line) : line), words = line => line === "" || line === "-" ? t(`none_${key}`) : line, id = newId();
    const own = h("input",
      { type: "text", id, value: lines[key] === "-" ? "" : lines[key], spellcheck: "false", translate: "no", placeholder: t(`none_${key}`),
        "aria-label": `${t(key)}: ${t("own")}`, onchange: event => { lines[key] = event.target.value.trim() || "-", again(); } });
    formulas[key] = h("p", { class: "soft", translate: "no" });
    return h("section", { class: "card question" }, h("h3", {}, t(key)), h("p", { class: "soft" }, t(`ask_${key}`)),
      select(t("ready"), known.map(line => [line, words(line), Boolean(line)]), lines[key] === "-" ? "" : lines[key],
        line => { if (key === "method") return pickMethod(line); lines[key] = line || "-", own.value = line, again(); }),
      own, key === "method" && approximate ? h("p", { class: "soft" }, t("approximate")) : null, formulas[key]);
  };
  root.append(h("div", { class: "questions" }, QUESTIONS.map(question)),
    h("div", { class: "row" }, Object.keys(SIZES).map(key => number(t(key), sizes[key], { min: 1, max: 131072 }, value => { sizes[key] = value; if (key === "keys" && approximate) return lab.set({ ...sizes, method: fitted(lines.method) }, { show: true }); again(); }))), place);
  await again();
  await dictionary(root, lab);
  lab.expose({ read: () => ({ plan: page.found?.plan, python: page.found?.python, allowed: page.found?.allowed, ...lab.dictionary }) });
}

function showPlan(page) {
  const { lab, place, found, formulas } = page, { t } = lab;
  for (const key of QUESTIONS) fill(formulas[key], found.formula[key] ? mathOf(found.formula[key]) : "");
  page.map = heatMap(lab, maskOptions(lab, found));
  const heads = found.curve?.added.shape[0] ?? 0, width = found.curve?.distance.shape[0], palette = colourTable("weights");
  fill(place, found.refused ? h("div", { class: "error", role: "alert" }, h("p", {}, t("refused")), h("p", { translate: "no" }, found.refused)) : null,
    h("section", { class: "card" }, h("h3", {}, t("formula")), h("div", { class: "math" }, formulaOf(found))),
    h("div", { class: "columns" },
      h("section", { class: "card narrow" }, page.map.element, h("p", { class: "soft" }, found.tiles ? t("tiles", ...found.tile) : t("share", formatPercent(found.allowed)))),
      h("div", { class: "stack" }, planCard(lab, found.plan),
        h("section", { class: "card" }, code(lab, t("python"), found.python), found.layer ? code(lab, t("layer"), found.layer) : null),
        found.curve ? h("section", { class: "card" },
          curves(lab,
            { title: t("curve"), xWords: t("curveX"), yWords: t("curveY"), width: 460, height: 210,
              series: Array.from({ length: Math.min(heads, 8) },
                (_,
                  n) => ({ name: t("headName", n), xs: found.curve.distance.data, ys: found.curve.added.data.subarray(n * width, (n + 1) * width),
                    colour: cssColour(palette[90 + Math.floor(n * 150 / Math.max(1, Math.min(heads, 8) - 1))]) })) })) : null)));
}
function maskOptions(lab, found) {
  const { t } = lab, tiles = found.tiles, held = tiles ?? found.mask, [r, c] = found.tile ?? [1, 1],
    span = (n, step, size) => step === 1 ? String(n) : `${n * step}–${Math.min(size, (n + 1) * step) - 1}`;
  const state = (i, j) => tiles ? tiles.data[i * held.shape[1] + j] : 2 * held.data[i * held.shape[1] + j], row = i => span(i, r, found.sizes.queries),
    column = j => span(j, c, found.sizes.keys), shade = colourTable("weights");
  const swatch = (value, words) => h("span", { class: "swatch" },
    h("span", { class: value === null ? "hatched" : "patch", style: value === null ? {} : { background: cssColour(shade[Math.round(255 * value)]) } }), words);
  return { title: t("maskTitle"), values: Float32Array.from(held.data, (_, n) => state(Math.floor(n / held.shape[1]), n % held.shape[1]) === 2 ? 0.62 : 0.25),
    masked: Uint8Array.from(held.data, (_, n) => state(Math.floor(n / held.shape[1]), n % held.shape[1]) === 0 ? 1 : 0), shape: held.shape, rowNames: row,
    columnNames: column, scale: "linear", sums: false, top: 0, orientation: t("maskHow"), name: "mask", height: 430,
    selected: [Math.floor(held.shape[0] / 2), Math.floor(held.shape[0] / 2)],
    legend: h("div", { class: "legend" }, swatch(0.62, t("allowed")), tiles ? swatch(0.25, t("some")) : null, swatch(null, t("none"))),
      words: (i, j) => t(["cellNone", "cellSome", tiles ? "cellAll" : "cellAllowed"][state(i, j)], row(i), column(j)), rowNumber: () => "", columnNumber: () => "" };
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
  const inside = [...mathOf(formula.score).children], added = formula.position ? [m("mo", {}, "+"), ...mathOf(formula.position).children] : [],
    sub = (letter, index, role) => m("msub", { class: role }, m("mi", {}, letter), m("mi", {}, index));
  if (parts.method && !/^Exact/.test(parts.method.line)) return m("math", { display: "block" },
    m("mrow", {}, m("mi", { class: "output" }, "o"), m("mo", {}, "≈"), ...mathOf(formula.method).children));
  return m("math", { display: "block" },
    m("mrow", {}, sub("o", "i", "output"), m("mo", {}, "="),
      m("munder", {}, m("mo", {}, "∑"), formula.mask ? m("mrow", {}, m("mi", {}, "j"), m("mo", {}, ":"), ...mathOf(formula.mask).children) : m("mi", {}, "j")),
      m("msub", {}, m("mi", {}, "softmax"), m("mi", {}, "j")), m("mo", {}, "("), ...inside, ...added, m("mo", {}, ")"), sub("v", "j", "value")));
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
            [t("entry"), "q·k", t("weight"), "", t("value"), t("part"), ""].map(words => h("th", { scope: "col", translate: words === "q·k" ? "no" : null }, words)))),
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
        code(lab, t("python"), found.python));
    if (focus) result.querySelector(`[data-at="${focus}"]`)?.focus();
  }
  root.append(h("section", { class: "card" }, h("h2", {}, t("dictionary")), h("p", { class: "soft" }, t("dictionaryHow")),
    h("div", { class: "row" }, h("div", { class: "field" }, h("span", {}, t("asked")), asked), concepts,
      h("label", { class: "field", for: id }, h("span", {}, t("sharpness"), " ", told), slider),
      button(t("add"), () => { let word = t("newWord"), n = 2; while (word in it.entries) word = `${t("newWord")} ${n++}`; it.entries[word] = 1, again(); })),
    result));
  await again();
}
