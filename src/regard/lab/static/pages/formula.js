// Formula: one query of one head, from q, k and v to its output, with the numbers of the model. Every cell explains its computation.
import { cssColour, textColourOn, shader, weightColour } from "lab/colour.js";
import { allUnknown, boundaryOf, button, captionLine, chosenModel, exampleOf, exampleState, fileButtons, headPicker, cautionLine, inputBox, modelPicker, noticeBox, number, predictionLine, backendLine, select, startText } from "lab/controls.js";
import { formatBrief, clamp, formatExact, fill, untranslated, h, topEntries, m, formatPercent, prefersReducedMotion, tokenNames } from "lab/dom.js";
import { npz, saveFile, tablePicture } from "lab/export.js";
import { modelInput } from "lab/inputs.js";
import { tokenStrip } from "lab/token_strip.js";

export const name = "formula";
export const text = {
  en: {
    title: "Formula",
    lead: "Follow one query of one head through the attention formula, with the numbers of the chosen model. Click a number to see how it is computed.",
    pickQuery: "Choose a query", stage: "Stage", stages: "Stages of the formula",
    keysHelp: "Space or → goes to the next stage, ← to the previous one. In the table, the arrow keys move between numbers.",
    s0: "Q, K, V", s1: "Scores", s2: "÷ √d", s3: "Position, mask", s4: "Softmax", s5: "Weighted sum",
    s2x: "Scale", w0: (q, d) => `“${q}” has a query vector q. Every token has a key vector k and a value vector v. Each vector has ${d} dimensions.`,
    w1: (q, k, x) => `The score is the dot product of q and k: “${q}” · “${k}” = ${x}.`,
    w1a: (q, k, x) => `The score is additive: add q and k, apply the activation, take the dot product with w: “${q}”, “${k}” → ${x}.`,
    w2: (x, scale, y) => `Dot products grow with the dimension. Each score is multiplied by ${scale}: ${x} → ${y}. This keeps softmax from saturating.`,
    w2no: "This score is not scaled.",
    w3: (position, mask) => `Position: ${position}. Mask: ${mask}. A masked key gets −∞, not a small number.`, nothing: "none",
    unmasked: "none (all keys visible)", inside: line => `${line}, already applied to q and k`,
    w4: (q, k, x, sum) => `Softmax over all keys: e^score divided by the sum. “${q}” gives “${k}” the weight ${x}. The row sums to ${sum}.`,
    w5: (q, names, share) => `The output for “${q}” is the sum of all values, each times its weight. The keys with the largest weights, ${names}, hold ${share} of the weight.`,
    w5none: q => `“${q}” can attend to no key that the model knows.`, unknownQuery: q => `“${q}” is unknown to this model. The numbers are those of every unknown token, and nothing follows from them.`,
    colKey: "key", colRaw: "q · k", colRawAdd: "wᵀ act(q+k)", colScaled: "scaled", colPosition: "position", colScore: "score", colWeight: "weight",
    ofDims: (name, shown, all) => `${name}: ${shown} of ${all}`, dims: "Dimensions shown per vector",
    keysShown: (shown, all, mass) => `${shown} of ${all} keys shown. The other keys are masked or have smaller weights; their weights sum to ${mass}.`, rowOutput: "output",
    why: "How this number is computed", whyStart: "Click a number in the table, or move to it with the arrow keys.", step: "n", product: "product", runningSum: "cumulative sum",
    otherDims: n => `the other ${n}`, total: "total",
    isQ: (n, token) => `dimension ${n} of the query vector of “${token}”, output of the query projection`,
    isK: (n, token) => `dimension ${n} of the key vector of “${token}”, output of the key projection`,
    isV: (n, token) => `dimension ${n} of the value vector of “${token}”, output of the value projection`,
    inScore: "its term in the score", inOutput: "its term in the output", isRaw: (q, k) => `similarity of “${q}” and “${k}”`, isScaled: "similarity × scale",
    isPosition: line => `bias that ${line} adds for these two positions`, isScore: "scaled + position, or −∞ if masked",
    isMasked: line => `masked by ${line}: this query cannot attend to this key`,
    isWeight: "e^(score − logsumexp), logsumexp = log Σ e^score over all keys", isOutput: (n, q) => `dimension ${n} of the output of “${q}”: Σ weight × value`,
    executed: "as computed by the model's backend", difference: "difference",
    edited: "This head is edited: its weights are not the softmax of the scores.", turnedNote: line => `q and k are shown after ${line} was applied.`,
    graphQuery: "node", aroundKey: "Show keys around position", noGraph: "This model has no graph file. Choose another model, or open a graph on the page Graph.",
  },
  zh: {
    title: "公式", lead: "用所选模型的真实数字，跟随一个头的一个查询走完整个注意力公式。点击任意数字，查看它的计算过程。",
    pickQuery: "选择一个查询", stage: "阶段", stages: "公式的各个阶段", keysHelp: "空格或 → 进入下一阶段，← 返回上一阶段；在表中用方向键移动。",
    s0: "Q、K、V", s1: "分数", s2: "÷ √d", s3: "位置与掩码", s4: "Softmax", s5: "加权求和",
    s2x: "缩放", w0: (q, d) => `“${q}”有一个查询向量 q；每个词元都有一个键向量 k 和一个值向量 v。每个向量有 ${d} 维。`,
    w1: (q, k, x) => `分数是 q 与 k 的点积：“${q}”·“${k}” = ${x}。`,
    w1a: (q, k, x) => `加性分数：q 与 k 相加，经过激活函数，再与 w 做点积：“${q}”、“${k}” → ${x}。`,
    w2: (x, scale, y) => `点积随维数增大，因此每个分数都乘以 ${scale}：${x} → ${y}。这样 softmax 不会饱和。`,
    w2no: "这种分数不做缩放。",
    w3: (position, mask) => `位置项：${position}。掩码：${mask}。被掩码的键得到 −∞，而不是一个很小的数。`, nothing: "无", unmasked: "不遮挡（全部可见）", inside: line => `${line}，已作用于 q 和 k`,
    w4: (q, k, x, sum) => `对所有键做 softmax：e 的分数次方除以总和。“${q}”给“${k}”的权重是 ${x}。本行之和为 ${sum}。`,
    w5: (q, names, share) => `“${q}”的输出是所有值按权重的加权和。权重最大的键 ${names} 合计占 ${share}。`,
    w5none: q => `“${q}”可以关注的键中没有模型认识的。`, unknownQuery: q => `模型不认识“${q}”。这些数字对任何不认识的词元都一样，不能据此下结论。`,
    colKey: "键", colRaw: "q · k", colRawAdd: "wᵀ act(q+k)", colScaled: "缩放后", colPosition: "位置项", colScore: "分数", colWeight: "权重",
    ofDims: (name, shown, all) => `${name}：${all} 中的 ${shown}`, dims: "每个向量显示的维数", keysShown: (shown, all, mass) => `显示 ${all} 个键中的 ${shown} 个；其余的键已掩码或权重更小，权重之和为 ${mass}。`,
    rowOutput: "输出",
    why: "这个数的计算过程", whyStart: "点击表中的数字，或用方向键移动到它。", step: "n", product: "乘积", runningSum: "累加和", otherDims: n => `其余 ${n} 个`, total: "合计",
    isQ: (n, token) => `“${token}”的查询向量的第 ${n} 维，由查询投影得到`, isK: (n, token) => `“${token}”的键向量的第 ${n} 维，由键投影得到`,
    isV: (n, token) => `“${token}”的值向量的第 ${n} 维，由值投影得到`,
    inScore: "它在分数中的一项", inOutput: "它在输出中的一项", isRaw: (q, k) => `“${q}”与“${k}”的相似度`, isScaled: "相似度 × 缩放系数", isPosition: line => `${line} 为这两个位置加上的偏置`,
    isScore: "缩放后 + 位置项；被掩码则为 −∞", isMasked: line => `被 ${line} 掩码：此查询不能关注此键`,
    isWeight: "e^(分数 − logsumexp)，logsumexp = log Σ e^分数，对所有键求和", isOutput: (n, q) => `“${q}”的输出的第 ${n} 维：Σ 权重 × 值`, executed: "模型后端实际算出的值", difference: "差值",
    edited: "这个头已被改动：它的权重不是分数的 softmax。", turnedNote: line => `图中的 q 和 k 已经过 ${line}。`, graphQuery: "节点", aroundKey: "显示此位置附近的键", noGraph: "这个模型没有图文件。请选择其他模型，或在“图网络”页打开一个图。",
  },
};
const ROWS = 32;

