// Alignment: beam search step by step, and the cross-attention of the generated text to the source (tokens, or seconds of audio).
import { allUnknown, bar, boundaryOf, button, captionWords, chosenModel, cautionLine, exampleOf, exampleState, inputBox, modelPicker, noticeBox, backendLine, select, startText, withProgress } from "lab/controls.js";
import { formatExact, fill, untranslated, h, numeral, formatPercent, visibleText, prefersReducedMotion, tokenNames, UNKNOWN_MARK } from "lab/dom.js";
import { modelInput } from "lab/inputs.js";
import { attentionLines } from "lab/attention_lines.js";
import { heatMap } from "lab/heat_map.js";
import { beamTree, endOf, pathOf } from "lab/beam_tree.js";
import { fold, stage } from "lab/stage.js";
import { tokenStrip } from "lab/token_strip.js";

export const name = "alignment";

export const text = {
  en: {
    title: "Alignment", lead: "Cross-attention of a decoder while it generates text. Left the source, right the output: each output token attends to source tokens. Point at a token to see its lines, click to keep it. The map beside it has every pair: rows are output tokens, columns are source tokens. Below, the beam search step by step.",
    look: (query, key, share, where) => `“${query}” attends most to “${key}”: ${share} of its weight (${where}).`, ofMean: layer => `mean of all heads of layer ${layer}`, ofHead: (layer, head) => `layer ${layer}, head ${head}`, output: "Output", source: "Source", bipartite: "What each output token attends to", mean: "mean",
    leadSound: "This model transcribes audio: the columns are seconds of the recording.", ownText: "Your own transcript (optional)", orientationSound: "Rows = output tokens (the query is at the position before), columns = seconds of the recording, each row sums to 1.", orientationSilence: "Rows = output tokens (the query is at the position before), columns = seconds of the recording; each row sums to 1 together with its weight on the padding after the recording.", outside: "weight on the padding", unknownChance: "unknown: the model has no output head",
    target: "Your own translation (optional)", beams: "Beams", meanHeads: "mean of all heads", shownAs: "Show", weights: "weights", norms: "norm-weighted",
    search: "Beam search", searchHow: "Each column is a step: the continuations of all hypotheses, the best by Σ ln p on top. A line is as wide as the probability of its token; faint ones were dropped, a dot ends a hypothesis. Click a token to read that far.", tree: "Beam search as a tree", step: (n, all) => `Step ${n} of ${all}`, finished: "Finished hypotheses", finishedHow: "Score: Σ ln p ÷ tokens. The first hypothesis is the output.", stepLabel: "Step of the search",
    runs: "continues", ends: "finished", dropped: "dropped", soFar: "hypothesis", newToken: "new token", logProb: "ln p", total: "Σ ln p", status: "status", score: "score", forced: "The decoder is forced to produce your text (teacher forcing). The probabilities are the model's own for each token.", ofModel: "Use the model's output",
    map: "Cross-attention", reads: "Attention to the source", orientationHere: "Rows = output tokens (the query is at the position before), columns = source tokens, each row sums to 1.", orientationNorms: "Rows = output tokens, columns = source tokens; cells are ‖weight · value · W_O‖, the norm of what each source token adds. Rows do not sum to 1.",
    probability: "probability of the output token", strip: "Output tokens", norm: "norm-weighted", lengthOf: "length", noNorms: "The norms are not available: the output projection of this model is unknown.",
  },
  zh: {
    title: "对齐", lead: "解码器生成文本时的交叉注意力。左边是源文本，右边是输出：每个输出词元关注若干源词元。悬停查看一个词元的连线，点击锁定。旁边的权重图包含所有词元对：行是输出词元，列是源词元。下方逐步显示束搜索。",
    look: (query, key, share, where) => `“${query}”最关注“${key}”，给了它 ${share} 的权重（${where}）。`, ofMean: layer => `第 ${layer} 层所有头的平均`, ofHead: (layer, head) => `第 ${layer} 层的头 ${head}`, output: "输出", source: "源文本", bipartite: "每个输出词元关注什么", mean: "平均",
    leadSound: "此模型转写音频：列是录音的时间（秒）。", ownText: "你自己的转写文本（可选）", orientationSound: "行 = 输出词元（查询位于前一个位置），列 = 录音的时间（秒），每行之和为 1。", orientationSilence: "行 = 输出词元（查询位于前一个位置），列 = 录音的时间（秒）；每行加上录音之后填充部分的权重，和为 1。", outside: "填充部分的权重", unknownChance: "未知：模型没有输出头",
    target: "你自己的译文（可选）", beams: "束宽", meanHeads: "所有头的平均", shownAs: "显示", weights: "权重", norms: "按范数加权",
    search: "束搜索", searchHow: "每列是一步：所有假设的续写按 Σ ln p 从上到下排序。线宽表示该词元的概率；浅色的已被丢弃，圆点表示假设结束。点击一个词元，可以看到那一步为止的注意力。", tree: "束搜索树", step: (n, all) => `第 ${n} 步，共 ${all} 步`, finished: "已完成的假设", finishedHow: "得分：Σ ln p ÷ 词元数。第一条是输出。", stepLabel: "搜索步骤",
    runs: "继续", ends: "结束", dropped: "丢弃", soFar: "假设", newToken: "新词元", logProb: "ln p", total: "Σ ln p", status: "状态", score: "得分", forced: "解码器按你的文本逐词元生成（teacher forcing）；概率是模型对每个词元给出的概率。", ofModel: "使用模型的输出",
    map: "交叉注意力", reads: "对源文本的注意力", orientationHere: "行 = 输出词元（查询位于前一个位置），列 = 源词元，每行之和为 1。", orientationNorms: "行 = 输出词元，列 = 源词元；格中是 ‖权重 · 值 · W_O‖，即每个源词元所加向量的范数。各行之和不为 1。",
    probability: "输出词元的概率", strip: "输出词元", norm: "按范数加权", lengthOf: "长度", noNorms: "无法计算范数：此模型的输出投影未知。",
  },
};

