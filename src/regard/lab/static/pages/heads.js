// Heads: thumbnails of every head of every layer, and one head in detail.
import { hatch, shader } from "lab/colour.js";
import { allUnknown, bar, boundaryOf, button, captionWords, check, chosenModel, cautionLine, exampleOf, exampleState, inputBox, modelPicker, noticeBox, predictionLine, backendLine, sizeLine, startText } from "lab/controls.js";
import { clamp, formatExact, formatShort, fill, fontFamily, h, newId, formatPercent, scaleCanvas, cssVariable, tokenNames, topEntries, UNKNOWN_MARK } from "lab/dom.js";
import { attentionLines } from "lab/attention_lines.js";
import { modelInput } from "lab/inputs.js";
import { heatMap } from "lab/heat_map.js";
import { headFinder } from "lab/head_roles.js";
import { fold, stage } from "lab/stage.js";
import { tokenStrip } from "lab/token_strip.js";
import { dots, numbersTable } from "lab/charts.js";

export const name = "heads";
const LEFT = 62; // room for the names of the layers in the grid
export const text = {
  en: {
    title: "Heads",
    lead: "Left: every head of every layer as a small map, layers from top to bottom, heads from left to right, counted from 0. Point at a head to preview it, click to select it, or move with the arrow keys and Enter. Beside it the head in full: the lines of one query and the map of all. Drag over the words of the text to look at these tokens only.",
    layerShort: n => `layer ${n}`, encoderShort: n => `enc. ${n}`, decoderShort: n => `dec. ${n}`, overview: "All heads", overviewHow: "Point at a head, click to keep it.",
    headAt: (label, head) => `${label} · head ${head}`, kept: "selected", preview: "preview", keepThis: "Select", letGo: "Clear",
    look: (query, key, share, layer, head) => `“${query}” attends most to “${key}”: ${share} of its weight in head ${head} of layer ${layer}.`, lookSelf: (query, share, layer, head, other, rest) => `“${query}” keeps ${share} of its weight for itself in head ${head} of layer ${layer}${other ? `; next is “${other}” with ${rest}` : ""}.`, lookSpread: (query, layer, head, key, share) => `“${query}” spreads its weight in head ${head} of layer ${layer}: even “${key}” gets only ${share}.`,
    local: "Mean attention distance per head", distanceAxis: "mean distance in tokens", layerAxis: "layer", spread: "Entropy per head",
    entropyAxis: "entropy ÷ log(keys)",
    chartNote: "One dot per head. The distance includes special tokens. Entropy is divided by the logarithm of the number of visible keys: 0 means all weight on one key, 1 means uniform weights.",
    dot: (label, head, value) => `${label}, head ${head}: ${value}`, table: "Statistics of every head", colAttention: "attention", colHead: "head",
    colEntropy: "entropy (nats)", colShare: "entropy ÷ log", colDistance: "distance", colPeak: "largest weight", colSpecial: "weight on special tokens",
    hide: "Hide special tokens", renormalise: "renormalise rows to sum to 1",
    hidden: (names, mass) => `Hiding ${names} removes ${mass} of this head's weight (not renormalised).`,
    hiddenAgain: (names, mass) => `Hiding ${names} removes ${mass} of this head's weight; rows are renormalised.`,
    brushed: (first, last) => `Only “${first}” … “${last}”`, brushedMass: mass => `The other tokens get ${mass} of the weight.`, showAll: "Show all tokens",
    orientationHidden: "Rows = queries, columns = keys; rows sum to less than 1 because columns are hidden.",
    stripTitle: "The text coloured by weight", stripOut: name => `Weights that the query “${name}” gives to each token`, stripIn: name => `Weights that each query gives to “${name}”`,
    raw: "similarity", scaled: "scaled", position: "position", scoreFull: "score", norm: "weight × ‖f(v)‖", neighbours: "Other heads", prevHead: "Previous head",
    nextHead: "Next head", prevLayer: "Previous layer", nextLayer: "Next layer",
    weightsOf: "All queries",
    pooled: (n, m) => `${n} tokens are too many for one cell per pair: each cell is a mean over several queries and keys (${m} × ${m} cells). Zoom in on the page Long text.`,
  },
  zh: {
    title: "注意力头", lead: "左边把每一层的每个头画成一张小图：从上到下是层，从左到右是头，都从 0 数起。鼠标悬停可预览，点击可选中，也可用方向键和 Enter。旁边是选中的头：单个查询的连线和全部查询的权重图。在文本上拖动，可以只看这些词元。",
    layerShort: n => `第 ${n} 层`, encoderShort: n => `编码 ${n}`, decoderShort: n => `解码 ${n}`, overview: "所有头", overviewHow: "悬停预览，点击选中。",
    headAt: (label, head) => `${label} · 头 ${head}`, kept: "已选中", preview: "预览", keepThis: "选中", letGo: "取消",
    look: (query, key, share, layer, head) => `在第 ${layer} 层的头 ${head} 中，“${query}”最关注“${key}”，给了它 ${share} 的权重。`, lookSelf: (query, share, layer, head, other, rest) => `在第 ${layer} 层的头 ${head} 中，“${query}”把 ${share} 的权重留给自己${other ? `，其次是“${other}”，占 ${rest}` : ""}。`, lookSpread: (query, layer, head, key, share) => `在第 ${layer} 层的头 ${head} 中，“${query}”的权重很分散：最多的“${key}”也只有 ${share}。`,
    local: "每个头的平均注意力距离", distanceAxis: "平均距离（词元）", layerAxis: "层", spread: "每个头的熵", entropyAxis: "熵 ÷ log(键数)",
    chartNote: "每个点是一个头；距离包含特殊词元。熵除以可见键数的对数：0 表示权重全在一个键上，1 表示权重均匀。",
    dot: (label, head, value) => `${label}，头 ${head}：${value}`, table: "每个头的统计", colAttention: "注意力", colHead: "头", colEntropy: "熵（nat）", colShare: "熵 ÷ log",
    colDistance: "距离", colPeak: "最大权重", colSpecial: "特殊词元上的权重",
    hide: "隐藏特殊词元", renormalise: "重新归一化，使每行之和为 1", hidden: (names, mass) => `隐藏 ${names} 去掉了这个头 ${mass} 的权重（未重新归一化）。`,
    hiddenAgain: (names, mass) => `隐藏 ${names} 去掉了这个头 ${mass} 的权重；各行已重新归一化。`,
    brushed: (first, last) => `只看“${first}”到“${last}”`, brushedMass: mass => `其余词元占 ${mass} 的权重。`, showAll: "显示全部词元",
    orientationHidden: "行 = 查询，列 = 键；因为有列被隐藏，每行之和小于 1。",
    stripTitle: "按权重着色的文本", stripOut: name => `查询“${name}”给每个词元的权重`, stripIn: name => `每个查询给“${name}”的权重`,
    raw: "相似度", scaled: "缩放后", position: "位置项", scoreFull: "分数", norm: "权重 × ‖f(v)‖", neighbours: "其他头", prevHead: "上一个头", nextHead: "下一个头", prevLayer: "上一层",
    nextLayer: "下一层", 
    weightsOf: "全部查询",
    pooled: (n, m) => `${n} 个词元太多，无法每对一格：每格是若干查询与键的平均（${m} × ${m} 格）。可在“长文本”页放大查看。`,
  },
};