export async function show(root, lab) {
  const modalities = ["text", "pair", "graph"], model = chosenModel(lab, modalities);
  root.append(h("div", { class: "row" },
    modelPicker(lab, { modalities, onChange: chosen => lab.set({ model: chosen, attention: null, head: null, query: null, key: null }, { show: true, replace: false }) })));
  if (!model) return;
  const graph = model.modality === "graph", words = graph ? null : startText(lab, model), chosen = graph ? modelInput(lab, root, model, changes => lab.set({ ...changes, query: null }, { show: true, replace: false })) : null, input = graph ? chosen.input : { text: words };
  root.append(graph ? chosen.element ?? "" : inputBox(lab, { value: words, model, onRun: ({ text, example }) => lab.set({ text, query: null, key: null, ...(example ? exampleState(example) : {}) }, { show: true, replace: false }) }));
  if (!input) return root.append(h("p", { class: "note" }, lab.t("noGraph")));
  const request = { model: model.name, input }, run = await lab.request("formula/run", request), { notices } = run.metadata, example = graph ? {} : exampleOf(lab, model);
  root.append(noticeBox(lab, notices, modalities) ?? "");
  if (allUnknown(notices)) return;
  root.append(captionLine(lab, example) ?? "");
  const page = new Formula(root, lab, request, run, example);
  await page.build();
  root.append(cautionLine(lab), page.ran);
}