const GENERATES = model => model.generates;

export async function show(root, lab) {
  const { t, state } = lab, model = chosenModel(lab, GENERATES), again = (changes, replace = true) => lab.set(changes, { show: true, replace }), fresh = { step: null, beam: null };
  const picker = modelPicker(lab, { modalities: GENERATES, onChange: name => again({ model: name, target: null, attention: null, head: null, upload: null, example: null, tone: null, ...fresh }, false) });
  lab.bar(picker);
  if (!model) return;
  const sound = model.modality === "sound", words = startText(lab, model), example = sound ? {} : exampleOf(lab, model);
  const heard = sound ? modelInput(lab, root, model, changes => again({ ...changes, target: null, ...fresh }, false)) : null;
  lab.bar(picker, ...(sound ? [heard.element ?? "", inputBox(lab, { value: state.target ?? "", model, examples: [], label: t("ownText"), optional: true, onRun: ({ text }) => again({ target: text || null, ...fresh }, false) })]
    : [inputBox(lab, { value: words, target: state.target ?? "", model, onRun: ({ text, target, example: chosen }) => again({ text, target: target || null, ...fresh, ...(chosen ? exampleState(chosen) : {}) }, false) })]));
  const input = sound ? heard.input : { text: words }, base = { model: model.name, input }, place = h("section", {}), facts = h("div", {});
  let found = null, beams = null;
  if (!state.target) {
    found = await withProgress(lab, root, (onProgress, signal) => lab.request("alignment/write", { ...base, beams: Number(state.beams ?? 4) }, { onProgress, signal }));
    if (!found) return;
    beams = searchCard(lab, found, tokens => reading(tokens), again);
  } else beams = h("p", { class: "note" }, t("forced"), " ", button(t("ofModel"), () => again({ target: null }), { class: "small" }));
  root.append(place, beams, cautionLine(lab), fold(t("details"), facts));
  const latest = lab.latestRequest(), numberOf = key => { const value = state[key] ?? example[key]; return value === undefined ? {} : { [key]: Number(value) }; };
  const reading = target => lab.attempt(async () => {
    const body = { ...base, input: { ...input, target }, ...numberOf("attention"), ...numberOf("head") };
    const read = await latest("alignment/read", body).catch(error => { if (error.name !== "AbortError") throw error; });
    if (!read) return;
    const notices = noticeBox(lab, read.notices, GENERATES);
    last = { body, read };
    const [shown, backend] = allUnknown(read.notices) ? [notices] : showRead(lab, read, () => reading(target), example, notices);
    fill(place, shown), fill(facts, backend ?? "");
  }, place);
  lab.expose({ read: () => ({ search: found, read: last && { ...last.read, weights: Array.from(last.read.weights.data), norms: last.read.norms && Array.from(last.read.norms.data) } }) });
  await reading(state.target ?? chosenTokens(found, state));
}
let last = null;
// A saved view contains every layer and head for the text shown.
export function keep() {
  if (!last) return [];
  const heads = last.read.attentions.flatMap((one, attention) => [null, ...Array.from({ length: one.heads }, (_, head) => head)].map(head => ({ attention, ...(head === null ? {} : { head }) })));
  const { attention, head, ...body } = last.body;
  return heads.slice(0, 60).map(choice => ({ path: "alignment/read", body: { ...body, ...choice } }));
}

