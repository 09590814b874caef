// Compare: the maps of two texts, two models or two heads side by side, and their signed difference on common tokens.
import { textColourOn, shader, cssColour } from "lab/colour.js";
import { allUnknown, bar, cautionLine, chosenModel, headPicker, inputBox, modelPicker, noticeBox, select } from "lab/controls.js";
import { fill, formatExact, formatPercent, formatShort, h, tokenNames, untranslated, visibleText } from "lab/dom.js";
import { heatMap, zeroCentred } from "lab/heat_map.js";
import { rankingTable } from "lab/ranking.js";
import { stage } from "lab/stage.js";

export const name = "compare";
export const text = {
  en: {
    title: "Compare", lead: "Two maps side by side and what changes from the first to the second: two texts in one head, two models on one text, or two heads of one model. Tokens are matched by word or by place; blue means more weight in the second, brown less. Point at a cell to see the same pair in all three maps, and click a head below to switch to it; the grid shows which one changes most.",
    mode: "Compare", mode_texts: "two texts", mode_models: "two models", mode_heads: "two heads", other: "Second text", secondModel: "Second model", first: "A", second: "B", mapA: words => `A: ${words}`, mapB: words => `B: ${words}`, difference: "B − A", change: "change of weight",
    match: "Match tokens", match_words: "by word", match_places: "by place", match_characters: "by character", orientation: "Rows = queries, columns = keys.", differenceHow: "Blue: more weight in B. Brown: less.",
    look: (from, to, a, b, by) => `“${from}” → “${to}” changes most: ${a} → ${b} (${by}).`, moved: part => `On average ${part} of a query's weight moves.`, same: "Nothing moves: this head gives the same weights in both.", grid: "Weight that moves in each head", gridOther: "How much each head of B differs from this head of A", gridHow: "Mean total variation distance over queries: 0 the same weights, 1 disjoint. Click a head.",
    cell: (layer, head, value) => `${layer}, head ${head}: ${value}`, alone: (a, b) => `Without a partner: ${a} tokens of A, ${b} of B; they are not drawn.`, inA: "A", inB: "B", ofQuery: "moved for this query", headA: "Head of A", headB: "Head of B", predictions: "Predictions", sameTags: (same, all) => `${same} of ${all} tokens keep their tag.`, all: "All heads", sizes: "Both maps use the same colours.",
  },
  zh: {
    title: "比较", lead: "并排显示两张权重图，以及从第一张到第二张的变化：同一个头处理两个文本，两个模型处理同一文本，或同一模型的两个头。词元按词或按位置配对；蓝色表示第二张的权重更大，棕色表示更小。指向一个格子，三张图会同时显示同一对词元；点击下方的一个头可以切换到它，从中找到变化最大的头。",
    mode: "比较", mode_texts: "两个文本", mode_models: "两个模型", mode_heads: "两个头", other: "第二个文本", secondModel: "第二个模型", first: "A", second: "B", mapA: words => `A：${words}`, mapB: words => `B：${words}`, difference: "B − A", change: "权重的变化",
    match: "词元配对", match_words: "按词", match_places: "按位置", match_characters: "按字符", orientation: "行 = 查询，列 = 键。", differenceHow: "蓝色：B 的权重更大；棕色：更小。",
    look: (from, to, a, b, by) => `“${from}”→“${to}”变化最大：${a} → ${b}（${by}）。`, moved: part => `平均每个查询有 ${part} 的权重转移到别处。`, same: "没有变化：这个头在两边给出相同的权重。", grid: "各个头中转移的权重", gridOther: "B 的各个头与 A 的这个头相差多少", gridHow: "各查询的平均全变差距离：0 表示权重相同，1 表示完全不相交。点击一个头。",
    cell: (layer, head, value) => `${layer}，头 ${head}：${value}`, alone: (a, b) => `没有配对的词元：A 有 ${a} 个，B 有 ${b} 个，未画出。`, inA: "A", inB: "B", ofQuery: "此查询转移的权重", headA: "A 的头", headB: "B 的头", predictions: "预测", sameTags: (same, all) => `${all} 个词元中有 ${same} 个的标签不变。`, all: "所有的头", sizes: "两张图用同一套颜色。",
  },
};
const MODALITIES = ["text", "pair"], MODES = ["texts", "models", "heads"];
const PAIRS = { en: [["The dog bit the man.", "The man bit the dog."], ["The nurse called her friend.", "The doctor called her friend."], ["The animal didn't cross the street because it was too tired.", "The animal didn't cross the street because it was too wide."]], zh: [["A打了B", "B打了A"], ["猫追狗", "狗追猫"], ["老师打了学生", "学生打了老师"]] };

