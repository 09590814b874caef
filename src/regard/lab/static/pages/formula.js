// Formula: one query of one head, from x·W_q to concat·W_o, with the numbers of the model. Every number explains itself; scores and masks can be changed.
import { cssColour, textColourOn, shader, weightColour } from "lab/colour.js";
import { allUnknown, boundaryOf, button, captionWords, check, chosenModel, exampleOf, exampleState, fileButtons, headPicker, cautionLine, inputBox, modelPicker, noticeBox, number, backendLine, select, startText } from "lab/controls.js";
import { formatBrief, formatShort, clamp, formatExact, fill, untranslated, h, topEntries, m, newId, formatPercent, prefersReducedMotion, tokenNames, visibleText } from "lab/dom.js";
import { npz, saveFile, tablePicture } from "lab/export.js";
import { inputBand, outputBand } from "lab/formula/bands.js";
import { isEdited, noEdits, readEdits, recompute, recomputeOutput, writeEdits } from "lab/formula/recompute.js";
import { explain } from "lab/formula/why.js";
import { modelInput } from "lab/inputs.js";
import { largest } from "lab/matrix.js";
import { fold, stage } from "lab/stage.js";
import { tokenStrip } from "lab/token_strip.js";

export const name = "formula";
export const text = {
  en: {
    title: "Formula",
    lead: "Follow one query of one head from its input to its output, with the numbers of the chosen model. Click a token to make it the query, a stage to highlight it, a number to see how it is computed. Drag a score, mask a key or change the temperature: weights, output and prediction follow.",
    pickQuery: "Choose a query", stage: "Stage", stages: "Stages of the formula",
    keysHelp: "Space or → goes to the next stage, ← to the previous one. In the table, the arrow keys move between numbers.",
    s0: "x · W", s1: "Scores", s2: "÷ √d", s3: "Position, mask", s4: "Softmax", s5: "Weighted sum", s6: "Concat · Wₒ",
    s2x: "Scale", w0: (q, d, size) => `“${q}” enters as a vector x of ${size} numbers. Three learned matrices turn it and the other tokens into a query q, keys K and values V of ${d} numbers each.`,
    w0bare: (q, d) => `“${q}” has a query vector q; every token has a key vector k and a value vector v of ${d} numbers. This model has no learned projections.`,
    w6: (heads, head, share) => `The outputs of all ${heads} heads stand side by side and are multiplied by Wₒ. Head ${head} contributes a vector of length ${share} to y.`, w6none: "This attention has no output projection.",
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
    bandInput: "input vectors", bandWeight: name => `weights ${name}`, bandResult: name => `result ${name}`, bandHead: n => `output of head ${n}`, bandOutput: "output of the layer", bandConcat: (n, all) => `o of ${all} heads; head ${n} is framed`, headShort: n => `head ${n}`,
    isProjected: (letter, size) => `x · W + b, a sum over ${size} inputs; the largest terms:`, thenTurned: "The rotary position is applied after it.", biasTerm: "bias b", isOwn: "your own score", isOwnMask: "masked by you", isSoftmax: x => `softmax of the edited scores at temperature ${x}`, beforeEdit: "the model's own", afterEdit: "after your edit",
    change: "Change it", changeHow: "Drag a score up or down, click ● to mask a key, or move a slider. Weights and output follow at once.", temperature: "Temperature", scaleFactor: "Scale", reset: "Reset", ownScore: (q, k) => `Score ${q} → ${k}`, ownMask: "masked", answerBefore: "Prediction", answerAfter: "after your edit", answerSame: "The prediction stays the same.", outputMoved: part => `The output of this head moved by ${part} of its length.`, farKeys: "Keys beyond those shown are not sent, so this row cannot be changed here.",
    rowQuery: q => `Make “${q}” the query`, toggleMask: k => `Mask “${k}” or show it`, more: "Details",
    edited: "This head is edited: its weights are not the softmax of the scores.", turnedNote: line => `q and k are shown after ${line} was applied.`,
    graphQuery: "node", aroundKey: "Show keys around position", noGraph: "This model has no graph file. Choose another model, or open a graph on the page Graph.",
  },
  zh: {
    title: "公式", lead: "用所选模型的真实数字，跟随一个头的一个查询，从输入走到输出。点击词元把它设为查询，点击阶段将其突出显示，点击数字查看计算过程。拖动一个分数、给一个键加掩码或调节温度：权重、输出和预测都会跟着变。",
    pickQuery: "选择一个查询", stage: "阶段", stages: "公式的各个阶段", keysHelp: "空格或 → 进入下一阶段，← 返回上一阶段；在表中用方向键移动。",
    s0: "x · W", s1: "分数", s2: "÷ √d", s3: "位置与掩码", s4: "Softmax", s5: "加权求和", s6: "拼接 · Wₒ",
    s2x: "缩放", w0: (q, d, size) => `“${q}”以 ${size} 个数的向量 x 进入。三个可学习的矩阵把它和其他词元变成查询 q、键 K 和值 V，每个向量 ${d} 个数。`,
    w0bare: (q, d) => `“${q}”有一个查询向量 q，每个词元都有一个键向量 k 和一个值向量 v，各 ${d} 个数。这个模型没有可学习的投影。`,
    w6: (heads, head, share) => `${heads} 个头的输出并排拼接，再乘以 Wₒ。头 ${head} 给 y 贡献一个长度为 ${share} 的向量。`, w6none: "这个注意力没有输出投影。",
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
    bandInput: "输入向量", bandWeight: name => `权重 ${name}`, bandResult: name => `结果 ${name}`, bandHead: n => `头 ${n} 的输出`, bandOutput: "这一层的输出", bandConcat: (n, all) => `${all} 个头的 o，框出的是头 ${n}`, headShort: n => `头 ${n}`,
    isProjected: (letter, size) => `x · W + b，对 ${size} 个输入求和；最大的几项：`, thenTurned: "之后再施加旋转位置编码。", biasTerm: "偏置 b", isOwn: "你设定的分数", isOwnMask: "被你掩码", isSoftmax: x => `改动后的分数在温度 ${x} 下的 softmax`, beforeEdit: "模型原来的值", afterEdit: "改动之后",
    change: "动手改", changeHow: "上下拖动一个分数，点击 ● 给一个键加掩码，或移动滑块；权重和输出立即跟着变。", temperature: "温度", scaleFactor: "缩放系数", reset: "重置", ownScore: (q, k) => `分数 ${q} → ${k}`, ownMask: "掩码", answerBefore: "预测", answerAfter: "改动之后", answerSame: "预测没有变化。", outputMoved: part => `这个头的输出变了，变化量是其长度的 ${part}。`, farKeys: "未显示的键没有传到页面，因此不能在这里改动这一行。",
    rowQuery: q => `以“${q}”为查询`, toggleMask: k => `掩码或显示“${k}”`, more: "详细信息",
    edited: "这个头已被改动：它的权重不是分数的 softmax。", turnedNote: line => `图中的 q 和 k 已经过 ${line}。`, graphQuery: "节点", aroundKey: "显示此位置附近的键", noGraph: "这个模型没有图文件。请选择其他模型，或在“图网络”页打开一个图。",
  },
};
const ROWS = 32, LAST = 6;