class Formula {
  constructor(root, lab, request, run, example) {
    const { state } = lab, number = (key, otherwise) => state[key] === undefined ? otherwise : Number(state[key]);
    Object.assign(this, { root, lab, request, run, stage: clamp(number("stage", 5), 0, 5), dims: number("dims", null), asked: lab.latestRequest(), boundary: boundaryOf(run.metadata.notices) });
    this.attention = clamp(number("attention", example.attention ?? 0), 0, run.attentions.length - 1);
    this.head = clamp(number("head", example.head ?? 0), 0, this.one.heads - 1);
    this.query = clamp(number("query", example.query ?? -1), -1, this.one.queries - 1);
    if (this.query < 0) this.query = this.firstQuery();
    this.key = number("key", null);
  }
  get one() { return this.run.attentions[this.attention]; }
  side(which) { return this.run.tokens[this.one[which]] ?? []; }
  // Start with the token "it" of the example, else with one in the middle.
  firstQuery() {
    const tokens = this.side("query_side"), it = tokens.findIndex(token => token.text.trim().toLowerCase() === "it");
    return it >= 0 ? it : Math.min(tokens.length - 1, Math.max(tokens[0]?.special ? 1 : 0, Math.floor(tokens.length / 2)));
  }
  async build() {
    const { lab, root } = this, { t } = lab;
    this.pickers = h("div", {}), this.strip = h("div", {}), this.math = h("div", { class: "math" }),
      this.rail = h("div", { class: "rail", role: "group", "aria-label": t("stages") });
    this.words = h("p", { class: "stage-words", "aria-live": "polite" }), this.table = h("div", { class: "formula-scroll" }),
      this.why = h("section", { class: "card why", "aria-live": "polite" });
    this.note = h("p", { class: "soft" }), this.ran = h("div", {}), this.many = h("div", {});
    const tools = fileButtons(lab, () => this.files());
    root.append(this.pickers, h("section", {}, h("h3", {}, t("pickQuery")), this.strip), h("section", { class: "card" }, this.math, this.rail, this.words),
      h("div", { class: "formula-body" }, h("section", {}, h("div", { class: "map-head" }, this.many, tools), this.table, this.note), this.why),
      h("p", { class: "soft help" }, t("keysHelp")));
    document.addEventListener("keydown", event => {
      if (event.target.closest("input,textarea,select,button,[role=grid],summary,a") || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === " " || event.key === "ArrowRight") event.preventDefault(), this.go(this.stage + 1);
      if (event.key === "ArrowLeft") event.preventDefault(), this.go(this.stage - 1);
    }, { signal: lab.signal });
    lab.expose({ read: () => this.read(),
      row: () => this.row && Object.fromEntries(Object.entries(this.row).map(([key, held]) => [key,
        held?.data ? { shape: held.shape, data: Array.from(held.data) } : held])) });
    await this.fetch();
  }
  async fetch() {
    const { lab, attention, head, query } = this;
    lab.set({ attention, head, query });
    const row = await this.asked("formula/row", { ...this.request, attention, head, query, ...(this.key === null ? {} : { key: Math.min(this.key, this.one.keys - 1) }) });
    Object.assign(this, { row, held: false, queries: tokenNames(this.side("query_side")), keys: tokenNames(this.side("key_side")) });
    fill(this.ran, backendLine(lab, { backend: this.one.backend, difference: row.difference }));
    // as many dimensions as fit on the screen
    this.dims ??= clamp(Math.floor((this.table.clientWidth - (row.position ? 425 : 370)) / 50), 4, 8);
    this.pickKeys(), this.showPickers(), this.showMany(), this.draw();
  }
  // The keys in the table: all, or if there are many, those around the chosen key and those with the largest weights.
  pickKeys() {
    const { weight, allowed, places } = this.row, count = weight.shape[0], all = Array.from({ length: count }, (_, n) => n);
    const near = this.key === null || count <= ROWS ? [] : all.filter(n => Math.abs(places.data[n] - this.key) <= ROWS / 4);
    const heavy = topEntries(weight.data, ROWS - near.length, n => !allowed.data[n] || near.includes(n)).map(({ index }) => index);
    this.shown = count <= ROWS ? all : [...near, ...heavy].sort((a, b) => a - b);
    this.best = near.length ? near.find(n => places.data[n] === this.key) ?? near[0] : this.heaviest(1)[0]?.index ?? 0;
  }
  // The keys with the largest weights, without masked keys and those that the model does not know.
  heaviest(count) { const tokens = this.side("key_side"); return topEntries(this.row.weight.data, count, j => !this.row.allowed.data[j] || Boolean(tokens[this.place(j)]?.unknown)); }
  place(j) { return this.row.places.data[j]; }
  name(j) { return this.keys[this.place(j)] ?? String(this.place(j)); }
  showPickers() {
    const { lab, run } = this, again = () => lab.attempt(() => this.fetch()), many = this.one.queries > 160;
    fill(this.pickers,
      headPicker(lab, run.attentions, this.attention, this.head,
        (attention, head) => { Object.assign(this, { attention, head }), this.query = Math.min(this.query, this.one.queries - 1), again(); }),
      run.prediction ? predictionLine(lab, run.prediction, this.queries) : null);
    const pick = query => { this.query = query, again(); };
    fill(this.strip,
      many ? number(lab.t(this.one.query_side === "nodes" ? "graphQuery" : "query"), this.query, { min: 0, max: this.one.queries - 1 },
        query => pick(clamp(query, 0, this.one.queries - 1)))
      : tokenStrip(lab,
        { names: this.queries, values: null, selected: this.query, label: lab.t("pickQuery"), special: n => this.side("query_side")[n]?.special, boundary: this.one.query_side === "source" ? this.boundary : null, onPick: pick }).element,
      this.one.keys > ROWS && this.one.key_side !== "nodes" ? number(lab.t("aroundKey"), this.key ?? "", { min: 0, max: this.one.keys - 1 },
        key => { this.key = Number.isFinite(key) ? clamp(key, 0, this.one.keys - 1) : null, lab.set({ key: this.key }), again(); }) : null);
  }
  go(stage) { this.stage = clamp(stage, 0, 5), this.lab.set({ stage: this.stage }), this.held = false, this.draw(); }
  // Unless a number is selected, explain the number of the stage for the key with the largest weight.
  follow() { if (!this.held) this.cell = { what: ["k", "raw", "scaled", "score", "weight", "output"][this.stage], j: String(this.stage === 5 ? -1 : this.best),
    ...(this.stage % 5 ? {} : { n: "0" }) }; }