export async function show(root, lab) {
  const modalities = ["text", "pair", "image", "sound"], model = chosenModel(lab, modalities), fresh = { upload: null, example: null, drawing: null, tone: null, query: null };
  const picker = modelPicker(lab, { modalities, onChange: chosen => lab.set({ ...fresh, model: chosen, attention: null, head: null }, { show: true, replace: false }) });
  lab.bar(picker);
  if (!model) return;
  const typed = ["text", "pair"].includes(model.modality), words = typed ? startText(lab, model) : null;
  const chosen = typed ? null : modelInput(lab, root, model, changes => lab.set({ ...changes, query: null }, { show: true, replace: false }));
  lab.bar(picker, typed ? inputBox(lab, { value: words, model, onRun: ({ text, example }) => lab.set({ text, query: null, ...(example ? exampleState(example) : {}) }, { show: true, replace: false }) })
    : chosen.element ?? "");
  const input = typed ? { text: words } : chosen.input, request = { model: model.name, input };
  if (!input) return void root.append(h("p", { class: "note" }, lab.t("noInput")));
  const before = lab.received(), run = await lab.request("heads/run", request), { notices } = run.metadata, example = typed ? exampleOf(lab, model) : {}, warning = noticeBox(lab, notices, modalities);
  if (allUnknown(notices)) return void root.append(warning);
  const overview = await lab.request("heads/overview", request), answered = performance.now();
  const view = new Heads(root, lab, request, run, overview, example);
  view.build(warning, typed);
  const start = view.sharpest();
  await view.choose(clamp(Number(lab.state.attention ?? example.attention ?? start.attention), 0, run.attentions.length - 1), Number(lab.state.head ?? (lab.state.attention === undefined ? example.head ?? start.head : 0)), lab.state.head !== undefined && lab.state.preview === undefined);
  view.startFinder();
  root.append(cautionLine(lab), fold(lab.t("details"), backendLine(lab, run), sizeLine(lab, lab.received() - before, performance.now() - answered)));
  lab.expose({ read: () => view.read(), head: () => view.detail });
}
// A saved view contains every head if there are few.
export async function keep(lab) {
  const requests = lab.requests(), run = requests.find(one => one.path === "heads/run");
  if (!run) return [];
  const { attentions } = await lab.request("heads/run", run.body), numbers = attentions.reduce((sum, one) => sum + one.heads * one.queries * one.keys, 0);
  if (numbers > 1 << 20) return [];
  return attentions.flatMap((one, attention) => Array.from({ length: one.heads }, (_, head) => ({ path: "heads/map", body: { ...run.body, attention, head } })));
}