export async function show(root, lab) {
  const modalities = ["text", "pair", "graph"], model = chosenModel(lab, modalities), fresh = { query: null, key: null, edits: null };
  const picker = modelPicker(lab, { modalities, onChange: chosen => lab.set({ model: chosen, attention: null, head: null, ...fresh }, { show: true, replace: false }) });
  lab.bar(picker);
  if (!model) return;
  const graph = model.modality === "graph", words = graph ? null : startText(lab, model), chosen = graph ? modelInput(lab, root, model, changes => lab.set({ ...changes, ...fresh }, { show: true, replace: false })) : null, input = graph ? chosen.input : { text: words };
  lab.bar(picker, graph ? chosen.element ?? "" : inputBox(lab, { value: words, model, onRun: ({ text, example }) => lab.set({ text, ...fresh, ...(example ? exampleState(example) : {}) }, { show: true, replace: false }) }));
  if (!input) return root.append(h("p", { class: "note" }, lab.t("noGraph")));
  const request = { model: model.name, input }, run = await lab.request("formula/run", request), { notices } = run.metadata, example = graph ? {} : exampleOf(lab, model), box = noticeBox(lab, notices, modalities);
  if (allUnknown(notices)) return root.append(box);
  const page = new Formula(root, lab, request, run, example, box);
  await page.build();
}