export async function show(root, lab) {
  const { t, state } = lab, model = chosenModel(lab, MODALITIES), mode = MODES.includes(state.mode) ? state.mode : "texts", again = (changes, replace = true) => lab.set(changes, { show: true, replace }), heads = { attention: null, head: null, attention2: null, head2: null };
  const picker = modelPicker(lab, { modalities: MODALITIES, onChange: name => again({ model: name, ...heads }, false) });
  if (!model) return lab.bar(picker);
  const language = model.languages.includes(lab.language) ? lab.language : model.languages[0] === "zh" ? "zh" : "en", [first, second] = PAIRS[language][0], words = state.text ?? first, other = state.other ?? (state.text === undefined ? second : state.text);
  const examples = PAIRS[language].map(([text, target]) => ({ text, target })), labels = Object.create(lab, { t: { value: (key, ...args) => t(key === "target" ? "other" : key, ...args) } });
  const models = lab.models.filter(one => MODALITIES.includes(one.modality) && (one.languages.some(code => model.languages.includes(code)) || !one.languages.length)), name2 = models.find(one => one.name === state.model2)?.name ?? models.find(one => one !== model)?.name ?? model.name;
  lab.bar(picker, inputBox(labels, { value: words, ...(mode === "texts" ? { target: other } : {}), examples, onRun: ({ text, target }) => again({ text, ...(mode === "texts" ? { other: target || text } : {}) }, false) }));
  const number = (key, otherwise) => state[key] === undefined ? otherwise : Number(state[key]), side = (which, attention, head) => ({ model: which === "b" && mode === "models" ? name2 : model.name, input: { text: which === "b" && mode === "texts" ? other : words }, attention, head });
  const ask = (a, b) => lab.request("compare/maps", { a, b, ...(state.match ? { alignment: state.match } : {}) });
  let place = [number("attention", 0), number("head", 0)], place2 = mode === "texts" ? place : [number("attention2", 0), number("head2", mode === "heads" ? 1 : 0)], found = await ask(side("a", ...place), side("b", ...place2));
  // without a choice, the head in which most weight moves; of two models or heads, the head of B that is most alike
  if (mode === "texts" && state.head === undefined) place = place2 = extremeHead(found.grid, value => value), found = await ask(side("a", ...place), side("b", ...place2));
  else if (mode !== "texts" && state.head2 === undefined) place2 = extremeHead(found.grid, (value, n, head) => mode === "heads" && n === place[0] && head === place[1] ? -2 : -value), found = await ask(side("a", ...place), side("b", ...place2));
  const notices = unique([...(found.a.metadata.notices ?? []), ...(found.b.metadata.notices ?? [])]), box = noticeBox(lab, notices, MODALITIES);
  if (allUnknown(found.a.metadata.notices ?? [])) return root.append(box);
  const view = new Comparison(lab, { found, mode, place, place2, again, models, name2, model, box });
  root.append(view.page.element, h("div", { class: "columns" }, view.grid(), view.predictions()), cautionLine(lab));
  // a saved view has every head that the grid offers
  const keep = () => found.b.attentions.flatMap((one, attention) => Array.from({ length: one.heads }, (_, head) => { const a = mode === "texts" ? [attention, head] : place; return { path: "compare/maps", body: { a: side("a", ...a), b: side("b", attention, head), ...(state.match ? { alignment: state.match } : {}) } }; })).slice(0, 160);
  lab.expose({ keep, read: () => ({ mode, place, place2, mean: found.mean, alignment: found.alignment, shape: found.difference.shape }), difference: () => Array.from(found.difference.data), grid: () => found.grid.map(each => each && Array.from(each.data)), cell: (i, j) => view.maps.difference.cell(i, j), cells: (i, j) => view.pair(i, j) });
}
const unique = notices => [...new Map(notices.map(notice => [JSON.stringify(notice), notice])).values()];
function extremeHead(grid, measure) {
  let best = [0, 0], most = -Infinity;
  grid.forEach((row, n) => row?.data.forEach((value, head) => { if (measure(value, n, head) > most) most = measure(value, n, head), best = [n, head]; }));
  return best;
}