class Heads {
  constructor(root, lab, request, run, overview, example) {
    Object.assign(this,
      { root, lab, request, run, overview, example, boundary: boundaryOf(run.metadata.notices), attention: 0, head: 0, kept: false, hide: lab.state.hide === "1", again: lab.state.again === "1", range: readRange(lab.state.range),
        direction: lab.state.direction ?? "out", asked: lab.latestRequest(), rows: new Map() });
    this.stats = run.attentions.map(one => one.stats);
  }
  // The head to start with where nothing else is said: the one with the least entropy for its number of keys, the most to see.
  sharpest() { return this.each((one, head, stats, attention) => ({ attention, head, share: stats.entropy_share.data[head] })).reduce((best, one) => one.share < best.share ? one : best); }
  build(notices, typed) {
    const { lab, root } = this, { t } = lab, id = newId();
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.active = h("div", { role: "gridcell", id, translate: "no" });
    this.line = h("div", { role: "row" }, this.active);
    const most = Math.max(...this.run.attentions.map(one => one.heads));
    this.grid = h("div",
      { role: "grid", tabindex: 0, class: "map-grid", id: "overview", "aria-label": t("overview"), "aria-activedescendant": id,
        "aria-rowcount": this.run.attentions.length, "aria-colcount": most, onkeydown: event => this.press(event) },
      this.canvas, h("div", { class: "unseen" }, this.line));
    this.canvas.addEventListener("pointermove", event => this.point(event, false));
    this.canvas.addEventListener("click", event => this.point(event, true));
    this.scroll = h("div", { class: "map-scroll" }, this.grid);
    this.charts = h("div", { class: "columns" });
    this.headline = h("div", { class: "row headline" }), this.options = h("div", { class: "row head-options" }), this.pictures = h("div", { class: "head-pictures narrow" });
    this.strip = tokenStrip(lab, { names: [], values: null, selected: 0, label: t("stripTitle"), onRange: range => this.brush(range) });
    this.stripWords = h("p", { class: "unseen" });
    this.stage = stage(lab, { notices, tools: [h("div", { class: "text-strip" }, this.strip.element, this.stripWords), bar(t("direction"), [["out", t("attendsTo")], ["in", t("attendedBy")]], this.direction, value => { this.direction = value, lab.set({ direction: value }), this.pick(this.query, ""); })],
      picture: h("div", { class: "heads-stage" }, h("section", { class: "all-heads" }, h("h3", {}, t("overview"), h("span", { class: "soft" }, " ", t("overviewHow"))), this.scroll), h("section", { class: "head-detail" }, this.headline, this.options, this.pictures)) });
    // the roles of the heads are asked for once the pictures are drawn
    this.startFinder = () => {
      if (!typed || this.finder) return;
      this.finder = headFinder(lab, { request: this.request, attentions: this.run.attentions, tokens: this.run.tokens, onPick: (attention, head) => lab.attempt(() => this.choose(attention, head, true)), onAnswer: (...found) => this.showPair(...found), onFilter: () => this.paint() });
      this.finder.onChange(() => this.showHeadline(this.run.attentions[this.attention]));
      this.stage.picture.querySelector(".all-heads").append(this.finder.element);
    };
    const names = tokenNames(this.run.tokens[this.run.attentions[0].query_side]);
    root.append(this.stage.element, predictionLine(lab, this.run.prediction, names) ?? "", h("section", { class: "card" }, this.charts, h("p", { class: "soft" }, t("chartNote"))), this.table());
    const observer = new ResizeObserver(() => this.paint());
    observer.observe(this.scroll), lab.signal.addEventListener("abort", () => observer.disconnect());
    document.addEventListener("keydown", event => {
      if (event.target.closest("input,textarea,select,[role=grid]")) return;
      if (event.key === "[") this.step(0, -1);
      if (event.key === "]") this.step(0, 1);
    }, { signal: lab.signal });
  }
  table() {
    const { t } = this.lab;
    return numbersTable(this.lab,
      { caption: t("table"), folded: true, columns: ["colAttention", "colHead", "colEntropy", "colShare", "colDistance", "colPeak", "colSpecial"].map(key => t(key)),
      rows: this.each((attention, head, stats) => [h("span", {}, this.lab.localize(attention.label)), head,
        ...["entropy", "entropy_share", "distance", "peak", "special"].map(key => stats[key].data[head])]) });
  }
  each(make) { return this.run.attentions.flatMap((attention, n) => Array.from({ length: attention.heads }, (_, head) => make(attention, head, this.stats[n], n))); }