class Formula {
  constructor(root, lab, request, run, example, notices) {
    const { state } = lab, number = (key, otherwise) => state[key] === undefined ? otherwise : Number(state[key]);
    Object.assign(this, { root, lab, request, run, example, notices, stage: clamp(number("stage", 5), 0, LAST), dims: number("dims", null), asked: lab.latestRequest(), projected: lab.latestRequest(), answered: lab.latestRequest(), boundary: boundaryOf(run.metadata.notices) });
    this.attention = clamp(number("attention", example.attention ?? 0), 0, run.attentions.length - 1);
    this.head = clamp(number("head", example.head ?? 0), 0, this.one.heads - 1);
    this.query = clamp(number("query", example.query ?? -1), -1, this.one.queries - 1);
    if (this.query < 0) this.query = this.firstQuery();
    this.key = number("key", null);
    this.edits = { ...noEdits(), temperature: number("temperature", 1) || 1, scale: number("scale", null), ...readEdits(state.edits) };
  }
  get one() { return this.run.attentions[this.attention]; }
  get changed() { return isEdited(this.edits); }
  side(which) { return this.run.tokens[this.one[which]] ?? []; }
  // Start with the token "it" of the example, else with one in the middle.
  firstQuery() {
    const tokens = this.side("query_side"), it = tokens.findIndex(token => token.text.trim().toLowerCase() === "it");
    return it >= 0 ? it : Math.min(tokens.length - 1, Math.max(tokens[0]?.special ? 1 : 0, Math.floor(tokens.length / 2)));
  }
  async build() {
    const { lab } = this, { t } = lab, part = (tag, attributes) => h(tag, attributes);
    this.pickers = part("div", {}), this.strip = part("div", { class: "formula-strip" }), this.math = part("div", { class: "math", tabindex: 0 }), this.rail = part("div", { class: "rail", role: "group", "aria-label": t("stages") });
    this.table = part("div", { class: "formula-scroll" }), this.why = part("section", { class: "card why", "aria-live": "polite" }), this.note = part("p", { class: "soft" }), this.ran = part("div", {}), this.many = part("div", {});
    this.before = part("div", {}), this.after = part("div", {}), this.controls = part("section", { class: "card changes" }), this.answer = part("div", { class: "answer-change", role: "status" });
    this.picture = h("div", { class: "formula-picture" }, this.strip, this.before, this.table, this.after, this.note);
    this.page = stage(lab, { notices: this.notices, tools: [this.pickers, this.rail], picture: this.picture, side: [this.controls, this.why] });
    document.addEventListener("keydown", event => {
      if (event.target.closest("input,textarea,select,button,[role=grid],summary,a") || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === " " || event.key === "ArrowRight") event.preventDefault(), this.go(this.stage + 1);
      if (event.key === "ArrowLeft") event.preventDefault(), this.go(this.stage - 1);
    }, { signal: lab.signal });
    lab.expose({ keep: () => this.keep(), read: () => this.read(), now: () => this.now && Object.fromEntries(Object.entries({ ...this.now, y: this.y }).map(([key, held]) => [key, held?.length === undefined ? held : Array.from(held)])),
      row: () => this.row && Object.fromEntries(Object.entries(this.row).map(([key, held]) => [key, held?.data ? { shape: held.shape, data: Array.from(held.data) } : held])) });
    this.root.append(this.page.element, fold(t("more"), h("div", { class: "map-head" }, this.many, fileButtons(lab, () => this.files())), this.math, cautionLine(lab), this.ran, h("p", { class: "soft help" }, t("keysHelp"))));
    await this.fetch();
  }
  async fetch() {
    const { lab, attention, head, query } = this, place = { ...this.request, attention, head, query, ...(this.key === null ? {} : { key: Math.min(this.key, this.one.keys - 1) }) };
    lab.set({ attention, head, query });
    const [row, held] = await Promise.all([this.asked("formula/row", place), this.projected("formula/projections", place)]);
    Object.assign(this, { row, held, fixed: false, queries: tokenNames(this.side("query_side")), keys: tokenNames(this.side("key_side")) });
    fill(this.ran, backendLine(lab, { backend: this.one.backend, difference: row.difference }));
    // as many dimensions as fit on the screen
    this.dims ??= clamp(Math.floor((this.table.clientWidth - (this.table.clientWidth < 640 ? 320 : row.position ? 452 : 397)) / 12), innerWidth < 620 ? 4 : 8, 64);
    this.pickKeys(), this.showPickers(), this.showMany(), this.showControls(), this.showBands(), this.draw();
    if (this.changed) this.predict();
  }
  // The keys in the table: all, or if there are many, those around the chosen key and those with the largest weights.
  pickKeys() {
    const { weight, allowed, places } = this.row, count = weight.shape[0], all = Array.from({ length: count }, (_, n) => n);
    const near = this.key === null || count <= ROWS ? [] : all.filter(n => Math.abs(places.data[n] - this.key) <= ROWS / 4);
    const heavy = topEntries(weight.data, ROWS - near.length, n => !allowed.data[n] || near.includes(n)).map(({ index }) => index);
    this.shown = count <= ROWS ? all : [...near, ...heavy].sort((a, b) => a - b);
    this.now = recompute(this.row, this.edits);
    this.best = near.length ? near.find(n => places.data[n] === this.key) ?? near[0] : this.heaviest(1)[0]?.index ?? 0;
  }
  // The keys with the largest weights, without masked keys and those that the model does not know.
  heaviest(count) { const tokens = this.side("key_side"); return topEntries(this.now.weight, count, j => !this.now.allowed[j] || Boolean(tokens[this.place(j)]?.unknown)); }
  place(j) { return this.row.places.data[j]; }
  name(j) { return this.keys[this.place(j)] ?? String(this.place(j)); }
  pick(query) { this.query = query, this.clearRow(), this.lab.attempt(() => this.fetch()); }
  clearRow() { this.edits.scores.clear(), this.edits.masks.clear(), this.lab.set({ edits: null }); }
  showPickers() {
    const { lab, run } = this, again = () => lab.attempt(() => this.fetch()), many = this.one.queries > 160;
    fill(this.pickers, headPicker(lab, run.attentions, this.attention, this.head, (attention, head) => { Object.assign(this, { attention, head }), this.query = Math.min(this.query, this.one.queries - 1), this.clearRow(), again(); }),
      many ? number(lab.t(this.one.query_side === "nodes" ? "graphQuery" : "query"), this.query, { min: 0, max: this.one.queries - 1 }, query => this.pick(clamp(query, 0, this.one.queries - 1))) : null,
      this.one.keys > ROWS && this.one.key_side !== "nodes" ? number(lab.t("aroundKey"), this.key ?? "", { min: 0, max: this.one.keys - 1 }, key => { this.key = Number.isFinite(key) ? clamp(key, 0, this.one.keys - 1) : null, lab.set({ key: this.key }), again(); }) : null);
  }
  // The sentence, coloured by the weights of the query where it attends to its own tokens.
  showStrip() {
    const { lab, one } = this, own = one.query_side === one.key_side && one.queries === this.row.weight.shape[0];
    if (this.stripOf === this.row && this.tokens) return own ? this.tokens.update({ values: this.now.weight, masked: n => !this.now.allowed[n] }) : undefined;
    this.stripOf = this.row, this.tokens = one.queries > 160 ? null : tokenStrip(lab, { names: this.queries, values: own ? this.now.weight : null, masked: n => own && !this.now.allowed[n], selected: this.query, label: lab.t("pickQuery"), special: n => this.side("query_side")[n]?.special, boundary: one.query_side === "source" ? this.boundary : null, onPick: query => this.pick(query) });
    fill(this.strip, this.tokens?.element ?? null);
  }
  go(stage) { this.stage = clamp(stage, 0, LAST), this.stepped = true, this.picture.classList.add("stepped"), this.lab.set({ stage: this.stage }), this.fixed = false, this.draw(); }
  // Unless a number is selected, explain the number of the stage for the key with the largest weight.
  follow() { if (!this.fixed) this.cell = { what: ["q", "raw", "scaled", "score", "weight", "output", "output"][this.stage], j: String([0, 5, 6].includes(this.stage) ? -1 : this.best), ...([0, 5, 6].includes(this.stage) ? { n: "0" } : {}) }; }