  // The formula, its stages, and the sentence of the current stage.
  draw() {
    const { t } = this.lab, { row } = this;
    this.follow(), this.showMath(), this.showRail(), this.showTable(), this.showWhy();
    const q = this.queries[this.query], best = this.best, k = this.name(best), scale = row.scale, one = this.one;
    const sentences = [() => t("w0", q, one.head_dim), () => t(row.additive ? "w1a" : "w1", q, k, formatBrief(row.raw.data[best])),
      () => scale === null || scale === undefined || scale === 1 ? t("w2no") : t("w2", formatBrief(row.raw.data[best]), formatBrief(scale), formatBrief(row.scaled.data[best])),
      () => t("w3", one.position ? one.position.in_q_and_k ? t("inside", one.position.line) : one.position.line : t("nothing"),
        one.mask ? one.mask.line : t("unmasked")),
        () => t("w4", q, k, formatBrief(row.weight.data[best]), row.sum.toFixed(6)),
      () => { const top = this.heaviest(3); return top.length === 0 ? t("w5none", q) : t("w5", q, top.map(({ index }) => `“${this.name(index)}”`).join(" "),
        formatPercent(top.reduce((sum, { value }) => sum + value, 0), 0)); }];
    const unknown = this.side("query_side")[this.query]?.unknown;
    fill(this.words, unknown ? t("unknownQuery", q) : sentences[this.stage](), one.edited?.[this.head] ? h("b", {}, " ", t("edited")) : null);
    fill(this.note,
      this.shown.length < this.one.keys ? t("keysShown", this.shown.length, this.one.keys,
        Math.max(0, row.sum - this.shown.reduce((sum, j) => sum + row.weight.data[j], 0)).toFixed(6)) : "",
      one.position?.in_q_and_k ? ` ${t("turnedNote", one.position.line)}` : "");
  }
  showMany() { fill(this.many,
    select(this.lab.t("dims"), [...new Set([4, this.dims, 6, 8, 16, 64])].sort((a, b) => a - b).map(n => [n, n]), this.dims,
      dims => { this.dims = Number(dims), this.lab.set({ dims }), this.draw(); })); }
  showRail() {
    const { t } = this.lab, scaleName = /Dot|^$/.test(this.one.score.line) ? "s2" : "s2x";
    const stop = () => { clearInterval(this.playing), this.playing = null; };
    this.lab.signal.addEventListener("abort", stop, { once: true });
    const play = () => { if (this.playing) stop(); else { if (this.stage === 5) this.stage = -1; const next = () => { this.go(this.stage + 1); if (this.stage === 5) stop(),
      this.showRail(); }; this.playing = setInterval(next, prefersReducedMotion() ? 3000 : 1800),
      next(); } this.showRail(); };
    const focused = [...this.rail.children].indexOf(document.activeElement);
    fill(this.rail, button("‹", () => this.go(this.stage - 1), { "aria-label": t("previous"), title: t("previous"), class: "end" }),
      ["s0", "s1", scaleName, "s3", "s4",
        "s5"].map((key, n) => button([h("span", { class: "step-number" }, n || "·"), t(key)], () => this.go(n),
          { "aria-pressed": n === this.stage, class: n <= this.stage ? "done" : "", "data-stage": n })),
      button("›", () => this.go(this.stage + 1), { "aria-label": t("next"), title: t("next"), class: "end" }),
        button(t(this.playing ? "pause" : "play"), play, { class: "end" }));
    if (focused >= 0) this.rail.children[focused]?.focus();
  }
  showMath() {
    const { stage, one, row } = this, on = (n, ...children) => m("mrow", { class: n === stage ? "now" : n < stage ? "past" : "later" }, ...children);
    const v = (letter, sub, role) => m("msub", { class: role }, m("mi", {}, letter), m("mi", {}, sub)), op = sign => m("mo", {}, sign),
      q = () => on(0, v("q", "i", "query")), k = () => on(0, v("k", "j", "key"));
    const plain = /^(Dot|Cosine|Bilinear)/.exec(one.score.line)?.[1];
    const similarity = row.additive ? on(1, m("msup", {}, m("mi", {}, "w"), m("mi", {}, "⊤")), m("mi", {}, row.activation === "leaky_relu" ? "LeakyReLU" : "tanh"),
      op("("), q(), op("+"), k(), op(")"))
      : plain === "Bilinear" ? on(1, q(), m("mi", {}, "W"), k()) : plain === "Cosine" ? on(1, m("mi", {}, "cos"), op("("), q(), op(","), k(), op(")")) : on(1, q(),
        op("·"), k());
    const scaled = row.additive ? similarity : plain === "Dot" && Math.abs(row.scale - 1 / Math.sqrt(one.head_dim)) < 1e-6 ? m("mfrac", {}, similarity,
      on(2, m("msqrt", {}, m("mn", {}, one.head_dim)))) : [similarity, on(2, op("×"), m("mn", {}, formatBrief(row.scale ?? 1)))];
    const inner = [scaled,
      on(3, one.position && !one.position.in_q_and_k ? [op("+"), m("msub", {}, m("mi", {}, "p"), m("mrow", {}, m("mi", {}, "i"), m("mi", {}, "j")))] : [],
        one.mask ? [op("+"), m("msub", {}, m("mi", {}, "mask"), m("mrow", {}, m("mi", {}, "i"), m("mi", {}, "j")))] : [])];
    fill(this.math,
      m("math", { display: "block" },
        m("mrow", {}, on(5, v("o", "i", "output"), op("="), m("munder", {}, m("mo", {}, "∑"), m("mi", {}, "j"))),
          on(4, m("msub", {}, m("mi", {}, "softmax"), m("mi", {}, "j")), op("(")), inner, on(4, op(")")), on(5, v("v", "j", "value")))));
  }

