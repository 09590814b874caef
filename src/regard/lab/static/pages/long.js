// Long text: up to two hundred thousand characters. The map is pooled and computed for the visible region; nothing of size n² is sent or stored.
import { allUnknown, bar, boundaryOf, button, check, chosenModel, examplesSign, fileBox, popover, headPicker, inputBox, cautionLine, modelPicker, noticeBox, select, sizeLine, withProgress } from "lab/controls.js";
import { clamp, formatShort, numeral, fill, h, scaleCanvas, cssVariable, UNKNOWN_MARK } from "lab/dom.js";
import { heatMap } from "lab/heat_map.js";
import { curves, numbersTable } from "lab/charts.js";
import { panZoom } from "lab/pan_zoom.js";
import { cards, fold, stage } from "lab/stage.js";
import { shader } from "lab/colour.js";

export const name = "long";
export const text = {
  en: {
    title: "Long text",
    lead: "Attention over a whole document. Each cell is the mean weight of one span of text on another. Turn the wheel or pinch to zoom, drag to move, until a cell is one token. A trained model reads a text that is longer than its training inputs by overlapping windows of that length, and a dashed line shows where the first one ends.",
    look: (query, key, weight, far) => [`the largest weight of this view, `, weight, `, leads from `, query, ` back to `, key, `, ${far} tokens away.`],
    windows: "Read", windowsOn: "by windows", windowsOff: "at once", windowed: (count, length) => `Read in ${count} windows of ${length} tokens, the length this model was trained on. They overlap by half; the row of each token comes from the window in which it has the most context, and there is no weight between tokens of different windows. The dashed line ends the first ${length} tokens.`, atOnce: length => `Read at once. The model was trained on at most ${length} tokens; a dashed line shows where they end, and weights beyond it mean little.`,
    minimap: "The whole text, with the region shown; click or drag to go there", more: "Resolution and exactness",
    recallNote: "This attention is hand-made, not trained. It finds earlier positions that end with the same characters. Head 0 attends to the character that followed there, head 1 to the position itself, with more weight on nearer positions.",
    yours: "Your text", openText: "Open or drop a text", sample_verses: "Verses that repeat themselves", sample_course: "Text of the course", sample_source: "Regard's own source, 20,000 characters", region: (a, b, c, d) => `queries ${a} … ${b} × keys ${c} … ${d}`,
    whole: "Whole text", zoomIn: "Zoom in", zoomOut: "Zoom out", up: "Up", down: "Down", left: "Left", right: "Right",
    zoomHelp: "Wheel, pinch or + and − zoom, 0 shows the whole text, dragging or W A S D move the view, Shift and dragging zoom to a rectangle.", mapTitle: "Pooled weights",
    pooled: (r, c) => `Pooled: a cell is the mean over ${r} queries of their summed weight on ${c} keys.`, single: "One cell is one query and one key.",
    orientationPart: "Rows = queries, columns = keys; a row sums to the share of its weight on the keys shown.",
    visited: (n, all) => `Computed for ${n} of ${all} queries, evenly spaced.`, exact: "compute every query", exactDone: all => `Computed for all ${all} queries.`,
    received: "Weight received by each key", receivedAxis: "weight per query", keyAxis: "position of the key", far: "Mean attention distance of each query", farAxis: "mean distance",
    queryAxis: "position of the query",
    links: "Largest weights", linkQuery: "query", linkKey: "key", linkWeight: "weight", apart: "minimum distance", goto: "Click a line to go there.",
    queryText: "query", keyText: "key", one: place => `Largest weights of the query at ${place}`,
    facts: (characters, tokens) => `${characters} characters, ${tokens} tokens`, memory: "The text stays in this browser tab. The URL holds only the region shown.",
    tooFew: "All pairs in this region are masked.", cells: "Cells",
  },
  zh: {
    title: "长文本", lead: "整篇文档的注意力。每格是一段文本对另一段文本的平均权重。滚轮或双指缩放，拖动平移，直到一格对应一个词元。文本超过训练长度时，模型用同样长度、互相重叠的窗口分段阅读，虚线标出第一个窗口的终点。",
    look: (query, key, weight, far) => [`此视图中最大的权重是 `, weight, `：从 `, query, ` 指向 `, key, `，相距 ${far} 个词元。`],
    windows: "阅读方式", windowsOn: "分窗口", windowsOff: "一次读完", windowed: (count, length) => `共分 ${count} 个窗口，每个 ${length} 个词元，即模型训练时的长度。相邻窗口重叠一半；每个词元的那一行取自它上下文最多的窗口，不同窗口的词元之间没有权重。虚线处是前 ${length} 个词元的终点。`, atOnce: length => `一次读完。模型训练时最多见过 ${length} 个词元；虚线标出界限，之后的权重意义不大。`,
    minimap: "全文和所示区域；点击或拖动可跳转", more: "分辨率与精确度",
    recallNote: "这个注意力是人工构造的，未经训练。它在前文中查找结尾相同的位置。头 0 关注其后的下一个字符，头 1 关注该位置本身，距离近的权重更大。",
    yours: "你的文本", openText: "打开或拖入文本", sample_verses: "诗经：重章叠句", sample_course: "课程的文本", sample_source: "Regard 自己的源代码，20,000 个字符", region: (a, b, c, d) => `查询 ${a} … ${b} × 键 ${c} … ${d}`, whole: "全文", zoomIn: "放大",
    zoomOut: "缩小", up: "上", down: "下", left: "左", right: "右",
    zoomHelp: "滚轮、双指或 + − 缩放，0 显示全文，拖动或 W A S D 移动，按住 Shift 拖动可框选放大。", mapTitle: "池化后的权重", pooled: (r, c) => `已池化：每格是 ${r} 个查询在 ${c} 个键上的权重之和的平均。`, single: "一格对应一个查询和一个键。",
    orientationPart: "行 = 查询，列 = 键；每行之和是其权重落在所示键上的比例。", visited: (n, all) => `均匀选取 ${all} 个查询中的 ${n} 个进行计算。`, exact: "计算每一个查询",
    exactDone: all => `已计算全部 ${all} 个查询。`,
    received: "每个键得到的权重", receivedAxis: "每个查询的权重", keyAxis: "键的位置", far: "每个查询的平均注意力距离", farAxis: "平均距离", queryAxis: "查询的位置",
    links: "最大的权重", linkQuery: "查询", linkKey: "键", linkWeight: "权重", apart: "最小距离", goto: "点击一行可跳转。", queryText: "查询", keyText: "键",
    one: place => `位于 ${place} 的查询，权重最大的是`, facts: (characters, tokens) => `${characters} 个字符，${tokens} 个词元`, memory: "文本只留在此浏览器标签页中；URL 里只有所示区域。", tooFew: "这个区域里的查询-键对均已掩码。",
    cells: "格数",
  },
};
const MINI = 96, SAMPLES = ["verses", "course", "source"], SMALLEST = 0.01, APART = [1, 16, 256, 4096];
const kept = new Map(); // texts too long for an address, by their name
const nameOf = words => { let sum = 7; for (let n = 0; n < words.length; n++) sum = (sum * 31 + words.charCodeAt(n)) | 0; return `${words.length}-${(sum >>> 0).toString(36)}`; };
const stored = id => { try { return kept.get(id) ?? sessionStorage.getItem(`regard.long.${id}`); } catch { return kept.get(id) ?? null; } };
function store(words) { const id = nameOf(words); kept.set(id,
  words); try { sessionStorage.setItem(`regard.long.${id}`, words); } catch { /* full or forbidden */ } return id; }