  // The formula, its stages, and the sentence of the current stage.
  draw() {
    const { t } = this.lab, { row } = this, now = this.now = recompute(row, this.edits);
    this.picture.dataset.lit = this.stage;
    this.follow(), this.showStrip(), this.showMath(), this.showRail(), this.showTable(), this.showAfter(), this.showWhy();
    const q = this.queries[this.query], best = this.best, k = this.name(best), scale = this.edits.scale ?? row.scale, one = this.one;
    const sentences = [() => this.held.known ? t("w0", q, one.head_dim, this.held.x_query.shape[0]) : t("w0bare", q, one.head_dim), () => t(row.additive ? "w1a" : "w1", q, k, formatShort(row.raw.data[best])),
      () => scale === null || scale === undefined || scale === 1 ? t("w2no") : t("w2", formatShort(row.raw.data[best]), formatShort(scale), formatShort(this.now.scaled[best])),
      () => t("w3", one.position ? one.position.in_q_and_k ? t("inside", one.position.line) : one.position.line : t("nothing"), one.mask ? one.mask.line : t("unmasked")),
      () => t("w4", q, k, formatShort(this.now.weight[best]), formatShort(this.now.sum)),
      () => { const top = this.heaviest(3); return top.length === 0 ? t("w5none", q) : t("w5", q, top.map(({ index }) => `“${this.name(index)}”`).join(" "), formatPercent(top.reduce((sum, { value }) => sum + value, 0), 0)); },
      () => this.held.known && this.held.w_head ? t("w6", one.heads, this.head, formatShort(this.contribution())) : t("w6none")];
    const unknown = this.side("query_side")[this.query]?.unknown, own = this.example, caption = !this.stepped && !this.changed && this.lab.state.stage === undefined && own.title && own.query === this.query && (own.head ?? 0) === this.head && (own.attention ?? 0) === this.attention;
    this.page.look(unknown ? t("unknownQuery", q) : [caption ? captionWords(this.lab, own, now.weight, n => this.name(n), one.query_side === one.key_side ? Array.from(now.weight, (_, j) => this.place(j)).indexOf(this.query) : -1) : sentences[this.stage](), one.edited?.[this.head] ? h("b", {}, " ", t("edited")) : null]);
    fill(this.note, this.shown.length < this.one.keys ? t("keysShown", this.shown.length, this.one.keys, Math.max(0, this.now.sum - this.shown.reduce((sum, j) => sum + this.now.weight[j], 0)).toFixed(6)) : "", one.position?.in_q_and_k ? ` ${t("turnedNote", one.position.line)}` : "");
  }
  // The length of what this head adds to y.
  contribution() {
    const { w_head: weights } = this.held, [size, width] = weights.shape;
    let total = 0;
    for (let n = 0; n < size; n++) { let sum = 0; for (let c = 0; c < width; c++) sum += weights.data[n * width + c] * this.now.output[c]; total += sum * sum; }
    return Math.sqrt(total);
  }
  showMany() { fill(this.many, select(this.lab.t("dims"), [...new Set([4, this.dims, 6, 8, 16, 32, 64])].sort((a, b) => a - b).map(n => [n, n]), this.dims, dims => { this.dims = Number(dims), this.lab.set({ dims }), this.draw(); })); }
  showRail() {
    const { t } = this.lab, scaleName = /Dot|^$/.test(this.one.score.line) ? "s2" : "s2x", stop = () => { clearInterval(this.playing), this.playing = null; };
    this.lab.signal.addEventListener("abort", stop, { once: true });
    const play = () => { if (this.playing) stop(); else { if (this.stage === LAST) this.stage = -1; const next = () => { this.go(this.stage + 1); if (this.stage === LAST) stop(), this.showRail(); }; this.playing = setInterval(next, prefersReducedMotion() ? 3000 : 1800), next(); } this.showRail(); };
    const focused = [...this.rail.children].indexOf(document.activeElement);
    fill(this.rail, ["s0", "s1", scaleName, "s3", "s4", "s5", "s6"].map((key, n) => button([h("span", { class: "step-number" }, n + 1), t(key)], () => this.go(n), { "aria-pressed": n === this.stage, class: n <= this.stage ? "done" : "", "data-stage": n })),
      button(this.playing ? "❚❚" : "▶", play, { class: "end", "aria-label": t(this.playing ? "pause" : "play"), title: t(this.playing ? "pause" : "play") }));
    if (focused >= 0) this.rail.children[focused]?.focus();
  }
  showMath() {
    const { stage, one, row } = this, on = (n, ...children) => m("mrow", { class: n === stage ? "now" : n < stage ? "past" : "later" }, ...children);
    const v = (letter, sub, role) => m("msub", { class: role }, m("mi", {}, letter), m("mi", {}, sub)), op = sign => m("mo", {}, sign), q = () => on(0, v("q", "i", "query")), k = () => on(0, v("k", "j", "key"));
    const plain = /^(Dot|Cosine|Bilinear)/.exec(one.score.line)?.[1];
    const similarity = row.additive ? on(1, m("msup", {}, m("mi", {}, "w"), m("mi", {}, "⊤")), m("mi", {}, row.activation === "leaky_relu" ? "LeakyReLU" : "tanh"), op("("), q(), op("+"), k(), op(")"))
      : plain === "Bilinear" ? on(1, q(), m("mi", {}, "W"), k()) : plain === "Cosine" ? on(1, m("mi", {}, "cos"), op("("), q(), op(","), k(), op(")")) : on(1, q(), op("·"), k());
    const scaled = row.additive ? similarity : plain === "Dot" && Math.abs(row.scale - 1 / Math.sqrt(one.head_dim)) < 1e-6 ? m("mfrac", {}, similarity, on(2, m("msqrt", {}, m("mn", {}, one.head_dim)))) : [similarity, on(2, op("×"), m("mn", {}, formatBrief(row.scale ?? 1)))];
    const inner = [scaled, on(3, one.position && !one.position.in_q_and_k ? [op("+"), m("msub", {}, m("mi", {}, "p"), m("mrow", {}, m("mi", {}, "i"), m("mi", {}, "j")))] : [], one.mask ? [op("+"), m("msub", {}, m("mi", {}, "mask"), m("mrow", {}, m("mi", {}, "i"), m("mi", {}, "j")))] : [])];
    fill(this.math, m("math", { display: "block" }, m("mrow", {}, on(5, v("o", "i", "output"), op("="), m("munder", {}, m("mo", {}, "∑"), m("mi", {}, "j"))), on(4, m("msub", {}, m("mi", {}, "softmax"), m("mi", {}, "j")), op("(")), inner, on(4, op(")")), on(5, v("v", "j", "value")))));
  }