class Comparison {
  constructor(lab, options) {
    Object.assign(this, { lab, ...options });
    const { t } = lab, { found } = this, shape = found.difference.shape;
    this.rows = { a: tokenNames(found.rows.a), b: tokenNames(found.rows.b) }, this.columns = { a: tokenNames(found.columns.a), b: tokenNames(found.columns.b) };
    // B is drawn in its own order: the aligned row n stands at place `at.rows[n]` there
    const order = places => places.map((place, n) => [place, n]).sort((x, y) => x[0] - y[0]).map(([, n]) => n), inverse = list => { const at = []; list.forEach((n, place) => { at[n] = place; }); return at; };
    this.order = { rows: order(found.rows.places_b), columns: order(found.columns.places_b) }, this.at = { rows: inverse(this.order.rows), columns: inverse(this.order.columns) };
    const ordered = (data, Type) => Type.from({ length: shape[0] * shape[1] }, (_, n) => data[this.order.rows[Math.floor(n / shape[1])] * shape[1] + this.order.columns[n % shape[1]]]), own = ordered(found.aligned_b.data, Float32Array);
    const hidden = data => data.some(Boolean) ? data : null, both = Uint8Array.from(found.masked_a.data, (off, n) => off && found.masked_b.data[n] ? 1 : 0);
    const [i, j] = this.largest(), height = Math.min(430, innerHeight * 0.5), plain = { shape, sums: false, top: 0, aside: true, height, orientation: t("orientation") };
    const named = which => { const one = found[which], attention = one.attentions[one.attention], name = which === "a" ? this.model.name : this.mode === "models" ? this.name2 : this.model.name, words = this.mode === "texts" ? one.tokens[attention.query_side].map(token => token.text).join(language(one) ? "" : " ").trim() : this.mode === "models" ? name : `${lab.localize(attention.label)} · ${which === "a" ? this.place[1] : this.place2[1]}`; return shorten(words); };
    this.maps = {
      a: heatMap(lab, { ...plain, main: false, title: t("mapA", named("a")), values: found.aligned_a.data, masked: hidden(found.masked_a.data), rowNames: this.rows.a, columnNames: this.columns.a, selected: [i, j], name: "a", onCell: (r, c) => this.link("a", r, c) }),
      b: heatMap(lab, { ...plain, main: false, title: t("mapB", named("b")), values: own, masked: hidden(ordered(found.masked_b.data, Uint8Array)), rowNames: this.order.rows.map(n => this.rows.b[n]), columnNames: this.order.columns.map(n => this.columns.b[n]), selected: [this.at.rows[i], this.at.columns[j]], name: "b", onCell: (r, c) => this.link("b", this.order.rows[r], this.order.columns[c]) }),
      difference: heatMap(lab, { ...plain, title: t("difference"), what: t("change"), values: found.difference.data, masked: hidden(both), kind: "scores", domain: zeroCentred(found.difference.data), rowNames: this.rows.a, columnNames: this.columns.a, selected: [i, j], digits: 2, orientation: t("differenceHow"), name: "difference", onCell: (r, c) => this.link("difference", r, c) }),
    };
    this.readout = h("div", { class: "readout compare-readout" }), this.tools = h("div", { class: "row pickers" });
    this.page = stage(lab, { notices: this.box, look: this.sentence(i, j), tools: this.showTools(), picture: [h("div", { class: "compare-maps" }, ["a", "b", "difference"].map(which => h("div", { class: `compare-${which}` }, this.maps[which].element))), this.readout, found.rows.alone_a + found.rows.alone_b > 0 ? h("p", { class: "soft" }, t("alone", found.rows.alone_a, found.rows.alone_b)) : null] });
    this.show(i, j);
  }
  largest() {
    const { data, shape: [, width] } = this.found.difference;
    let best = 0;
    for (let n = 1; n < data.length; n++) if (Math.abs(data[n]) > Math.abs(data[best])) best = n;
    return [Math.floor(best / width), best % width];
  }
  pair(i, j) { const at = i * this.found.difference.shape[1] + j; return { a: this.found.aligned_a.data[at], b: this.found.aligned_b.data[at], difference: this.found.difference.data[at] }; }
  sentence(i, j) {
    const { t } = this.lab, { a, b, difference } = this.pair(i, j), plus = difference > 0 ? "+" : "";
    if (Math.abs(difference) < 1e-6) return t("same");
    return [t("look", this.rows.a[i], this.columns.a[j], formatShort(a), formatShort(b), plus + formatShort(difference)), " ", t("moved", formatShort(this.found.mean))];
  }
  // The same pair in the other two maps.
  link(from, i, j) {
    if (this.linking) return;
    this.linking = true;
    if (from !== "a") this.maps.a.select(i, j);
    if (from !== "b") this.maps.b.select(this.at.rows[i], this.at.columns[j]);
    if (from !== "difference") this.maps.difference.select(i, j);
    this.linking = false, this.show(i, j);
  }
  show(i, j) {
    const { t } = this.lab, { a, b, difference } = this.pair(i, j), value = (words, x, role) => h("span", { class: `fact ${role}` }, h("span", { class: "soft" }, words), " ", h("b", { title: formatExact(x), "data-value": x, translate: "no" }, formatShort(x)));
    fill(this.readout, h("p", { class: "pair" }, untranslated(this.rows.a[i], { class: "query" }), h("span", { class: "to" }, "→"), untranslated(this.columns.a[j], { class: "key" }), value(t("inA"), a, "in-a"), value(t("inB"), b, "in-b"), value(t("difference"), difference, "in-difference"), value(t("ofQuery"), this.found.distance.data[i], "moved")));
  }
  showTools() {
    const { lab, found, again, mode } = this, { t } = lab, picked = (attention, head, second) => again(second ? { attention2: attention, head2: head } : { attention, head }), listed = which => found[which].attentions;
    return [bar(t("mode"), MODES.map(one => [one, t(`mode_${one}`)]), mode, value => again({ mode: value, attention: null, head: null, attention2: null, head2: null, match: null })),
      mode === "models" ? select(t("secondModel"), this.models.map(one => one.folder || typeof one.title !== "object" ? [one.name, one.name, true] : [one.name, lab.localize(one.title)]), this.name2, value => again({ model2: value, attention2: null, head2: null })) : null,
      h("div", { class: "compare-heads" }, mode === "texts" ? null : h("b", {}, t("inA")), headPicker(lab, listed("a"), ...this.place, (attention, head) => picked(attention, head, false))), mode === "texts" ? null : h("div", { class: "compare-heads" }, h("b", {}, t("inB")), headPicker(lab, listed("b"), ...this.place2, (attention, head) => picked(attention, head, true))),
      mode === "texts" ? bar(t("match"), ["words", "places"].map(one => [one, t(`match_${one}`)]), found.alignment, value => again({ match: value })) : null];
  }
  // A button for every head, coloured by its distance.
  grid() {
    const { lab, found, again, mode } = this, { t } = lab, most = Math.max(...found.grid.flatMap(row => row ? Array.from(row.data) : []), 1e-9), shade = shader("weights", [0, Math.max(most, 0.05)], "linear"), chosen = mode === "texts" ? this.place : this.place2;
    const cell = (n, head, value) => { const ground = shade(value), words = formatShort(value); return h("td", {}, h("button", { type: "button", class: "head-cell", "aria-pressed": chosen[0] === n && chosen[1] === head, "aria-label": t("cell", lab.localize(found.b.attentions[n].label), head, words), title: formatExact(value), "data-head": `${n}.${head}`, "data-value": value, style: { background: cssColour(ground), color: textColourOn(ground) }, onclick: () => again(mode === "texts" ? { attention: n, head } : { attention2: n, head2: head }) }, value < 5e-4 ? "0" : value.toFixed(2).replace(/^0/, ""))); };
    const widest = Math.max(...found.b.attentions.map(one => one.heads));
    return h("section", { class: "card" }, h("h3", {}, t(found.same_head ? "grid" : "gridOther")), h("p", { class: "soft" }, t("gridHow")), h("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": t("all") }, h("table", { class: "head-grid" }, h("thead", {}, h("tr", {}, h("td", {}), Array.from({ length: widest }, (_, n) => h("th", { scope: "col" }, `${n}`)))),
      h("tbody", {}, found.grid.map((row, n) => row && h("tr", {}, h("th", { scope: "row" }, lab.localize(found.b.attentions[n].label)), Array.from(row.data, (value, head) => cell(n, head, value))))))));
  }
  // What the model answers on both sides: tags of aligned tokens beside each other, else the most likely answers.
  predictions() {
    const { lab, found } = this, { t } = lab, card = (...nodes) => h("section", { class: "card" }, h("h3", {}, t("predictions")), nodes), percent = x => x === null || x === undefined ? "" : ` ${formatPercent(x)}`;
    const [a, b] = ["a", "b"].map(which => found[which].prediction), items = held => held?.items ?? [];
    if (a.type === "tags" && b.type === "tags" && found.rows.places_a.length) {
      const at = (held, place) => items(held).find(item => item.token === place), pairs = found.rows.places_a.map((place, n) => [this.rows.a[n], at(a, place), at(b, found.rows.places_b[n])]).filter(([, x, y]) => x && y), same = pairs.filter(([, x, y]) => x.label === y.label).length;
      const cell = item => h("td", { translate: "no" }, item.label, h("span", { class: "at" }, percent(item.probability)));
      return card(h("p", { class: "soft" }, t("sameTags", same, pairs.length)), h("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": t("predictions") }, h("table", { class: "numbers" }, h("thead", {}, h("tr", {}, h("td", {}), h("th", { scope: "col" }, t("inA")), h("th", { scope: "col" }, t("inB")))),
        h("tbody", {}, pairs.map(([name, x, y]) => h("tr", { class: x.label === y.label ? null : "turned-row" }, h("th", { scope: "row", translate: "no" }, name), cell(x), cell(y)))))));
    }
    const side = (words, held, tokens) => h("div", {}, held.text === undefined ? items(held).length ? rankingTable(words, items(held).slice(0, held.type === "tags" ? 12 : 5).map(item => ({ name: [held.type === "tags" ? `${visibleText(tokens[item.token]?.text ?? "")} · ` : "", visibleText(item.label)].join(""), value: item.probability ?? 0 }))) : h("p", { class: "soft" }, words, " –") : [h("p", { class: "soft" }, words), h("p", {}, untranslated(held.text))]);
    return card(h("div", { class: "two-sides" }, side(t("inA"), a, found.a.tokens.source ?? []), side(t("inB"), b, found.b.tokens.source ?? [])));
  }
}
const language = one => /[\u3400-\u9fff]/.test((one.tokens.source ?? []).map(token => token.text).join(""));
const shorten = words => [...words.replace(/\s+/g, " ")].length > 44 ? `${[...words].slice(0, 43).join("")}…` : words;