// The models of this page: recall, and those that read a text.
const reads = model => model.modality === "long" || (model.modality === "text" && model.name !== "meanings");

export async function show(root, lab) {
  const { t, state } = lab;
  // a trained model with a head that finds repetitions, where there is one in the page's language
  if (state.model === undefined) lab.set({ model: lab.models.find(one => one.card.long && one.languages.includes(lab.language === "zh" ? "zh" : "en"))?.name ?? "recall" });
  const model = chosenModel(lab, reads), start = model?.card.long ?? {}, again = changes => lab.set({ attention: null, head: null, rows: null, keys: null, ...changes }, { show: true, replace: false });
  const language = model.modality === "long" ? lab.language : model.languages.includes("zh") ? "zh" : "en", name = SAMPLES.includes(state.sample) ? state.sample : SAMPLES[0];
  const sample = state.text === undefined && (state.kept === undefined || !stored(state.kept)) ? (await lab.request("long/sample", { name, language: language === "zh" ? "zh" : "en", ...(name === "source" ? { characters: 20000 } : {}) })).text : null;
  const words = state.text ?? (state.kept && stored(state.kept)) ?? sample;
  const use = words => again(words === sample ? { text: null, kept: null } : words.length <= 2000 ? { text: words, kept: null } : { text: null, kept: store(words) });
  const samples = close => h("div", { class: "menu" }, SAMPLES.map(one => button(t(`sample_${one}`), () => { close(), again({ sample: one === SAMPLES[0] ? null : one, text: null, kept: null }); }, { class: "example", "data-sample": one })));
  lab.bar(modelPicker(lab, { modalities: reads, onChange: model => again({ model }) }),
    inputBox(lab, { value: words, model: null, examples: [], label: t("yours"), onRun: ({ text }) => use(text) }),
    lab.exported ? "" : popover(t("examples"), examplesSign(lab), samples, { class: "quiet" }), lab.exported ? "" : fileBox(lab, ".txt,.md,text/*", t("openText"), async file => use(await file.text())));
  const request = { model: model.name, input: { text: words }, ...(model.modality === "long" || state.once === "1" ? {} : { windows: true }) }, place = h("div", {});
  root.append(place);
  const run = await withProgress(lab, place, (onProgress, signal) => lab.request("long/run", request, { onProgress, signal }));
  if (!run) return;
  place.remove();
  if (allUnknown(run.notices)) return void root.append(noticeBox(lab, run.notices, ["text"]) ?? "");
  const view = new Long(root, lab, request, run, words, start);
  await view.build();
  lab.expose({ read: () => view.read(), keep: () => view.toKeep() });
}