  // A saved view has every query of this head and this query of every head, if they are few.
  keep() {
    const { run, request, query } = this, few = this.one.queries <= 64 && this.one.keys <= 512, body = (attention, head, at) => ({ ...request, attention, head, query: at });
    if (!few || this.key !== null) return [];
    const heads = run.attentions.flatMap((one, attention) => Array.from({ length: one.heads }, (_, head) => body(attention, head, Math.min(query, one.queries - 1)))).slice(0, 64);
    return [...heads, ...Array.from({ length: this.one.queries }, (_, at) => body(this.attention, this.head, at))].flatMap(each => [{ path: "formula/row", body: each }, { path: "formula/projections", body: each }]);
  }
  // Sliders, the selected score and its mask, and what the changes do to the output and the prediction.
  showControls() {
    const { t } = this.lab, { row } = this, far = this.one.keys > row.weight.shape[0];
    if (far || row.lse === null) return fill(this.controls, h("h3", {}, t("change")), h("p", { class: "soft" }, t(far ? "farKeys" : "edited")));
    const slider = (words, key, min, max, value, read) => {
      const id = newId(), shown = h("output", { for: id, translate: "no" }, formatShort(read(value))), input = h("input", { type: "range", id, min, max, step: 0.01, value, "data-slider": key, oninput: event => { const to = read(Number(event.target.value)); fill(shown, formatShort(to)), this.edit(() => { this.edits[key] = key === "scale" && Math.abs(to - row.scale) < 1e-9 ? null : to; }); } });
      return h("label", { class: "slider", for: id }, h("span", {}, words), input, shown);
    };
    const power = base => x => Math.abs(x) < 5e-3 ? base : base * 2 ** x, log = (value, base) => Math.log2(value / base);
    this.own = h("div", { class: "own-score" });
    fill(this.controls, h("div", { class: "map-head" }, h("h3", {}, t("change")), this.resetButton = button(t("reset"), () => this.reset(), { class: "small", id: "reset" })),
      slider(t("temperature"), "temperature", -3, 3, log(this.edits.temperature, 1), power(1)), row.additive || !row.scale ? null : slider(t("scaleFactor"), "scale", -3, 3, log(this.edits.scale ?? row.scale, row.scale), power(row.scale)), this.own, h("p", { class: "soft help" }, t("changeHow")), this.answer);
    this.showOwn(), fill(this.answer), this.resetButton.disabled = !this.changed;
  }
  // The score that is selected, to be typed, and its mask.
  showOwn() {
    const { t } = this.lab, j = Number(this.cell?.j ?? -1), { now } = this;
    if (!this.own) return;
    const at = j >= 0 ? j : this.best, id = newId();
    if (document.activeElement && this.own.contains(document.activeElement) && this.ownKey === at) return;
    this.ownKey = at;
    fill(this.own, h("label", { for: id }, t("ownScore", this.queries[this.query], this.name(at))), h("input", { type: "number", id, step: 0.1, value: now.allowed[at] ? Number(now.score[at].toFixed(3)) : "", disabled: !now.allowed[at], "data-own": "score", oninput: event => { if (event.target.value !== "") this.setScore(at, Number(event.target.value)); } }),
      check(t("ownMask"), !now.allowed[at], () => this.toggleMask(at)));
  }
  edit(change) {
    change(), this.lab.set({ edits: writeEdits(this.edits) || null, temperature: this.edits.temperature === 1 ? null : this.edits.temperature, scale: this.edits.scale });
    this.draw(), this.resetButton && (this.resetButton.disabled = !this.changed);
    this.predictSoon ??= this.lab.debounce(() => this.predict(), 200), this.predictSoon();
  }
  setScore(j, score) { if (Number.isFinite(score)) this.edit(() => this.edits.scores.set(j, score)); }
  toggleMask(j) { this.edit(() => { const off = Boolean(this.now.allowed[j]); off === !this.row.allowed.data[j] ? this.edits.masks.delete(j) : this.edits.masks.set(j, off); this.ownKey = null; }); }
  reset() { this.edit(() => { this.edits = noEdits(), this.ownKey = null; }), this.showControls(); }
  // The model's prediction with this row of weights replaced.
  async predict() {
    const { lab, row } = this, { t } = lab;
    if (!this.changed) return fill(this.answer);
    await lab.attempt(async () => {
      const weights = Array.from(this.now.weight), found = await this.answered("formula/run", { ...this.request, edits: [{ attention: this.one.name, head: this.head, query: this.query, weights }] }).catch(error => { if (error.name !== "AbortError") throw error; });
      if (!found || !this.changed) return;
      const length = values => Math.sqrt(Array.from(values).reduce((sum, x) => sum + x * x, 0)), moved = length(Array.from(this.now.output, (x, n) => x - row.output.data[n])) / (length(row.output.data) || 1);
      const items = run => run.prediction?.items ?? [], after = items(found), before = items(this.run), many = ["tags", "nodes"].includes(this.run.prediction?.type);
      const lines = (many ? before.map((item, n) => [item, after[n]]).filter(([a, b], n) => b && (a.label !== b.label || (item => (item.token ?? item.node) === this.query)(a))) : before.slice(0, 3).map(item => [item, after.find(other => other.class === item.class && other.place === item.place)])).slice(0, 5);
      const shares = (a, b) => h("tr", {}, h("th", { scope: "row", translate: "no" }, many ? `${this.queries[a.token ?? a.node] ?? ""} ` : "", visibleText(a.label)), h("td", { class: "number" }, a.probability === null ? "" : formatPercent(a.probability)), h("td", {}, "→"), h("td", { class: "number", translate: "no" }, b === undefined ? "–" : b.label !== a.label ? `${visibleText(b.label)} ${formatPercent(b.probability)}` : formatPercent(b.probability)));
      fill(this.answer, h("p", {}, t("outputMoved", formatPercent(moved, 0))), lines.length ? h("table", { class: "numbers" }, h("caption", {}, t("answerBefore"), " → ", t("answerAfter")), h("tbody", {}, lines.map(([a, b]) => shares(a, b)))) : null);
      lab.expose({ answer: () => found.prediction });
    }, this.controls);
  }