  // The table: a row per key, a column per stage. Later stages are dimmed.
  showTable() {
    const { t } = this.lab, { row, one, shown } = this, d = Math.min(this.dims, one.head_dim), dv = Math.min(this.dims, row.v.shape[1]), width = row.k.shape[1],
      wide = row.v.shape[1];
    const most = Math.max(bound(row.q.data), bound(row.k.data)), mostV = bound(row.v.data), dim = n => n <= this.stage ? "" : "later",
      shade = shader("scores", [-most, most]), shadeV = shader("scores", [-mostV, mostV]);
    const square = (value, shading, what, j, n,
      stage) => { const ground = shading(value); return h("td",
        { class: `sq ${dim(stage)}`, tabindex: -1, "data-what": what, "data-j": j, "data-n": n, "data-value": value,
          style: { background: cssColour(ground), color: textColourOn(ground) }, title: formatExact(value) },
        d <= 8 ? short2(value) : ""); };
    const num = (value, what, j, stage, masked = false) => h("td",
      { class: `num ${dim(stage)} ${masked ? "hatched" : ""}`, tabindex: -1, "data-what": what, "data-j": j, "data-value": value }, masked ? "−∞" : formatBrief(value));
    const head = h("thead", {},
      h("tr", {}, h("th", { scope: "col" }, t("colKey")), h("th", { scope: "colgroup", colspan: d, class: "key" }, t("ofDims", "K", d, width)),
        h("th", { scope: "col", class: dim(1) }, t(row.additive ? "colRawAdd" : "colRaw")), h("th", { scope: "col", class: dim(2) }, t("colScaled")),
        row.position ? h("th", { scope: "col", class: dim(3) }, t("colPosition")) : null, h("th", { scope: "col", class: dim(3) }, t("colScore")),
        h("th", { scope: "col", class: dim(4) }, t("colWeight")), h("th", { scope: "colgroup", colspan: dv, class: "value" }, t("ofDims", "V", dv, wide))),
      h("tr", { class: "q-line" }, h("th", { scope: "row" }, untranslated("Q ", { class: "query" }), untranslated(this.queries[this.query], { class: "query" })),
        Array.from({ length: d }, (_, n) => square(row.q.data[n], shade, "q", -1, n, 0)),
        h("td", { colspan: 4 + (row.position ? 1 : 0) + dv, class: "soft" }, t("ofDims", "q", d, width))));
    const body = shown.map(j => {
      const masked = !row.allowed.data[j], w = row.weight.data[j];
      return h("tr", { class: this.place(j) === this.query && one.query_side === one.key_side ? "self" : "" },
        h("th", { scope: "row", class: "key", translate: "no" }, this.name(j), h("span", { class: "at" }, this.place(j))),
        Array.from({ length: d }, (_, n) => square(row.k.data[j * width + n], shade, "k", j, n, 0)), num(row.raw.data[j], "raw", j, 1),
        num(row.scaled.data[j], "scaled", j, 2), row.position ? num(row.position.data[j], "position", j, 3) : null, num(row.score.data[j], "score", j, 3, masked),
        h("td", { class: `num weight ${dim(4)} ${masked ? "hatched" : ""}`, tabindex: -1, "data-what": "weight", "data-j": j, "data-value": w },
          h("span", { class: "weight-bar", style: { width: `${50 * w}%`, background: weightColour(w) } }), h("span", {}, masked ? "–" : formatBrief(w))),
          Array.from({ length: dv }, (_, n) => square(row.v.data[j * wide + n], shadeV, "v", j, n, 0)));
    });
    const foot = h("tfoot", {},
      h("tr", { class: dim(5) }, h("th", { scope: "row", class: "output" }, t("rowOutput")),
        h("td", { colspan: d + 3 + (row.position ? 1 : 0), class: "soft output" }, t("ofDims", "o = Σ w·v", dv, wide)),
        h("td", { class: "num", "data-sum": row.sum }, row.sum.toFixed(4)),
        Array.from({ length: dv }, (_, n) => square(row.output.data[n], shadeV, "output", -1, n, 5))));
    const table = h("table", { class: "formula-table", role: "grid", "aria-label": t("stages") }, head, h("tbody", {}, body), foot);
    table.addEventListener("click", event => this.explain(event.target.closest("[data-what]")));
    table.addEventListener("pointerover", event => { if (!this.held) this.explain(event.target.closest("[data-what]"), false); });
    table.addEventListener("keydown", event => this.move(event));
    const start = table.querySelector(this.cell ? selector(this.cell) : `[data-what=weight][data-j="${this.best}"]`) ?? table.querySelector("[data-what]");
    start?.setAttribute("tabindex", 0), this.cell && start?.classList.add("chosen");
    fill(this.table, table);
  }
  move(event) {
    const cell = event.target.closest("[data-what]"), line = cell?.parentElement,
      lines = [...this.table.querySelectorAll("tr")].filter(one => one.querySelector("[data-what]"));
    if (!cell) return;
    const own = [...line.querySelectorAll("[data-what]")], n = own.indexOf(cell), x = cell.offsetLeft;
    const vertical = step => { const to = lines[lines.indexOf(line) + step]; return to && [...to.querySelectorAll("[data-what]")].reduce((best,
      one) => Math.abs(one.offsetLeft - x) < Math.abs(best.offsetLeft - x) ? one : best); };
    const to = { ArrowRight: () => own[n + 1], ArrowLeft: () => own[n - 1], ArrowDown: () => vertical(1), ArrowUp: () => vertical(-1), Home: () => own[0],
      End: () => own.at(-1), Enter: () => cell, Escape: () => null }[event.key];
    if (!to) return;
    event.preventDefault();
    if (event.key === "Escape") { this.held = false; return; }
    this.explain(to());
    to()?.focus();
  }
  explain(cell, hold = true) {
    if (!cell) return;
    this.held = hold, this.cell = { ...cell.dataset };
    for (const one of this.table.querySelectorAll(".chosen")) one.classList.remove("chosen");
    for (const one of this.table.querySelectorAll('[tabindex="0"]')) one.setAttribute("tabindex", -1);
    cell.classList.add("chosen"), cell.setAttribute("tabindex", 0);
    this.showWhy();
  }