// The tokens of a hypothesis.
const traced = (steps, step, place) => pathOf(steps, step, place).map(([at, n]) => steps[at][n].token);
function chosenTokens(found, state) {
  if (state.step === undefined) return (found.finished[Number(state.beam ?? 0)] ?? found.finished[0]).tokens;
  const step = Math.min(Number(state.step), found.steps.length - 1), place = Math.min(Number(state.beam ?? 0), found.steps[step].length - 1);
  return traced(found.steps, step, place);
}

function searchCard(lab, found, onPick, again) {
  const { t, state } = lab, { steps } = found, table = h("div", { class: "table-scroll" }), words = h("output", { class: "step-words" }), slider = h("input", { type: "range", min: 0, max: steps.length - 1, "aria-label": t("stepLabel"), class: "step-range", oninput: () => go(Number(slider.value), 0) });
  let step = state.step === undefined ? null : Math.min(Number(state.step), steps.length - 1), timer = null;
  const finish = button(t("finished"), () => go(null, 0), { class: "small" }), play = button(t("play"), () => timer ? stop() : start(), { class: "small" });
  function start() {
    if (step === null || step === steps.length - 1) go(0, 0);
    fill(play, t("pause")), timer = setInterval(() => step < steps.length - 1 ? go(step + 1, 0, true) : stop(), prefersReducedMotion() ? 1600 : 900);
  }
  function stop() { clearInterval(timer), timer = null, fill(play, t("play")); }
  lab.signal.addEventListener("abort", stop);
  function go(to, beam, playing = false) {
    if (!playing) stop();
    step = to, lab.set({ step: to, beam }), draw(), onPick(to === null ? found.finished[beam].tokens : traced(steps, to, beam));
  }
  const tree = beamTree(lab, steps, { label: t("tree"), status: name => t(name), onPick: (at, place) => go(at, place) });
  const pick = (words, on, pressed) => h("button", { type: "button", class: "beam-text", "aria-pressed": pressed, onclick: on }, untranslated(words));
  function draw() {
    const beam = Number(lab.state.beam ?? 0), focus = table.contains(document.activeElement);
    slider.value = step ?? steps.length - 1, finish.hidden = step === null;
    fill(words, step === null ? t("finished") : t("step", step + 1, steps.length));
    const head = columns => h("thead", {}, h("tr", {}, columns.map(one => h("th", { scope: "col" }, one))));
    if (step === null) fill(table, h("table", { class: "numbers" }, h("caption", {}, t("finishedHow")), head([t("soFar"), t("score")]), h("tbody", {}, found.finished.map((one, n) => h("tr", {}, h("td", {}, pick(one.text || "∅", () => go(null, n), n === beam)), h("td", { class: "number" }, numeral(one.score)))))));
    else fill(table, h("table", { class: "numbers" }, head([t("soFar"), t("logProb"), t("total"), t("status")]), h("tbody", {}, steps[step].map((one, n) => {
      return h("tr", { class: `status-${one.status}` }, h("td", {}, h("button", { type: "button", class: "beam-text", "aria-pressed": n === beam, onclick: () => go(step, n) }, untranslated(one.prefix), untranslated(` ${visibleText(one.piece)}`, { class: "new" }))), h("td", { class: "number" }, numeral(one.log_prob)), h("td", { class: "number" }, numeral(one.score)), h("td", {}, t(one.status)));
    }))));
    if (focus) table.querySelector("[aria-pressed=true]")?.focus();
    if (step === null) tree.show(...endOf(steps, (found.finished[beam] ?? found.finished[0]).tokens), steps.length);
    else tree.show(step, beam);
  }
  draw();
  const observer = new ResizeObserver(() => draw());
  observer.observe(tree.element), lab.signal.addEventListener("abort", () => observer.disconnect());
  return h("section", { class: "card beam-card" }, h("h2", { class: "first" }, t("search")), h("p", { class: "soft" }, t("searchHow")), h("div", { class: "beam-body" }, h("div", { class: "beam-picture" }, tree.element,
    h("div", { class: "row steps" }, button(t("previous"), () => go(Math.max(0, (step ?? steps.length) - 1), 0), { class: "small" }), slider, button(t("next"), () => go(Math.min(steps.length - 1, (step ?? -1) + 1), 0), { class: "small" }), play, finish, words, select(t("beams"), [1, 2, 3, 4, 5, 8].map(n => [n, String(n)]), state.beams ?? 4, beams => again({ beams, step: null, beam: null })))), table));
}