  showBands() {
    const { held } = this;
    fill(this.before, held.known ? inputBand(this, held) : ""), this.output = held.known && held.w_head ? outputBand(this, held) : null, fill(this.after, this.output?.element ?? "");
  }
  showAfter() {
    const { held, row, now } = this;
    this.y = held.known && held.w_head ? recomputeOutput(held, now.output, row.output.data) : null;
    if (this.output) this.output.update(now.output, this.y);
  }
  // The table: a row per key, a column per stage. It is built once for a query; edits change numbers and colours in place.
  showTable() {
    const { row, one } = this, key = this.table.clientWidth;
    if (this.built?.row === row && this.built.dims === this.dims && this.built.key === key) return this.showNumbers(), this.showChosen();
    this.built = { row, dims: this.dims, key }, this.editable = one.keys === row.weight.shape[0] && row.lse !== null;
    const { scrollLeft, scrollTop } = this.table, focused = this.table.contains(document.activeElement), table = this.buildTable();
    table.addEventListener("click", event => { if (this.dragged) this.dragged = false; else this.explain(event.target.closest("[data-what]")); });
    table.addEventListener("pointerover", event => { if (!this.fixed && !this.drag) this.explain(event.target.closest("[data-what]"), false); });
    table.addEventListener("keydown", event => this.move(event, this.editable));
    if (this.editable) table.addEventListener("pointerdown", event => this.startDrag(event));
    fill(this.table, table), this.showNumbers(), this.showChosen();
    // what the numbers take more than expected, the vectors give
    const over = table.offsetWidth - this.table.clientWidth, cells = table.querySelectorAll("tbody tr:first-child .sq").length;
    if (over > 0 && innerWidth >= 620) table.style.setProperty("--side", `${Math.max(3, parseFloat(table.style.getPropertyValue("--side")) - Math.ceil(2 * over / cells) / 2)}px`);
    Object.assign(this.table, { scrollLeft, scrollTop });
    if (focused) table.querySelector('[tabindex="0"]')?.focus({ preventScroll: true });
  }
  buildTable() {
    const { t } = this.lab, { row, one, shown } = this, d = Math.min(this.dims, one.head_dim), dv = Math.min(this.dims, row.v.shape[1]), width = row.k.shape[1], wide = row.v.shape[1], narrow = this.table.clientWidth < 640, bias = row.position ? 1 : 0, numbers = narrow ? 4 : 5 + bias; // columns between K and V: the narrow table leaves out scaled and position
    const most = Math.max(largest(row.q.data), largest(row.k.data)), mostV = largest(row.v.data), shade = shader("scores", [-most, most]), shadeV = this.shadeV = shader("scores", [-mostV, mostV]);
    const fixed = narrow ? innerWidth < 620 ? 252 : 320 : row.position ? 452 : 397, side = clamp(Math.floor((this.table.clientWidth - fixed) / (d + dv) - 1), innerWidth < 620 ? 10 : 5, 24);
    this.digits = side >= 22;
    const square = (value, shading, what, j, n, part) => { const ground = shading(value); return h("td", { class: "sq", tabindex: -1, "data-what": what, "data-j": j, "data-n": n, "data-value": value, "data-part": part, style: { background: cssColour(ground), color: textColourOn(ground) }, title: formatExact(value) }, this.digits ? short2(value) : ""); };
    const num = (what, j, part, value = null) => h("td", { class: `num ${what}`, tabindex: -1, "data-what": what, "data-j": j, "data-part": part, ...(value === null ? {} : { "data-value": value, title: formatExact(value) }) }, value === null ? "" : formatShort(value));
    const column = (words, part, more = {}) => words ? h("th", { scope: "col", "data-part": part, ...more }, words) : h("td", { "data-part": part });
    const head = h("thead", {},
      h("tr", {}, column("", 1), h("th", { scope: "colgroup", colspan: d, class: "key", "data-part": 1 }, d < width ? t("ofDims", "K", d, width) : untranslated("K")), column(t(row.additive ? "colRawAdd" : "colRaw"), 1), column(t("colScaled"), 2, { class: "scaled" }),
        bias ? column(t("colPosition"), 3, { class: "position" }) : null, column(t("colScore"), 3), column("", 3), column(t("colWeight"), 4), h("th", { scope: "colgroup", colspan: dv, class: "value", "data-part": 5 }, dv < wide ? t("ofDims", "V", dv, wide) : untranslated("V"))),
      h("tr", { class: "q-line" }, h("th", { scope: "row", translate: "no" }, h("span", { class: "query" }, "q ", this.queries[this.query])), Array.from({ length: d }, (_, n) => square(row.q.data[n], shade, "q", -1, n, 1)), h("td", { colspan: numbers + dv })));
    this.lines = shown.map(j => {
      const line = { j, scaled: num("scaled", j, 2), score: num("score", j, 3), bar: h("span", { class: "weight-bar" }), number: h("span", {}), values: Array.from({ length: dv }, (_, n) => square(row.v.data[j * wide + n], shadeV, "v", j, n, 5)) };
      line.weight = h("td", { class: "num weight", tabindex: -1, "data-what": "weight", "data-j": j, "data-part": 4 }, line.bar, line.number);
      line.eye = this.editable ? button("●", () => this.toggleMask(j), { class: "plain", tabindex: -1, "aria-label": t("toggleMask", this.name(j)), title: t("toggleMask", this.name(j)), "data-mask": j }) : null;
      line.element = h("tr", { style: { "--row": shown.indexOf(j) }, class: this.place(j) === this.query && one.query_side === one.key_side ? "self" : "" }, h("th", { scope: "row", class: "key", translate: "no" }, this.name(j), h("span", { class: "at" }, this.place(j))),
        Array.from({ length: d }, (_, n) => square(row.k.data[j * width + n], shade, "k", j, n, 1)), num("raw", j, 1, row.raw.data[j]), line.scaled, bias ? num("position", j, 3, row.position.data[j]) : null, line.score, h("td", { class: "eye-cell", "data-part": 3 }, line.eye), line.weight, line.values);
      return line;
    });
    this.sumCell = h("td", { class: "num", "data-part": 4 }), this.outputs = Array.from({ length: dv }, (_, n) => square(row.output.data[n], shadeV, "output", -1, n, 5));
    const foot = h("tfoot", {}, h("tr", { style: { "--row": shown.length + 3 } }, h("th", { scope: "row", class: "output" }, t("rowOutput")), h("td", { colspan: d + numbers - 1, class: "soft output fill" }, untranslated("o = Σ w·v")), this.sumCell, this.outputs));
    return h("table", { class: `formula-table ${this.editable ? "editable" : ""} ${narrow ? "tight" : ""}`, role: "grid", "aria-label": t("stages"), style: { "--side": `${side}px` } }, head, h("tbody", {}, this.lines.map(line => line.element)), foot);
  }
  // The numbers that edits can change.
  showNumbers() {
    const { now, edits } = this, heaviest = Math.max(...this.shown.map(j => now.weight[j]), 1e-9);
    const write = (cell, value, masked = false) => { cell.dataset.value = masked ? "-Infinity" : value, cell.classList.toggle("hatched", masked), cell.textContent = masked ? "−∞" : formatShort(value), cell.title = masked ? "" : formatExact(value); };
    for (const { j, scaled, score, weight, bar, number: words, values, eye } of this.lines) {
      const masked = !now.allowed[j], w = now.weight[j], faded = 0.15 + 0.85 * Math.sqrt(w / heaviest);
      write(scaled, now.scaled[j]), write(score, now.score[j], masked), score.classList.toggle("own", edits.scores.has(j) || edits.masks.has(j));
      weight.dataset.value = w, weight.title = formatExact(w), weight.classList.toggle("hatched", masked), words.textContent = masked ? "–" : formatShort(w), bar.style.width = `${52 * w / Math.max(heaviest, 0.25)}%`, bar.style.background = weightColour(w);
      for (const cell of values) cell.style.opacity = faded;
      if (eye) eye.textContent = masked ? "○" : "●", eye.setAttribute("aria-pressed", masked);
    }
    this.sumCell.dataset.sum = now.sum, this.sumCell.textContent = now.sum.toFixed(4);
    this.outputs.forEach((cell, n) => { const ground = this.shadeV(now.output[n]); cell.dataset.value = now.output[n], cell.title = formatExact(now.output[n]), cell.style.background = cssColour(ground), cell.style.color = textColourOn(ground); if (this.digits) cell.textContent = short2(now.output[n]); });
  }
  // The frame of the selected number.
  showChosen() {
    for (const cell of this.table.querySelectorAll(".chosen")) cell.classList.remove("chosen");
    for (const cell of this.table.querySelectorAll('[tabindex="0"]')) cell.setAttribute("tabindex", -1);
    const start = this.table.querySelector(this.cell ? selector(this.cell) : `[data-what=weight][data-j="${this.best}"]`) ?? this.table.querySelector("[data-what]");
    start?.setAttribute("tabindex", 0), this.cell && start?.classList.add("chosen");
  }
  // A score follows the pointer: up is more.
  startDrag(event) {
    const cell = event.target.closest("[data-what=score]"), j = Number(cell?.dataset.j);
    if (!cell || !this.now.allowed[j] || event.button) return;
    event.preventDefault();
    const from = this.now.score[j], y = event.clientY, stop = new AbortController(), end = () => { stop.abort(), this.drag = false; };
    this.drag = true, this.dragged = false, this.cell = { what: "score", j: String(j) }, this.fixed = true;
    const step = Math.max(0.02, largest(Array.from(this.now.score).filter(Number.isFinite)) / 100);
    addEventListener("pointermove", moved => { if (Math.abs(moved.clientY - y) < 3 && !this.dragged) return; this.dragged = true, this.setScore(j, from + (y - moved.clientY) * step); }, { signal: stop.signal });
    addEventListener("pointerup", () => { end(), setTimeout(() => { this.dragged = false; }); }, { signal: stop.signal }), addEventListener("pointercancel", end, { signal: stop.signal });
  }
  move(event, canEdit) {
    const cell = event.target.closest("[data-what]"), line = cell?.parentElement, lines = [...this.table.querySelectorAll("tr")].filter(one => one.querySelector("[data-what]"));
    if (!cell) return;
    const own = [...line.querySelectorAll("[data-what]")], n = own.indexOf(cell), x = cell.offsetLeft, j = Number(cell.dataset.j), score = cell.dataset.what === "score" && canEdit && this.now.allowed[j];
    const vertical = step => { const to = lines[lines.indexOf(line) + step]; return to && [...to.querySelectorAll("[data-what]")].reduce((best, one) => Math.abs(one.offsetLeft - x) < Math.abs(best.offsetLeft - x) ? one : best); };
    if (score && ["+", "=", "-", "−"].includes(event.key)) return event.preventDefault(), this.fixed = true, this.cell = { ...cell.dataset }, this.setScore(j, this.now.score[j] + (event.key === "-" || event.key === "−" ? -0.1 : 0.1));
    if (canEdit && (event.key === "m" || event.key === "M") && j >= 0) return event.preventDefault(), this.fixed = true, this.cell = { ...cell.dataset }, this.toggleMask(j);
    const to = { ArrowRight: () => own[n + 1], ArrowLeft: () => own[n - 1], ArrowDown: () => vertical(1), ArrowUp: () => vertical(-1), Home: () => own[0], End: () => own.at(-1), Enter: () => cell, Escape: () => null }[event.key];
    if (!to) return;
    event.preventDefault();
    if (event.key === "Escape") { this.fixed = false; return; }
    this.explain(to());
    to()?.focus();
  }
  explain(cell, hold = true) {
    if (!cell) return;
    this.fixed = hold, this.cell = { ...cell.dataset };
    this.showChosen(), this.showWhy();
  }
  showWhy() { fill(this.why, h("h3", {}, this.lab.t("why")), this.cell ? explain(this, this.cell) : h("p", { class: "soft" }, this.lab.t("whyStart"))), this.showOwn(); }
  files() {
    const { row } = this, stem = `formula-${this.one.name}-head-${this.head}-query-${this.query}`, vectors = ["raw", "scaled", "position", "allowed", "score", "weight"].filter(key => row[key]), value = (key, j) => this.now[key]?.[j] ?? row[key].data[j];
    const csv = () => [["key", ...vectors].join(","), ...Array.from({ length: row.weight.shape[0] }, (_, j) => [`"${this.name(j).replaceAll('"', '""')}"`, ...vectors.map(key => value(key, j))].join(","))].join("\r\n");
    const arrays = Object.fromEntries(Object.entries(row).filter(([, held]) => held?.data));
    return { csv: () => saveFile(`${stem}.csv`, `\ufeff${csv()}\r\n`, "text/csv"), npz: () => saveFile(`${stem}.npz`, npz(arrays)), ...tablePicture(this.table.firstElementChild, stem) };
  }
  read() { const { what, j, n } = this.cell ?? {}; return { attention: this.attention, head: this.head, query: this.query, stage: this.stage, dims: this.dims, shown: this.shown?.length, cell: { what, j, ...(n === undefined ? {} : { n }) }, sum: this.now?.sum, edited: this.changed }; }
}
const short2 = x => (Math.abs(x) >= 10 ? x.toFixed(0) : x.toFixed(1)).replace("-", "−").replace("−0.0", "0.0");
const selector = ({ what, j, n }) => `[data-what=${what}]${j === undefined ? "" : `[data-j="${j}"]`}${n === undefined ? "" : `[data-n="${n}"]`}`;