  // The computation of one number, with its operands.
  showWhy() {
    const { t } = this.lab, head = h("h3", {}, t("why"));
    if (!this.cell) return fill(this.why, head, h("p", { class: "soft" }, t("whyStart")));
    const { what } = this.cell, j = Number(this.cell.j), n = Number(this.cell.n), { row } = this;
    const line = (...parts) => h("p", { class: "sum", translate: "no" }, parts), x = (value, role = "") => h("b", { class: role }, formatExact(value)), wide = row.v.shape[1],
      width = row.k.shape[1];
    const q = this.queries[this.query], k = j >= 0 ? this.name(j) : "";
    const makers = {
      q: () => [h("p", {}, t("isQ", n, q)), line(`q[${n}] = `, x(row.q.data[n], "query"))],
      k: () => [h("p", {}, t("isK", n, k)), line(`k[${n}] = `, x(row.k.data[j * width + n], "key")), h("p", {}, t("inScore")),
        row.additive ? line(this.bent(j, n)) : line(x(row.q.data[n], "query"), " × ", x(row.k.data[j * width + n], "key"), " = ",
          x(Math.fround(row.q.data[n] * row.k.data[j * width + n])))],
      v: () => [h("p", {}, t("isV", n, k)), line(`v[${n}] = `, x(row.v.data[j * wide + n], "value")), h("p", {}, t("inOutput")),
        line(x(row.weight.data[j]), " × ", x(row.v.data[j * wide + n], "value"), " = ", x(Math.fround(row.weight.data[j] * row.v.data[j * wide + n]), "output"))],
      raw: () => [h("p", {}, t("isRaw", q, k)), this.products(j), line(x(row.raw.data[j]))],
      scaled: () => [h("p", {}, t("isScaled")), line(x(row.raw.data[j]), " × ", formatExact(row.scale ?? 1), " = ", x(row.scaled.data[j]))],
      position: () => [h("p", {}, t("isPosition", this.one.position?.line ?? "")), line(x(row.position.data[j])), line(this.one.position?.formula ?? "")],
      score: () => row.allowed.data[j] ? [h("p", {}, t("isScore")),
        line(x(row.scaled.data[j]), row.position ? [" + ", x(row.position.data[j])] : "", " = ", x(row.score.data[j]))] : [h("p", {},
          t("isMasked", this.one.mask?.line ?? "")),
        line("−∞")],
      weight: () => !row.allowed.data[j] ? [h("p", {}, t("isMasked", this.one.mask?.line ?? "")), line("0")] : row.lse === null ? [h("p", {}, t("edited")),
        line(x(row.weight.data[j]))] : [h("p", {}, t("isWeight")), line("e^(", x(row.score.data[j]), " − ", x(row.lse), ") = ", x(row.weight.data[j]))],
      output: () => [h("p", {}, t("isOutput", n, q)), this.shares(n), h("p", {}, t("executed")), line(x(row.output.data[n], "output")), h("p", {}, t("difference")),
        line(Math.abs(row.output.data[n] - row.mixed.data[n]).toExponential(1))],
    };
    fill(this.why, head, makers[what]());
  }
  bent(j, n) {
    const { row } = this, sum = row.q.data[n] + row.k.data[j * row.k.shape[1] + n],
      bend = row.activation === "leaky_relu" ? (sum > 0 ? sum : sum * row.slope) : Math.tanh(sum);
    return `${formatExact(row.additive.data[n])} × ${row.activation === "leaky_relu" ? "LeakyReLU" : "tanh"}(${formatExact(row.q.data[n])} + ${formatExact(row.k.data[j * row.k.shape[1] + n])}) = ${formatBrief(row.additive.data[n] * bend, 5)}`;
  }
  // The products of one score with their cumulative sum; dimensions that are not shown are included in the sum.
  products(j) {
    const { t } = this.lab, { row } = this, width = row.k.shape[1], d = Math.min(this.dims, width), rows = [];
    let sum = 0, rest = 0;
    for (let n = 0; n < width; n++) {
      const q = row.q.data[n], k = row.k.data[j * width + n], add = q + k,
        part = row.additive ? row.additive.data[n] * (row.activation === "leaky_relu" ? (add > 0 ? add : add * row.slope) : Math.tanh(add)) : q * k;
      sum += part;
      if (n < d) rows.push(h("tr", {},
        [n, formatBrief(q, 4), formatBrief(k, 4), formatBrief(part, 4),
          formatBrief(sum, 4)].map((cell, c) => h("td", { class: `number ${["", "query", "key"][c] ?? ""}` }, cell)))); else rest += part;
    }
    if (d < width) rows.push(h("tr", {}, h("td", { colspan: 3, class: "soft" }, t("otherDims", width - d)), h("td", { class: "number" }, formatBrief(rest, 4)),
      h("td", { class: "number" }, formatBrief(sum, 4))));
    return h("div", { class: "table-scroll" },
      h("table", { class: "numbers" },
        h("thead", {},
          h("tr", {}, h("th", {}, t("step")), h("th", { translate: "no" }, "q"), h("th", { translate: "no" }, "k"), h("th", {}, t("product")),
            h("th", {}, t("runningSum")))),
        h("tbody", {}, rows)));
  }
  shares(n) {
    const { t } = this.lab, { row } = this, wide = row.v.shape[1], parts = Float32Array.from(row.weight.data, (w, j) => Math.abs(w * row.v.data[j * wide + n])),
      top = topEntries(parts, 8);
    let sum = 0;
    const rows = top.map(({ index: j }) => { const part = row.weight.data[j] * row.v.data[j * wide + n]; sum += part; return h("tr", {},
      h("td", { translate: "no", class: "key" }, this.name(j)), h("td", { class: "number" }, formatBrief(row.weight.data[j], 4)),
      h("td", { class: "number value" }, formatBrief(row.v.data[j * wide + n], 4)), h("td", { class: "number" }, formatBrief(part, 4))); });
    const others = this.one.keys - top.length;
    if (others > 0) rows.push(h("tr", {}, h("td", { colspan: 3, class: "soft" }, t("otherDims", others)),
      h("td", { class: "number" }, formatBrief(row.mixed.data[n] - sum, 4))));
    rows.push(h("tr", {}, h("td", { colspan: 3 }, t("total")), h("td", { class: "number output" }, formatBrief(row.mixed.data[n], 5))));
    return h("div", { class: "table-scroll" },
      h("table", { class: "numbers" },
        h("thead", {}, h("tr", {}, h("th", {}, t("colKey")), h("th", {}, t("colWeight")), h("th", { translate: "no" }, "v"), h("th", {}, t("product")))),
        h("tbody", {}, rows)));
  }
  files() {
    const { row } = this, stem = `formula-${this.one.name}-head-${this.head}-query-${this.query}`,
      vectors = ["raw", "scaled", "position", "allowed", "score", "weight"].filter(key => row[key]);
    const csv = () => [["key", ...vectors].join(","),
      ...Array.from({ length: row.weight.shape[0] },
        (_, j) => [`"${this.name(j).replaceAll('"', '""')}"`, ...vectors.map(key => row[key].data[j])].join(","))].join("\r\n");
    const arrays = Object.fromEntries(Object.entries(row).filter(([, held]) => held?.data));
    return { csv: () => saveFile(`${stem}.csv`, `\ufeff${csv()}\r\n`, "text/csv"), npz: () => saveFile(`${stem}.npz`, npz(arrays)),
      ...tablePicture(this.table.firstElementChild, stem) };
  }
  read() { return { attention: this.attention, head: this.head, query: this.query, stage: this.stage, dims: this.dims, shown: this.shown?.length, cell: this.cell,
    sum: this.row?.sum }; }
}
const bound = values => { let most = 0; for (const x of values) most = Math.max(most, Math.abs(x)); return most || 1; };
const short2 = x => (Math.abs(x) >= 10 ? x.toFixed(0) : x.toFixed(1)).replace("-", "−").replace("−0.0", "0.0");
const selector = ({ what, j, n }) => `[data-what=${what}]${j === undefined ? "" : `[data-j="${j}"]`}${n === undefined ? "" : `[data-n="${n}"]`}`;