class Long {
  constructor(root, lab, request, run, words, start) {
    const span = key => lab.state[key]?.split("-").map(Number);
    Object.assign(this,
      { root, lab, request, run, letters: Array.from(words), asked: lab.latestRequest(), rowAsked: lab.latestRequest(), wholeAsked: lab.latestRequest(), exact: lab.state.exact === "1",
        apart: Number(lab.state.apart ?? APART.findLast(n => n < run.tokens && n <= (run.tokens > 4096 && !run.windows ? 256 : 16)) ?? 1), cells: Number(lab.state.cells ?? 256) });
    this.attention = clamp(Number(lab.state.attention ?? start.attention ?? 0), 0, run.attentions.length - 1), this.head = clamp(Number(lab.state.head ?? (lab.state.attention === undefined ? start.head : 0) ?? 0), 0, this.one.heads - 1);
    const first = size => [0, run.windows ? Math.min(size, 5 * run.windows.length) : size]; // of many windows the first few
    this.rows = span("rows") ?? first(this.one.queries), this.keys = span("keys") ?? first(this.one.keys);
    this.length = run.windows?.length ?? boundaryOf(run.notices);
  }
  get one() { return this.run.attentions[this.attention]; }
  async build() {
    const { lab, root, run } = this, { t } = lab, small = (key, words, f) => button(words, f, { class: "small", title: t(key), "aria-label": t(key) });
    this.picker = h("div", {}), this.where = h("span", { class: "soft", id: "region" }), this.note = h("div", { class: "soft" }), this.place = h("div", {}),
      this.busy = h("div", {}), this.row = h("section", {}), this.links = h("section", { class: "card" }), this.charts = h("div", { class: "columns" }), this.cost = h("div", {});
    this.mini = h("canvas", { class: "minimap", "aria-hidden": "true", title: t("minimap") }), this.cell = h("div", {});
    const notices = run.notices.filter(notice => notice.type !== "length" && notice.type !== "hand_made");
    this.page = stage(lab, {
      notices: noticeBox(lab, notices, ["text"]),
      tools: [this.picker, this.length === null ? null : bar(t("windows"), [["", t("windowsOn")], ["1", t("windowsOff")]], lab.state.once ?? "", once => lab.set({ once: once || null, rows: null, keys: null }, { show: true })),
        h("span", { class: "files" }, small("zoomIn", "+", () => this.zoom(0.5)), small("zoomOut", "−", () => this.zoom(2)), small("left", "←", () => this.pan(0, -0.5)), small("right", "→", () => this.pan(0, 0.5)), small("up", "↑", () => this.pan(-0.5, 0)), small("down", "↓", () => this.pan(0.5, 0)), button(t("whole"), () => this.whole(), { class: "small" })), this.where, this.busy],
      picture: [this.place],
      side: [h("div", { class: "mini-box" }, this.mini), this.cell, this.row],
    });
    root.append(this.page.element, this.length === null ? "" : h("p", { class: "soft" }, run.windows ? t("windowed", run.windows.count, run.windows.length) : t("atOnce", this.length)), run.metadata?.hand_made ? h("p", { class: "soft" }, t("recallNote")) : "",
      h("p", { class: "soft" }, t("zoomHelp")), cards(this.links, this.charts),
      fold(t("more"), h("p", { class: "soft" }, t("facts", this.letters.length.toLocaleString("en"), run.tokens.toLocaleString("en"))), bar(t("cells"), [[128, "128²"], [256, "256²"], [512, "512²"]], this.cells, cells => { this.cells = Number(cells), lab.set({ cells }), this.fetch(); }), this.note, cautionLine(lab), this.cost));
    this.watchMini();
    await this.fetch();
  }
  showPicker() { fill(this.picker,
    headPicker(this.lab, this.run.attentions, this.attention, this.head,
      (attention, head) => { Object.assign(this, { attention, head }), this.lab.set({ attention, head }), this.fetch(); })); }
  look(rows, keys) {
    const inside = ([a, b], size) => { const length = clamp(Math.round(b - a), 1, size),
      first = clamp(Math.round(a), 0, size - length); return [first, first + length]; };
    this.rows = inside(rows, this.one.queries), this.keys = inside(keys, this.one.keys);
    return this.fetch();
  }
  whole() { return this.look([0, this.one.queries], [0, this.one.keys]); }
  zoom(by) {
    const { map } = this, [i] = this.span("row", map.row), [j] = this.span("column", map.column),
      around = ([a, b], at) => { const length = Math.max(16, (b - a) * by); return [at - length / 2, at + length / 2]; };
    return this.look(around(this.rows, i), around(this.keys, j));
  }
  pan(down, across) { const move = ([a, b], by) => [a + (b - a) * by, b + (b - a) * by]; return this.look(move(this.rows, down), move(this.keys, across)); }
  mapRequest(attention, head, rows, keys) { const { exact, apart } = this; return { ...this.request, attention, head, rows, keys, shape: [this.cells, this.cells], links: 24, apart, exact }; }
  miniRequest(attention, head) { return { ...this.request, attention, head, shape: [MINI, MINI], links: 0 }; }
  fetch() {
    const { lab } = this;
    return lab.attempt(async () => {
      const { attention, head, rows, keys } = this, before = lab.received(),
        whole = rows[0] === 0 && rows[1] === this.one.queries && keys[0] === 0 && keys[1] === this.one.keys;
      lab.set({ rows: whole && !this.run.windows ? null : rows.join("-"), keys: whole && !this.run.windows ? null : keys.join("-") });
      this.showPicker();
      fill(this.busy);
      const started = performance.now(),
        found = await withProgress(lab, this.busy, (onProgress, signal) => this.asked("long/map", this.mapRequest(attention, head, rows, keys), { onProgress, signal }));
      if (!found) return;
      const answered = performance.now();
      this.found = found, this.overview = whole ? { ...found, head: `${attention}.${head}` } : this.overview?.head === `${attention}.${head}` ? this.overview : null;
      if (!this.overview) this.fetchMini();
      this.show();
      this.took = { answer: answered - started, draw: performance.now() - answered, bytes: lab.received() - before };
      fill(this.cost, sizeLine(lab, this.took.bytes, this.took.draw));
    });
  }
  // The whole text in small, with a frame around the region that is shown.
  async fetchMini() {
    if (this.run.windows) return this.drawMini();
    const { attention, head } = this, found = await this.wholeAsked("long/map", this.miniRequest(attention, head)).catch(() => null);
    if (found) this.overview = { ...found, head: `${attention}.${head}` }, this.drawMini();
  }
  drawMini() {
    if (!this.overview && !this.run.windows) return;
    const [rows, columns] = this.overview?.map.shape ?? [MINI, MINI], image = new ImageData(columns, rows), shade = shader("weights", [0, 1], "log"), source = h("canvas", { width: columns, height: rows }), width = this.run.windows && Math.max(1, this.run.windows.length / this.run.tokens * MINI);
    // by windows the whole text is not computed: the band shows where there are weights
    const weight = n => this.overview ? (this.overview.masked?.data[n] ? null : this.overview.map.data[n]) : Math.abs(Math.floor(n / MINI) - n % MINI) <= width ? 0.01 : null;
    for (let n = 0; n < rows * columns; n++) { const x = weight(n); image.data.set([...shade(x ?? 0), x === null ? 0 : 255], 4 * n); }
    source.getContext("2d").putImageData(image, 0, 0);
    const side = 150, pen = scaleCanvas(this.mini, side, side), at = ([a, b], size) => [a / size * side, Math.max(3, (b - a) / size * side)], [x, w] = at(this.keys, this.one.keys), [y, tall] = at(this.rows, this.one.queries);
    pen.fillStyle = cssVariable("--hatch-ground"), pen.fillRect(0, 0, side, side), pen.drawImage(source, 0, 0, side, side);
    pen.strokeStyle = cssVariable("--accent"), pen.lineWidth = 2, pen.strokeRect(clamp(x, 1, side - 4), clamp(y, 1, side - 4), Math.min(w, side - 2), Math.min(tall, side - 2));
  }
  watchMini() {
    const go = event => { const edge = this.mini.getBoundingClientRect(), centre = ([a, b], share, size) => { const at = share * size, half = (b - a) / 2; return [at - half, at + half]; };
      this.look(centre(this.rows, (event.clientY - edge.top) / edge.height, this.one.queries), centre(this.keys, (event.clientX - edge.left) / edge.width, this.one.keys)); };
    this.mini.addEventListener("pointerdown", event => { this.mini.setPointerCapture(event.pointerId), go(event); });
    this.mini.addEventListener("pointermove", event => { if (event.buttons) go(event); });
  }
  // What a saved view holds besides what was shown: every head's whole map, this region in every head of the layer, and the rows of the largest weights.
  toKeep() {
    const { one, attention, found } = this, whole = [[0, one.queries], [0, one.keys]], heads = this.run.attentions.flatMap((each, a) => Array.from({ length: each.heads }, (_, head) => [a, head]));
    if (this.run.windows) whole.splice(0, 2, this.rows, this.keys);
    const asks = heads.flatMap(([a, head]) => [...(this.run.windows ? [] : [this.miniRequest(a, head)]), ...(a === attention ? [this.mapRequest(a, head, this.rows, this.keys)] : []), this.mapRequest(a, head, ...whole)]).map(body => ({ path: "long/map", body }));
    const queries = new Set(Array.from(found.links.data.filter((_, n) => n % 2 === 0))), shown = Array.from({ length: found.map.shape[0] }, (_, n) => this.middle(n));
    return [...[...queries, ...shown].map(query => ({ path: "long/row", body: this.rowRequest(query) })), ...asks.reverse()];
  }
  rowRequest(query) { const { attention, head } = this; return { ...this.request, attention, head, query, top: 12 }; }
  middle(row) { const [a, b] = this.span("row", row); return Math.floor((a + b - 1) / 2); }
  // The tokens of a cell: [first, after the last].
  span(axis, n) {
    const [a, b] = axis === "row" ? this.rows : this.keys, count = this.found.map.shape[axis === "row" ? 0 : 1];
    return [a + Math.floor(n * (b - a) / count), Math.max(a + Math.floor(n * (b - a) / count) + 1, a + Math.floor((n + 1) * (b - a) / count))];
  }
  words(first, last, room = 0) {
    const { offsets } = this.run, at = (n, end) => offsets.data[2 * clamp(n, 0, this.run.tokens - 1) + end],
      cut = (a, b) => this.letters.slice(Math.max(0, a), b).join("").replaceAll("\n", "↵").replaceAll("\t", "⇥");
    const start = at(first, 0), end = Math.min(at(last - 1, 1), start + 60), unknown = this.run.unknown.data.subarray(first, last).some(Boolean);
    return [cut(start - room, start), (unknown ? UNKNOWN_MARK : "") + cut(start, end), cut(end, end + room)];
  }
  // A token with the words around it.
  around(n) {
    const room = /[\u2e80-\u9fff]/.test(this.words(n, n + 1, 3).join("")) ? 5 : 14, parts = this.words(n, n + 1, room), [before, own, after] = [parts[0].replace(/^.*↵/, ""), parts[1], parts[2].replace(/↵.*$/, "")];
    return `${before.length >= room ? before.replace(/^[\p{Script=Latin}\p{N}'-]*\s/u, "") : before}${own}${after.length >= room ? after.replace(/\s[\p{Script=Latin}\p{N}'-]*$/u, "") : after}`.trim();
  }
  snippet(first, last,
    role) { const [before, own, after] = this.words(first, last, 22); return h("span", { translate: "no", class: "snippet" }, before, h("b", { class: role }, own),
      after); }
  label(axis, n) { const [a, b] = this.span(axis, n); return b - a === 1 && this.run.tokens ? `${this.words(a, b)[1].trim() || "␣"} ${a}` : `${a}–${b - 1}`; }
  show() {
    const { lab, found } = this, { t } = lab, [rows, columns] = found.map.shape, whole = this.keys[0] === 0 && this.keys[1] === this.one.keys, best = this.firstCell();
    const options = { title: t("mapTitle"), values: found.map.data, masked: found.masked?.data ?? null, shape: [rows, columns], rowNames: n => this.label("row", n),
      columnNames: n => this.label("column", n), rowNumber: () => "", columnNumber: () => "", maskedWords: t("pooledMasked"),
      orientation: whole ? undefined : t("orientationPart"), name: `long-${this.rows.join("-")}-${this.keys.join("-")}`,
      facts: (i, j) => [[t("queryText"), this.snippet(...this.span("row", i), "query")], [t("keyText"), this.snippet(...this.span("column", j), "key")]],
      onPin: i => { if (i !== null) this.ask(this.middle(i)); },
      onKey: event => this.press(event), selected: best, rowBoundary: this.boundary(this.rows, rows), columnBoundary: this.boundary(this.keys, columns) };
    if (this.map) { this.map.pinned = null, [this.map.row, this.map.column] = best, this.map.update(options); }
    else {
      this.map = heatMap(lab, { ...options, scale: "log", aside: true, top: 0, height: clamp(innerHeight - 290, 300, 760) }), fill(this.place, this.map.element), fill(this.cell, this.map.readout);
      panZoom(lab, this.map, { view: () => ({ rows: this.rows, keys: this.keys }), sizes: () => [this.one.queries, this.one.keys], look: (rows, keys) => this.look(rows, keys) });
    }
    this.drawMini();
    const { format } = new Intl.NumberFormat("en");
    fill(this.where, t("region", format(this.rows[0]), format(this.rows[1] - 1), format(this.keys[0]), format(this.keys[1] - 1)));
    const each = [(this.rows[1] - this.rows[0]) / rows, (this.keys[1] - this.keys[0]) / columns].map(n => Number(n.toFixed(1)));
    fill(this.note,
      h("p", {}, each[0] === 1 && each[1] === 1 ? t("single") : t("pooled", ...each), " ",
        found.visited < found.of ? t("visited", format(found.visited), format(found.of)) : t("exactDone", format(found.of))),
      found.visited < found.of || this.exact ? check(t("exact"), this.exact, on => { this.exact = on, lab.set({ exact: on ? 1 : null }), this.fetch(); }) : null);
    const link = found.links.shape[0] ? [found.links.data[0], found.links.data[1]] : null;
    this.page.look(link && t("look", ...[0, 1].map(n => h("span", { class: n ? "key" : "query", translate: "no" }, `“${this.around(link[n])}”`)), numeral(found.link_weights.data[0]), format(Math.abs(link[0] - link[1]))));
    this.showLinks(), this.showCharts(), this.ask(link ? link[0] : this.rows[0]);
  }
  // Where the longest training input ends, in cells of the map.
  boundary([first, last], count) { return this.length === null ? null : (this.length - first) * count / (last - first); }
  // Start at the largest weight.
  firstCell() {
    const { links, map } = this.found, within = (x, [a, b], count) => clamp(Math.floor((x - a) * count / (b - a)), 0, count - 1);
    return links.shape[0] ? [within(links.data[0], this.rows, map.shape[0]), within(links.data[1], this.keys, map.shape[1])] : [map.shape[0] - 1, 0];
  }
  press(event) {
    const keys = { "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.whole(),
      w: () => this.pan(-0.5, 0), s: () => this.pan(0.5, 0), a: () => this.pan(0, -0.5), d: () => this.pan(0, 0.5) };
    if (!keys[event.key]) return false;
    keys[event.key]();
    return true;
  }
  showLinks() {
    const { lab, found } = this, { t } = lab, count = found.links.shape[0], pair = n => [found.links.data[2 * n], found.links.data[2 * n + 1]];
    const distances = APART.filter(n => n < this.one.keys).map(n => [n, n]);
    fill(this.links,
      h("div", { class: "map-head" }, h("h3", {}, t("links")),
        select(t("apart"), distances, this.apart, apart => { this.apart = Number(apart), lab.set({ apart }), this.fetch(); })),
      h("p", { class: "soft" }, t("goto")),
      count ? numbersTable(lab,
        { caption: t("links"), quiet: true, columns: [t("linkQuery"), t("linkKey"), t("linkWeight")],
          rows: Array.from({ length: count },
            (_,
              n) => { const [i,
                j] = pair(n); return [h("button", { type: "button", class: "link-button", onclick: () => this.visit(i, j) }, h("span", { class: "at" }, i, " "),
                  this.snippet(i, i + 1, "query")),
                h("span", {}, h("span", { class: "at" }, j, " "), this.snippet(j, j + 1, "key")), numeral(found.link_weights.data[n])]; }) }) : h("p",
        {}, t("tooFew")));
  }
  visit(i, j) { this.look([i - 32, i + 32], [j - 32, j + 32]).then(() => this.ask(i)); }
  showCharts() {
    const { lab, found } = this, { t } = lab,
      places = (span, count) => Float64Array.from({ length: count }, (_, n) => span[0] + (n + 0.5) * (span[1] - span[0]) / count);
    const read = h("p", { class: "soft" }),
      say = (values, span) => place => fill(read, `${place}: `,
        formatShort(values[clamp(Math.floor((place - span[0]) * values.length / (span[1] - span[0])), 0, values.length - 1)]));
    fill(this.charts,
      h("section", { class: "card" },
        curves(lab,
          { title: t("received"), xWords: t("keyAxis"), yWords: t("receivedAxis"),
            series: [{ xs: places(this.keys, found.received.shape[0]), ys: found.received.data }], xDomain: this.keys, onPlace: say(found.received.data, this.keys),
            width: 560, height: 200 })),
      h("section", { class: "card" },
        curves(lab,
          { title: t("far"), xWords: t("queryAxis"), yWords: t("farAxis"),
            series: [{ xs: places(this.rows, found.distance.shape[0]), ys: found.distance.data, colour: "var(--query)" }], xDomain: this.rows,
            onPlace: say(found.distance.data, this.rows), width: 560, height: 200 })),
        read);
  }
  // One query: its largest weights over all keys.
  async ask(query) {
    const { lab } = this, { t } = lab, found = await this.rowAsked("long/row", this.rowRequest(query)).catch(() => null);
    if (!found) return;
    this.query = { query, found };
    const shown = Array.from(found.keys.data.keys()).filter(n => n < 3 || found.weights.data[n] >= SMALLEST);
    fill(this.row, h("h3", {}, t("one", query)), h("p", {}, this.snippet(query, query + 1, "query")),
      numbersTable(lab,
        { caption: t("one", query), quiet: true, columns: [t("key"), t("linkWeight")],
          rows: shown.map(n => { const j = found.keys.data[n]; return [h("span", {}, h("span", { class: "at" }, j, " "), this.snippet(j, j + 1, "key")), numeral(found.weights.data[n])]; }) }));
  }
  read() { return { rows: this.rows, keys: this.keys, shape: this.found?.map.shape, visited: this.found?.visited, of: this.found?.of, took: this.took,
    query: this.query && { query: this.query.query, keys: Array.from(this.query.found.keys.data), weights: Array.from(this.query.found.weights.data) },
    attention: this.attention, head: this.head }; }
}