  // The overview: one canvas, a thumbnail per head.
  paint() {
    const room = this.scroll.clientWidth - 4, { attentions } = this.run, most = Math.max(...attentions.map(one => one.heads)), left = LEFT, top = 20, { t } = this.lab;
    if (room < 60) return;
    const side = this.side = clamp(Math.floor((room - left) / most) - 4, 22, 112), started = performance.now();
    const pen = scaleCanvas(this.canvas, left + most * (side + 4), top + attentions.length * (side + 4));
    pen.font = `12px ${fontFamily()}`, pen.fillStyle = cssVariable("--soft"), pen.textBaseline = "middle", pen.textAlign = "center";
    for (let head = 0; head < most; head++) pen.fillText(head, left + head * (side + 4) + side / 2, 9);
    pen.textAlign = "right", pen.fillText(t("head"), left - 8, 9), pen.textAlign = "center";
    const sides = new Set(attentions.map(one => one.query_side)).size > 1; // an encoder and a decoder
    const ground = hatch(pen);
    attentions.forEach((one, n) => {
      const y = top + n * (side + 4);
      pen.fillStyle = cssVariable("--soft"), pen.textAlign = "right", pen.fillText(`${t(sides ? one.query_side === "source" ? "encoderShort" : "decoderShort" : "layerShort", one.layer)}${one.role === "cross" ? " ×" : ""}`, left - 8, y + side / 2), pen.textAlign = "center";
      for (let head = 0; head < one.heads; head++) {
        const x = left + head * (side + 4), image = this.thumbnail(n, head);
        pen.fillStyle = ground, pen.fillRect(x, y, side, side);
        pen.imageSmoothingEnabled = image.width > side, pen.imageSmoothingQuality = "high";
        if (this.finder && !this.finder.visible(n, head)) pen.globalAlpha = 0.22;
        pen.drawImage(image, x, y, side, side), pen.globalAlpha = 1;
        if (n !== this.attention || head !== this.head) continue;
        pen.strokeStyle = this.kept ? cssVariable("--accent") : cssVariable("--ink"), pen.lineWidth = 3, pen.strokeRect(x - 1, y - 1, side + 2, side + 2);
      }
    });
    this.drawn = performance.now() - started;
  }
  thumbnail(n, head) {
    this.thumbs ??= new Map();
    const name = `${n}.${head}`;
    if (this.thumbs.has(name)) return this.thumbs.get(name);
    const weights = this.overview.maps[n], masked = this.overview.masked[n], [, rows, columns] = weights.shape, canvas = document.createElement("canvas"),
      image = new ImageData(columns, rows), shade = shader("weights", [0, 255], "root");
    canvas.width = columns, canvas.height = rows;
    const off = masked && (masked.shape[0] === 1 ? 0 : head) * rows * columns;
    for (let p = 0; p < rows * columns; p++) {
      if (masked && masked.data[off + p]) continue;
      image.data.set(shade(weights.data[head * rows * columns + p]), 4 * p), image.data[4 * p + 3] = 255;
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
    this.thumbs.set(name, canvas);
    return canvas;
  }
  under(event) {
    const edge = this.canvas.getBoundingClientRect(), head = Math.floor((event.clientX - edge.left - LEFT) / (this.side + 4)),
      attention = Math.floor((event.clientY - edge.top - 20) / (this.side + 4));
    return this.run.attentions[attention] && head >= 0 && head < this.run.attentions[attention].heads ? [attention, head] : null;
  }
  point(event, click) {
    const found = this.under(event);
    this.canvas.title = found ? [this.lab.t("headAt", this.lab.localize(this.run.attentions[found[0]].label), found[1]), this.finder?.labelOf(...found)].filter(Boolean).join(": ") : "";
    if (!found || (!click && this.kept)) return;
    const [attention, head] = found, same = attention === this.attention && head === this.head;
    if (!click && same) return;
    this.lab.attempt(() => this.choose(attention, head, click ? !(this.kept && same) : false));
  }
  press(event) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], PageUp: [-1, 0], PageDown: [1, 0], "[": [0, -1], "]": [0, 1] };
    if (event.key === "Enter" || event.key === " ") this.lab.attempt(() => this.choose(this.attention, this.head, !this.kept));
    else if (event.key === "Escape") this.lab.attempt(() => this.choose(this.attention, this.head, false));
    else if (moves[event.key]) this.step(...moves[event.key]);
    else if (event.key === "Home" || event.key === "End") this.lab.attempt(() => this.choose(this.attention, event.key === "Home" ? 0 : 1e9, this.kept));
    else return;
    event.preventDefault();
  }
  step(layers, heads) { return this.lab.attempt(() => this.choose(clamp(this.attention + layers, 0, this.run.attentions.length - 1), this.head + heads, this.kept)); }

  // One head in detail.
  async choose(attention, head, kept) {
    const { lab } = this, one = this.run.attentions[attention];
    head = clamp(head, 0, one.heads - 1);
    Object.assign(this, { attention, head, kept });
    this.paint(), this.showCharts(), this.finder?.select(attention, head);
    this.line.setAttribute("aria-rowindex", attention + 1), this.active.setAttribute("aria-colindex", head + 1);
    this.active.textContent = `${lab.t("headAt", lab.localize(one.label), head)}, ${lab.t("distance")} ${formatShort(this.stats[attention].distance.data[head])}`;
    lab.announce(this.active.textContent);
    lab.set({ attention, head, preview: kept ? null : 1 });
    const found = await this.asked("heads/map", { ...this.request, attention, head });
    if (attention === this.attention && head === this.head) this.showDetail(one, found);
  }
  // The head that answers a question about two words, at these words.
  async showPair(attention, head, query, key) {
    this.query = query, this.lab.set({ query });
    await this.choose(attention, head, true);
    if (!this.pooled) this.map.select(this.shownRows.indexOf(query), this.shownColumns.indexOf(key));
  }
  showCharts() {
    const { lab } = this, { t } = lab, all = this.each((one, head, stats, n) => ({ one, head, stats, n })),
      here = all.findIndex(item => item.n === this.attention && item.head === this.head);
    const many = Math.max(...this.run.attentions.map(one => one.layer)) + 1,
      focus = this.charts.contains(document.activeElement) && document.activeElement.closest("svg")?.parentElement;
    const chart = (key, title, axis, domain) => dots(lab,
      { title, yWords: axis, xWords: t("layerAxis"), here, yDomain: domain, xDomain: [-0.5, many - 0.5], xTicks: Array.from({ length: many }, (_, n) => n),
        height: 190, onPick: n => lab.attempt(() => this.choose(all[n].n, all[n].head, true)),
      points: all.map(({ one, head, stats }) => ({ x: one.layer + (one.heads > 1 ? (head / (one.heads - 1) - 0.5) * 0.5 : 0), y: stats[key].data[head],
        kind: one.role === "cross" && "other", label: t("dot", lab.localize(one.label), head, formatShort(stats[key].data[head])) })) });
    const which = focus && [...this.charts.children].indexOf(focus);
    fill(this.charts, chart("distance", t("local"), t("distanceAxis")), chart("entropy_share", t("spread"), t("entropyAxis"), [0, 1]));
    if (focus) this.charts.children[which]?.querySelector(".here")?.focus();
  }
  showHeadline(one) {
    const { lab } = this, { t } = lab,
      small = (key, words, layers, heads) => button(words, () => this.step(layers, heads), { class: "small", title: t(key), "aria-label": t(key) });
    fill(this.headline, h("h2", {}, t("headAt", lab.localize(one.label), this.head)), this.finder?.labelOf(this.attention, this.head) ? h("span", { class: "chip role" }, this.finder.labelOf(this.attention, this.head)) : null, h("span", { class: "soft" }, t(this.kept ? "kept" : "preview")),
      button(t(this.kept ? "letGo" : "keepThis"), () => lab.attempt(() => this.choose(this.attention, this.head, !this.kept)), { class: "small" }),
      h("span", { class: "files", role: "group", "aria-label": t("neighbours") }, small("prevHead", "◀", 0, -1), small("nextHead", "▶", 0, 1),
        small("prevLayer", "▲", -1, 0), small("nextLayer", "▼", 1, 0)),
      one.kv_heads < one.heads ? h("span", { class: "soft" }, t("kvHead", this.head, Math.floor(this.head / (one.heads / one.kv_heads)))) : null);
  }
  showDetail(one, found) {
    const { lab } = this, { t } = lab, [rows, columns] = found.weights.shape;
    this.detail = { attention: this.attention, head: this.head };
    this.showHeadline(one);
    const pooled = rows < one.queries || columns < one.keys, query = this.run.tokens[one.query_side], key = this.run.tokens[one.key_side];
    const bucket = (names, count) => n => { const a = Math.floor(n * names.length / count),
      b = Math.floor((n + 1) * names.length / count) - 1; return a === b ? names[a] : `${a}–${b}`; };
    this.queries = pooled ? Array.from({ length: rows }, (_, n) => bucket(tokenNames(query), rows)(n)) : tokenNames(query);
    this.keys = pooled ? Array.from({ length: columns }, (_, n) => bucket(tokenNames(key), columns)(n)) : tokenNames(key);
    const hide = this.hide && !pooled, range = pooled || !this.range || this.range.last >= this.run.tokens[this.range.side]?.length ? null : this.range;
    const left = (side, tokens) => n => (hide && tokens[n].special) || (range?.side === side && (n < range.first || n > range.last));
    const shownRows = indices(rows, left(one.query_side, query)), shownColumns = indices(columns, left(one.key_side, key));
    const values = new Float32Array(shownRows.length * shownColumns.length), masked = found.masked?.data.some(Boolean) ? new Uint8Array(values.length) : null;
    let all = 0, seen = 0;
    this.factors = new Float32Array(rows).fill(1); // of each row, where rows are renormalised
    shownRows.forEach((i, r) => {
      let kept = 0;
      for (let j = 0; j < columns; j++) all += found.weights.data[i * columns + j];
      shownColumns.forEach(j => { kept += found.weights.data[i * columns + j]; });
      seen += kept;
      if (hide && this.again && kept) this.factors[i] = 1 / kept;
      shownColumns.forEach((j, c) => {
        values[r * shownColumns.length + c] = found.weights.data[i * columns + j] * this.factors[i];
        if (masked) masked[r * shownColumns.length + c] = found.masked.data[i * columns + j];
      });
    });
    Object.assign(this, { found, shownRows, shownColumns, pooled, values, masked, width: columns, listed: side => indices(side === one.query_side ? rows : columns, n => hide && this.run.tokens[side][n].special), shownRange: range });
    const wanted = shownRows.indexOf(this.query ?? Number(lab.state.query ?? this.example.query ?? -1)), loudest = this.loudest(query, key, shownRows, shownColumns, values);
    const query0 = clamp(wanted < 0 ? loudest : wanted, 0, shownRows.length - 1), scaled = this.pooledBoundary(one), fewer = (hide && !this.again) || range?.side === one.key_side;
    const options = { title: t("weightsOf"), values, masked, shape: [shownRows.length, shownColumns.length], rowNames: shownRows.map(n => this.queries[n]),
      columnNames: shownColumns.map(n => this.keys[n]), rowNumber: r => shownRows[r], columnNumber: c => shownColumns[c], rowToken: r => `${one.query_side}:${shownRows[r]}`, columnToken: c => `${one.key_side}:${shownColumns[c]}`, aside: true,
      selected: [query0, bestOf(values, query0, shownColumns.length)], orientation: fewer ? t("orientationHidden") : undefined,
        name: `attention-${one.name}-head-${this.head}`, facts: (r, c) => this.facts(shownRows[r], shownColumns[c]),
        onCell: (r, c, changed) => { if (changed) this.pick(shownRows[r], "map"); }, onPin: (r, c) => { if (r !== null) this.pick(shownRows[r], "map"), this.finder?.setPair(shownRows[r], shownColumns[c]); }, ...scaled };
    // the query stays when another head is chosen or tokens are hidden
    if (this.map) { const column = shownColumns.indexOf(this.columns?.[this.map.column]); this.map.row = query0, this.map.column = column < 0 ? options.selected[1] : column, this.map.update(options); }
    else this.map = heatMap(lab, options);
    this.columns = shownColumns;
    this.showOptions(one, found, hide, all ? 1 - seen / all : 0);
    this.showLines(one);
    this.pick(shownRows[this.map.row], "");
  }
  // The row to start with: its query gives the most weight to one other word that is not the first.
  loudest(query, key, rows, columns, values) {
    let best = Math.floor(rows.length / 2), most = 0;
    rows.forEach((i, r) => columns.forEach((j, c) => { if (j > 0 && j !== i && !query[i]?.special && !key[j]?.special && values[r * columns.length + c] > most) most = values[r * columns.length + c], best = r; }));
    return best;
  }
  // Which tokens are left out, and how much weight they hold.
  showOptions(one, found, hide, mass) {
    const { lab } = this, { t } = lab, key = this.run.tokens[one.key_side], specials = [...new Set(key.filter(token => token.special).map(token => token.text))].join(", "), again = () => this.showDetail(one, found), range = this.shownRange;
    const side = range && tokenNames(this.run.tokens[range.side]);
    fill(this.options, this.pooled ? h("p", { class: "note" }, t("pooled", one.queries, found.weights.shape[0])) : null,
      specials && !this.pooled ? [check(t("hide"), this.hide, on => { this.hide = on, lab.set({ hide: on ? 1 : null }), again(); }),
        this.hide ? check(t("renormalise"), this.again, on => { this.again = on, lab.set({ again: on ? 1 : null }), again(); }) : null,
        hide && !range ? h("p", { class: "soft", id: "hidden-mass" }, t(this.again ? "hiddenAgain" : "hidden", specials, formatPercent(mass))) : null] : null,
      range ? [h("span", { class: "chip", id: "brushed" }, t("brushed", side[range.first], side[range.last])), h("span", { class: "soft" }, t("brushedMass", formatPercent(mass))), button(t("showAll"), () => this.brush(null), { class: "small" })] : null);
  }
  // Restricts the map and the lines to a range of tokens, given by their places in the text shown.
  brush(range) {
    const { lab } = this, one = this.run.attentions[this.attention], side = this.stripSide(one), listed = this.listed(side);
    this.range = range && range[1] > range[0] ? { side, first: listed[range[0]], last: listed[range[1]] } : null;
    lab.set({ range: this.range ? `${side}.${this.range.first}.${this.range.last}` : null });
    this.showDetail(one, this.found);
  }
  // Where the longest training input ends, as a row and a column of the map.
  pooledBoundary(one) {
    const { boundary } = this, place = (side, shown, tokens) => boundary === null || side !== "source" ? null : this.pooled ? Math.round(boundary * shown.length / tokens) : shown.findIndex(n => n >= boundary);
    return { rowBoundary: place(one.query_side, this.shownRows, one.queries), columnBoundary: place(one.key_side, this.shownColumns, one.keys) };
  }
  // The lines show the same tokens as the map.
  showLines(one) {
    const { lab } = this, { values, masked, shownRows, shownColumns } = this, columns = shownColumns.length, { rowBoundary, columnBoundary } = this.pooledBoundary(one);
    if (this.pooled) return fill(this.pictures, this.map.element, this.map.readout);
    const set = { queries: shownRows.map(n => this.queries[n]), keys: shownColumns.map(n => this.keys[n]), row: r => values.subarray(r * columns, (r + 1) * columns), masked: (r, c) => Boolean(masked?.[r * columns + c]), onQuery: r => this.pick(this.shownRows[r], "lines"), name: "lines",
      queryBoundary: rowBoundary, keyBoundary: columnBoundary, queryToken: r => `${one.query_side}:${shownRows[r]}`, keyToken: c => `${one.key_side}:${shownColumns[c]}` };
    if (this.lines) this.lines.query = this.map.row, this.lines.update(set); else this.lines = attentionLines(lab, { ...set, query: this.map.row });
    if (!this.pictures.contains(this.lines.element)) fill(this.pictures, this.lines.element, this.map.element, this.map.readout);
  }
  // The side of the tokens that the text shows: the keys of a query, or the queries of a key.
  stripSide(one) { return this.direction === "out" || one.query_side !== one.key_side ? one.key_side : one.query_side; }
  // Selects a query in one figure; the other figures follow.
  pick(i, from) {
    if (i === undefined || i < 0) return;
    const { lab } = this, one = this.run.attentions[this.attention];
    this.query = i;
    if (from) lab.set({ query: i });
    const r = this.shownRows.indexOf(i);
    if (from !== "map" && r >= 0 && r !== this.map.row) return this.map.select(r, this.map.column); // which picks it again
    if (this.pooled) return this.strip.update({ names: [] });
    if (from !== "lines" && r >= 0) this.lines.choose(r, false);
    const out = this.direction === "out" || one.query_side !== one.key_side, side = this.stripSide(one), tokens = this.run.tokens[side], listed = this.listed(side), at = n => out ? i * this.width + n : n * this.width + i, { boundary, shownRange: range } = this;
    this.strip.update({ names: listed.map(n => (out ? this.keys : this.queries)[n]), values: Float32Array.from(listed, n => this.found.weights.data[at(n)] * this.factors[out ? i : n]), selected: out && one.query_side !== one.key_side ? null : listed.indexOf(i),
      masked: n => Boolean(this.found.masked?.data[at(listed[n])]), special: n => Boolean(tokens[listed[n]]?.special), boundary: boundary === null || side !== "source" ? null : listed.findIndex(n => n >= boundary), token: n => `${side}:${listed[n]}`,
      range: range?.side === side ? [listed.indexOf(range.first), listed.indexOf(range.last)] : null, onPick: n => this.pick(listed[n], "strip") });
    fill(this.stripWords, lab.t(out ? "stripOut" : "stripIn", (out ? this.queries : this.keys)[i]));
    const box = this.strip.element.parentElement, here = this.strip.element.children[listed.indexOf(i)];
    if (here && (here.offsetTop < box.scrollTop || here.offsetTop + here.offsetHeight > box.scrollTop + box.clientHeight)) box.scrollTop = here.offsetTop - 30;
    this.tellWhereToLook(one, i), this.askRow(i);
  }
  // One measured sentence: of the example where it shows this head and query, else the largest weight of the query.
  tellWhereToLook(one, i) {
    const { lab, example } = this, { t } = lab, weights = this.found.weights.data.subarray(i * this.width, (i + 1) * this.width), [best] = topEntries(weights, 1), allowed = one.keys - (this.found.masked ? this.found.masked.data.subarray(i * this.width, (i + 1) * this.width).reduce((sum, x) => sum + x, 0) : 0);
    if (example.title && example.query === i && example.attention === this.attention && example.head === this.head) return this.stage.look(captionWords(lab, example, weights, n => this.keys[n], one.query_side === one.key_side ? i : -1));
    if (!best || this.keys[best.index].startsWith(UNKNOWN_MARK) || this.queries[i].startsWith(UNKNOWN_MARK)) return this.stage.look(null);
    const share = formatPercent(best.value), spread = allowed > 2 && best.value < 2 / allowed;
    const self = best.index === i && one.query_side === one.key_side, second = self && topEntries(weights, 2)[1];
    if (self && !spread) return this.stage.look(t("lookSelf", this.queries[i], share, one.layer, this.head, second ? this.keys[second.index] : "", second ? formatPercent(second.value) : ""));
    this.stage.look(spread ? t("lookSpread", this.queries[i], one.layer, this.head, this.keys[best.index], share) : t("look", this.queries[i], this.keys[best.index], share, one.layer, this.head));
  }
  // The scores of a row are fetched when the row is selected.
  async askRow(query) {
    const name = `${this.attention}.${this.head}.${query}`;
    if (this.rows.has(name)) return;
    this.rowAsk ??= this.lab.latestRequest();
    this.fetchRow ??= this.lab.debounce(async (name, request) => {
      const row = await this.rowAsk("heads/row", request).catch(() => null);
      if (!row) return;
      this.rows.set(name, row);
      if (name === `${this.attention}.${this.head}.${this.query}`) this.map.show(false);
    }, 120);
    this.fetchRow(name, { ...this.request, attention: this.attention, head: this.head, query });
  }
  facts(i, j) {
    const row = this.rows.get(`${this.attention}.${this.head}.${i}`), { t } = this.lab;
    if (!row || this.pooled) return [];
    const list = [[t("raw"), row.raw.data[j]], [t("scaled"), row.scaled.data[j]]];
    if (row.position) list.push([t("position"), row.position.data[j]]);
    list.push([t("scoreFull"), row.allowed.data[j] ? row.score.data[j] : t("masked")]);
    if (row.norm) list.push([t("norm"), row.norm.data[j]]);
    return list;
  }
  read() {
    const stats = this.stats[this.attention], of = key => stats[key].data[this.head];
    return { attention: this.attention, head: this.head, kept: this.kept, query: this.query, overviewDrawn: this.drawn, thumbs: this.thumbs?.size,
      entropy: of("entropy"), distance: of("distance"), share: of("entropy_share"), special: of("special"),
      row: this.rows.has(`${this.attention}.${this.head}.${this.query}`) };
  }
}
// "side.first.last" in the URL.
function readRange(words) {
  const [, side, first, last] = /^(\w+)\.(\d+)\.(\d+)$/.exec(words ?? "") ?? [];
  return side ? { side, first: Number(first), last: Number(last) } : null;
}
const indices = (count, skip) => Array.from({ length: count }, (_, n) => n).filter(n => !skip(n));
function bestOf(values, row,
  columns) { let best = 0; for (let j = 0; j < columns; j++) if (values[row * columns + j] > values[row * columns + best]) best = j; return best; }