// The source and the output with all lines, the map beside them, and one measured sentence.
function showRead(lab, read, again, example, notices) {
  const { t, state } = lab, rows = tokenNames(read.target_tokens), columns = tokenNames(read.tokens), width = columns.length, norms = state.show === "norms" && read.norms !== null, held = read.attentions[read.attention], sound = read.side === "sound", silent = read.outside.data.some(x => x > 1e-7);
  const probability = n => read.target_tokens[n].probability === null ? t("unknownChance") : formatPercent(read.target_tokens[n].probability), plain = sound ? silent ? "orientationSilence" : "orientationSound" : "orientationHere";
  const values = norms ? read.norms.data : read.weights.data, most = Number((Math.max(...values, 1e-9) * 1.04).toPrecision(2)), row = i => values.subarray(i * width, (i + 1) * width), weights = i => read.weights.data.subarray(i * width, (i + 1) * width);
  const change = changes => { lab.set(changes), again(); }, heads = [["", t("mean")], ...Array.from({ length: held.heads }, (_, n) => [n, n])], pick = held.heads <= 16 ? bar : select;
  const tools = [read.attentions.length > 1 ? (read.attentions.length <= 8 ? bar : select)(t("layer"), read.attentions.map((one, n) => [n, one.layer]), read.attention, attention => change({ attention, head: null })) : null,
    pick(t("head"), heads, read.head ?? "", head => change({ attention: read.attention, head: head === "" ? null : head })),
    read.norms ? bar(t("shownAs"), [["weights", t("weights")], ["norms", t("norms")]], norms ? "norms" : "weights", show => change({ show })) : h("p", { class: "soft" }, t("noNorms"))];
  const query = Math.min(Number(state.query ?? example.query ?? startOf(read)), rows.length - 1), boundary = sound ? null : boundaryOf(read.notices), token = (side, n) => `${side}:${n}`;
  const map = heatMap(lab, { title: t("map"), values, masked: read.masked.data.some(Boolean) ? read.masked.data : null, shape: read.weights.shape, rowNames: rows, columnNames: columns, domain: norms ? [0, most] : [0, 1], scale: norms ? "linear" : "root", sums: !norms, ...(norms ? { what: t("norm") } : {}), orientation: t(norms ? "orientationNorms" : plain), selected: [query, largestOf(row(query))], name: "alignment", columnBoundary: boundary, top: sound ? 8 : 5, aside: !sound,
    rowToken: i => token("target", i), columnToken: j => token("source", j),
    facts: (i, j) => [...(norms ? [[t("weight"), read.weights.data[i * width + j]]] : read.norms ? [[t("norm"), read.norms.data[i * width + j]]] : []), [t("probability"), probability(i)], ...(silent ? [[t("outside"), read.outside.data[i]]] : [])],
    onCell: (i, j, moved) => { if (moved) choose(i, true); } });
  const links = sound ? null : attentionLines(lab, { title: t("bipartite"), queries: rows, keys: columns, row: weights, masked: (i, j) => read.masked.data[i * width + j] === 1, query, keyBoundary: boundary, onQuery: i => map.select(i, largestOf(row(i)), true), name: "alignment-lines", keysLeft: true, numbers: 6, queryWords: t("output"), keyWords: t("source"),
    notes: n => read.target_tokens[n].probability === null ? "" : formatPercent(read.target_tokens[n].probability, 0), noteValue: n => read.target_tokens[n].probability, queryToken: i => token("target", i), keyToken: j => token("source", j) });
  const strip = tokenStrip(lab, { names: rows, values: sound ? Float32Array.from(read.target_tokens, one => one.probability ?? NaN) : null, masked: n => sound && read.target_tokens[n].probability === null, special: n => read.target_tokens[n].special, selected: query, scale: "linear", digits: false, label: t("strip"), token: n => token("target", n), onPick: i => map.select(i, largestOf(row(i)), true) });
  const page = stage(lab, { notices, tools: [...tools, h("div", { class: "text-strip", title: t("strip") }, strip.element)], picture: links ? h("div", { class: "narrow stack" }, links.element, map.readout) : map.element, side: links ? map.element : null, wide: true });
  function choose(i, moved) {
    const best = largestOf(weights(i)), share = formatPercent(read.weights.data[i * width + best]), where = read.head === null || read.head === undefined ? t("ofMean", held.layer) : t("ofHead", held.layer, read.head);
    if (moved) lab.set({ query: i }), links?.choose(i, false), strip.update({ selected: i });
    const shown = example.title && example.query === i && (state.head === undefined || Number(state.head) === example.head) && state.text === undefined;
    page.look([rows[i], columns[best]].some(name => name.startsWith(UNKNOWN_MARK)) ? null : shown ? captionWords(lab, example, read.weights.data.subarray(i * width, (i + 1) * width), n => columns[n]) : t("look", rows[i], columns[best], share, where));
  }
  choose(query, false);
  return [page.element, backendLine(lab, { backend: held.backend, difference: read.difference.largest })];
}
// The output token to start with: the one with the largest weight on a word of the source.
function startOf(read) {
  let best = 0, most = 0;
  const width = read.tokens.length;
  read.target_tokens.forEach((one, i) => read.tokens.forEach((token, j) => { const weight = read.weights.data[i * width + j]; if (!one.special && !token.special && weight > most) most = weight, best = i; }));
  return best;
}
const largestOf = values => values.reduce((best, value, n) => value > values[best] ? n : best, 0);
