// Honest reading: five attributions of one prediction, their agreement, and the effect of edited heads.
import { signedColour, signedTextColour } from "lab/colour.js";
import { allUnknown, bar, boundaryOf, button, chosenModel, cautionLine, inputBox, modelPicker, noticeBox, number, backendLine, select, startText, withProgress } from "lab/controls.js";
import { formatBrief, formatShort, clamp, formatExact, fill, untranslated, h, formatPercent, s, visibleText, cssVariable, tokenNames } from "lab/dom.js";
import { npz, saveFile } from "lab/export.js";
import { modelInput, pixelsOf } from "lab/inputs.js";
import { heatMap, zeroCentred } from "lab/heat_map.js";
import { tokenStrip } from "lab/token_strip.js";
import { cards, fold, stage } from "lab/stage.js";
import { numbersTable } from "lab/charts.js";

export const name = "honest";
const MODALITIES = ["text", "pair", "image", "sound", "graph"], MANY = 160;
const METHODS = ["raw", "value", "rollout", "gradient", "effect"], SIGNED = ["gradient", "effect"], CHANGES = ["silent", "uniform", "shuffle", "mean"];

export const text = {
  en: {
    title: "Honest reading", lead: "A large attention weight does not explain a prediction. This page attributes one prediction to its inputs with five methods. Only the last one, ablation, measures an effect: the model runs again without each token. The first line says how well the others agree with it, and how well shuffled importances would.",
    question: "Prediction to explain", ask_class: "class of the whole input", ask_tag: "tag of the chosen token", ask_next: "next token after the chosen one", ask_word: "word at the chosen token", ask_vector: "embedding of the input: the mean of the last hidden states",
    ask_generated: "the chosen token of the generated text", ask_object: "class of the object predicted by the chosen query or cell", ask_node: "class of the chosen node", ask_graph: "class of the whole graph; the chosen node selects whose neighbours are attributed", ask_number: "the predicted number", numberIs: score => `The model predicts ${score}. The attribution is for this number.`, placeNumber: "Query or cell", node: "Node", silence: "padding (silence)",
    ablate_blank: "blank its pixels", ablate_quiet: "silence its frames", ablate_drop: "drop the edge", unit_image: "Each unit is an image patch, or a block of patches if there are many.", unit_sound: "Each unit is a time interval.", unit_graph: "Each unit is a neighbour: a node with an edge to the chosen node, or the node itself.", pictureHere: "The image as the model receives it, divided into units",
    attributionsUnits: "Five attributions per unit", ablationUnits: "Ablate by", unitName: "unit", noAgree: "Only the ablation effect applies here, so there is nothing to compare. Choose another attention.",
    label: "Prediction", place: "Predicted token", answerIs: (word, share, score) => `“${word}”: probability ${share}, ln p = ${score}`, vectorIs: "This model has no output head. The score is the fraction of its embedding that remains; it is 1 before any change.",
    meanHeads: "mean of all heads", layerOf: "Layer", ablation: "Ablate by", ablate_delete: "delete", ablate_replace: "unknown token", ablate_hide: "mask",
    attributions: "Five attributions per token", score: "rank correlation", topKeys: "largest correlations", short_raw: "raw", short_value: "value", short_rollout: "rollout", short_gradient: "gradient", short_effect: "ablation", most: (token, value) => `largest: ${token} ${value}`, rankOfAll: (n, all) => `rank ${n} of ${all}`, chosen: "Token", raw: "Raw weights", value: "Value-weighted", rollout: "Rollout", gradient: "Gradient × attention", effect: "Ablation effect (measured)",
    means_raw: "Attention weights of the chosen layer from the position that produces the prediction. They ignore the values.",
    means_value: "The same weights times the norm of the value they select, ‖weight · value · W_O‖. A large weight on a short vector counts little.",
    means_rollout: "Attention weights multiplied over all layers up to the chosen one, with half of each token kept for the residual connection. It ignores values and feed-forward layers.",
    means_gradient: "Weight times the gradient of ln p with respect to the weight, summed over queries. It is specific to this prediction and holds for small changes only.",
    means_effect: "ln p of the prediction minus ln p with the token ablated; the model is run again without it. Positive means that the token supports the prediction.",
    meansVector_gradient: "Weight times the gradient of the remaining fraction of the embedding, summed over queries. It holds for small changes only.",
    meansVector_effect: "Fraction of the embedding that is lost when the token is ablated; the model is run again without it.",
    domain: (low, high) => `colours ${low} … ${high}`, unknown: "this is the predicted token", token: "token", all: "All values",
    agree: "Do the methods agree?", agreeHow: "Spearman's rank correlation of two attributions over the tokens: 1 same order, 0 no relation, −1 reversed order.", bySize: "by magnitude", signed: "with sign", compareBy: "Compare", correlation: "rank correlation",
    agreeAbove: (r, n, floor, units) => `the weights carry information: rank correlation ${r} with ablation over ${n} ${units}; noise floor ${floor}.`,
    agreeBelow: (r, n, floor, units) => `do not trust the weights: rank correlation ${r} with ablation over ${n} ${units}; noise floor ${floor}.`,
    tooFew: (n, least, units) => `${n} ${units} are too few to judge: with fewer than ${least} even shuffled orders agree well. Enter a longer text.`, unitsTokens: "tokens", unitsOther: "units", noMethod: "only the ablation effect applies to this attention, so there is nothing to compare.",
    itself: (r, how) => `Ablating otherwise (${how}) gives a correlation of ${r} with this measurement.`, floorTip: floor => `noise floor ${floor}: 1 in 20 shuffled orders of one method reaches it`, methodsMean: "What each method measures", noise: "Noise floor: what 1 in 20 shuffled orders of the same effects reaches; for one method it is the mark on its bar.", more: "All values, files, backend", asked: "Prediction of",
    best: (name, r) => `Closest to the ablation effect: ${name} (${r}).`,
    baselines: "Baselines: other weights", baselinesHow: "The weights of all heads in all layers are replaced and the model is run again. If the prediction hardly changes, it does not depend on the weights.", measure: "Run the baselines", seed: "Seed",
    asIs: "unchanged", uniform: "uniform", shuffle: "shuffled", mean: "mean over queries", silent: "zeroed", shuffledOf: n => `shuffled, seed ${n}`, otherSeed: n => `trained from seed ${n}`,
    change: "Weights", answer: "prediction", stays: "probability of the original prediction", staysShort: "p(original)", apartShort: "distance", staysVector: "fraction of the embedding kept", gap: "change of ln p", gapVector: "change", apart: "total variation distance (0 equal, 1 disjoint)", apartVector: "1 − cosine", rankOf: "rank correlation of weights",
    heads: "Edit heads", headsHow: "Choose an edit, then click heads. The edit replaces the head's output inside the model, before W_O, and the prediction is computed again.", give: "Edit", each: "Measure each head separately",
    eachHow: how => `Numbers: change of the score when only that head is edited (${how}).`, none: "No head is edited. Click a head.", clear: "Reset", before: "Before", after: "After", cell: (layer, head, how) => `${layer}, head ${head}${how ? `, ${how}` : ""}`,
    gives_silent: "zeroed: output zero", gives_uniform: "uniform: equal weights", gives_shuffle: "shuffled: weights permuted", gives_mean: "mean: the average row for every query",
  },
  zh: {
    title: "诚实解读", lead: "注意力权重大，并不等于解释了预测。本页用五种方法把同一个预测归因到输入；只有最后一种（消融）是实际测量：去掉每个词元，重新运行模型。第一行说明其他方法与它的一致程度，并以打乱的重要性作为对照。",
    question: "要解释的预测", ask_class: "整个输入的类别", ask_tag: "所选词元的标签", ask_next: "所选词元之后的下一个词元", ask_word: "所选词元处的词", ask_vector: "输入的嵌入：最后一层隐藏状态的平均",
    ask_generated: "生成文本中所选的词元", ask_object: "所选查询或格子预测的物体类别", ask_node: "所选节点的类别", ask_graph: "整个图的类别；所选节点决定对谁的邻居做归因", ask_number: "模型预测的数值", numberIs: score => `模型预测 ${score}，归因针对这个数值。`, placeNumber: "查询或格子的编号", node: "节点", silence: "填充（静音）",
    ablate_blank: "清空其像素", ablate_quiet: "把这一段设为静音", ablate_drop: "删除这条边", unit_image: "每个单元是一个图块；图块较多时是相邻的几个图块。", unit_sound: "每个单元是一段时间。", unit_graph: "每个单元是一个邻居：有边指向所选节点的节点，也包括它自己。", pictureHere: "模型接收的图像，按单元划分",
    attributionsUnits: "五种归因，按单元", ablationUnits: "消融方式", unitName: "单元", noAgree: "这里只能测消融影响，没有可比较的方法。请选择其他注意力。",
    label: "预测", place: "被预测的词元", answerIs: (word, share, score) => `“${word}”：概率 ${share}，ln p = ${score}`, vectorIs: "此模型没有输出头。得分是嵌入保留的比例，改动前为 1。",
    meanHeads: "所有头的平均", layerOf: "层", ablation: "消融方式", ablate_delete: "删除", ablate_replace: "替换为未知词元", ablate_hide: "掩码",
    attributions: "五种归因，按词元", score: "秩相关", topKeys: "相关性最大的是", short_raw: "原始", short_value: "按值", short_rollout: "rollout", short_gradient: "梯度", short_effect: "消融", most: (token, value) => `最大：${token} ${value}`, rankOfAll: (n, all) => `排名 ${n}/${all}`, chosen: "词元", raw: "原始权重", value: "按值加权", rollout: "Rollout（逐层相乘）", gradient: "梯度 × 注意力", effect: "消融影响（实测）",
    means_raw: "所选层中，产生预测的位置给出的注意力权重。它忽略值向量。",
    means_value: "同样的权重乘以所取值的范数 ‖权重 · 值 · W_O‖：大权重落在短向量上，影响很小。",
    means_rollout: "把直到所选层的注意力权重逐层相乘，每个词元保留一半作为残差连接。它忽略值向量和前馈网络。",
    means_gradient: "权重乘以 ln p 对该权重的梯度，对查询求和。它针对这个预测，只对微小改动成立。",
    means_effect: "预测的 ln p 减去消融该词元后的 ln p；去掉它之后模型重新运行。为正表示该词元支持这个预测。",
    meansVector_gradient: "权重乘以嵌入保留比例对该权重的梯度，对查询求和。只对微小改动成立。",
    meansVector_effect: "消融该词元后嵌入损失的比例；去掉它之后模型重新运行。",
    domain: (low, high) => `颜色范围 ${low} … ${high}`, unknown: "这就是被预测的词元", token: "词元", all: "全部数值",
    agree: "各方法一致吗？", agreeHow: "两种归因在各词元上的斯皮尔曼秩相关：1 表示次序相同，0 表示无关，−1 表示次序相反。", bySize: "按绝对值", signed: "带正负号", compareBy: "比较", correlation: "秩相关",
    agreeAbove: (r, n, floor, units) => `这里的权重含有信息：在 ${n} 个${units}上与消融的秩相关为 ${r}，噪声水平为 ${floor}。`,
    agreeBelow: (r, n, floor, units) => `这里的权重不可信：在 ${n} 个${units}上与消融的秩相关只有 ${r}，噪声水平为 ${floor}。`,
    tooFew: (n, least, units) => `${n} 个${units}太少，无法判断：少于 ${least} 个时，打乱的次序也常常很一致。请输入更长的文本。`, unitsTokens: "词元", unitsOther: "单元", noMethod: "对这个注意力只能测消融影响，没有可比较的方法。",
    itself: (r, how) => `换一种消融方式（${how}）再测，两次测量的秩相关为 ${r}。`, floorTip: floor => `噪声水平 ${floor}：把单个方法的次序打乱，每 20 次约有 1 次达到它`, methodsMean: "各方法测量什么", noise: "噪声水平：把同样的影响打乱次序，每 20 次约有 1 次能达到的值；各方法自己的噪声水平标在它的条上。", more: "全部数值、文件、后端", asked: "要解释的预测：",
    best: (name, r) => `与消融影响最接近的是：${name}（${r}）。`,
    baselines: "基线：换成其他权重", baselinesHow: "替换所有层、所有头的权重，重新运行模型。如果预测几乎不变，它就不依赖这些权重。", measure: "运行基线", seed: "随机种子",
    asIs: "未改动", uniform: "均匀", shuffle: "打乱", mean: "对查询取平均", silent: "置零", shuffledOf: n => `打乱，种子 ${n}`, otherSeed: n => `用种子 ${n} 训练`,
    change: "权重", answer: "预测", stays: "原预测的概率", staysShort: "原预测", apartShort: "距离", staysVector: "嵌入保留的比例", gap: "ln p 的变化", gapVector: "变化", apart: "全变差距离（0 相同，1 不相交）", apartVector: "1 − 余弦", rankOf: "权重的秩相关",
    heads: "编辑注意力头", headsHow: "先选择一种编辑，再点击头。编辑在模型内部、W_O 之前替换该头的输出，然后重新计算预测。", give: "编辑方式", each: "逐个头测量",
    eachHow: how => `数字：只编辑该头（${how}）时得分的变化。`, none: "没有编辑任何头，请点击一个头。", clear: "重置", before: "编辑前", after: "编辑后", cell: (layer, head, how) => `${layer}，头 ${head}${how ? `，${how}` : ""}`,
    gives_silent: "置零：输出为零", gives_uniform: "均匀：权重相等", gives_shuffle: "打乱：权重重新排列", gives_mean: "平均：每个查询都用平均行",
  },
};

// Sentences in which the prediction of some token depends on the others.
const TELLING = { tagger: "He left the light bag on the left side of the light room." };

export async function show(root, lab) {
  // prefer a classifier or tagger of the given folders to a language model
  const usual = ["classify", "tag"].map(task => lab.models.find(one => one.modality === "text" && one.task === task && one.source !== "shipped")).find(Boolean);
  if (lab.state.model === undefined && usual) lab.set({ model: usual.name });
  const { t, state } = lab, model = chosenModel(lab, MODALITIES), again = (changes, replace = true) => lab.set(changes, { show: true, replace }), fresh = { place: null, label: null, token: null, edits: null };
  const picker = modelPicker(lab, { modalities: MODALITIES, onChange: name => again({ model: name, attention: null, head: null, ablation: null, upload: null, example: null, drawing: null, tone: null, molecule: null, ...fresh }, false) });
  lab.bar(picker);
  if (!model) return;
  const typed = ["text", "pair"].includes(model.modality), words = typed ? state.text ?? TELLING[model.name] ?? startText(lab, model) : null, chosen = typed ? null : modelInput(lab, root, model, changes => again({ ...changes, ...fresh }, false));
  lab.bar(picker, typed ? inputBox(lab, { value: words, model, onRun: ({ text }) => again({ text, ...fresh }, false) }) : chosen.element ?? "");
  const input = typed ? { text: words } : chosen.input;
  if (!input) return void root.append(h("p", { class: "note" }, t(model.modality === "graph" ? "noGraphFile" : "noInput")));
  const base = { model: model.name, input, ...numbersOf(state, ["place", "label"]) };
  const ask = { ...base, ...numbersOf(state, ["attention", "head"]), ...(state.ablation ? { ablation: state.ablation } : {}) };
  const found = await withProgress(lab, root, (onProgress, signal) => lab.request("honest/read", ask, { onProgress, signal }));
  if (!found) return;
  const notices = noticeBox(lab, found.notices, MODALITIES);
  if (allUnknown(found.notices)) return void root.append(notices);
  const names = unitNames(lab, found), { question } = found, known = METHODS.filter(name => found.attributions[name]), parts = attributionsPicture(lab, found, names, known, again);
  const page = stage(lab, { notices, look: verdict(lab, found, known), tools: parts.tools, picture: [questionLine(lab, found, again), parts.picture], side: [agreement(lab, found, known), parts.facts] });
  root.append(page.element, cards(baselines(lab, base, found), headsCard(lab, base, found)), fold(t("methodsMean"), parts.means, h("p", { class: "soft" }, t("agreeHow"), " ", t("noise"))), fold(t("more"), parts.files, parts.table, backendLine(lab, found)), cautionLine(lab));
  lab.expose({ read: () => ({ question, agreement: found.agreement, units: found.units, attributions: Object.fromEntries(METHODS.map(name => [name, found.attributions[name] && Array.from(found.attributions[name].data)])), correlations: found.correlations, names }) });
}
// The agreement as one sentence with its number, beside what shuffled importances reach.
function verdict(lab, { agreement: held, units, side }, known) {
  const { t } = lab, words = t(side === "source" ? "unitsTokens" : "unitsOther");
  if (known.length < 2) return t("noMethod");
  if (!held) return t("tooFew", units.count, units.least, words);
  return h("span", { "data-agreement": held.mean, "data-floor": held.floor }, t(held.mean > held.floor ? "agreeAbove" : "agreeBelow", formatShort(held.mean, 2), held.units, formatShort(held.floor, 2), words));
}
// The names of the input's units: tokens, patches by row and column, seconds, nodes.
function unitNames(lab, found) {
  const { t } = lab;
  if (found.side === "image") return found.tokens.map((unit, n) => n < found.first ? t("classToken") : t("patch", Math.floor((n - found.first) / found.grid[1]) + 1, (n - found.first) % found.grid[1] + 1));
  return found.side === "sound" ? found.tokens.map(unit => unit.special ? t("silence") : unit.text) : tokenNames(found.tokens);
}
const numbersOf = (state, keys) => Object.fromEntries(keys.filter(key => state[key] !== undefined).map(key => [key, Number(state[key])]));
const isVector = question => ["vector", "number"].includes(question.type);
const shown = (lab, answer) => answer.type === "number" ? lab.t("numberIs", formatBrief(answer.score)) : isVector(answer) ? lab.t("vectorIs") : lab.t("answerIs", visibleText(answer.word), formatPercent(answer.probability), formatBrief(answer.score));

function questionLine(lab, { question, places, notices }, again) {
  const { t } = lab, tokens = Array.isArray(places) ? places : null, count = tokens ? tokens.length : places, node = ["node", "graph"].includes(question.type) || (question.type === "number" && count > 0);
  const asked = !count ? null : tokens && count <= MANY ? tokenStrip(lab, { names: tokenNames(tokens), values: null, selected: question.place, special: n => tokens[n].special, boundary: question.type === "generated" ? null : boundaryOf(notices), label: t("place"), onPick: place => again({ place, label: null }) }).element
    : number(t(node ? "node" : tokens ? "place" : "placeNumber"), question.place, { min: 0, max: count - 1 }, place => again({ place: clamp(place, 0, count - 1), label: null, token: null }));
  return asked || isVector(question) ? h("div", { class: even(count) ? "question-line even" : "question-line", id: "question", style: { "--n": count } }, h("div", { class: "reading-name" }, h("h3", {}, t("question")), h("p", { class: "soft" }, t(`ask_${question.type}`))),
    h("div", { class: "question-choice" }, asked, isVector(question) ? h("p", { class: "answer-line" }, shown(lab, question)) : null)) : null;
}
// The label whose probability is explained.
const labelChoice = (lab, question, again) => question.choices.length ? h("span", { title: lab.t(`ask_${question.type}`) }, select(lab.t("label"), question.choices.map(one => [one.label, `${visibleText(one.word)} · ${formatPercent(one.probability)}`]), question.label, label => again({ label }), { plain: true })) : null;

// The five attributions, one under the other over the same tokens, with their correlation with the last one.
function attributionsPicture(lab, found, names, known, again) {
  const { t } = lab, { attentions, attention, head, question } = found, words = found.side === "source", grid = found.side === "image";
  const tools = [labelChoice(lab, question, again), select(t("layerOf"), attentions.map((one, n) => [n, lab.localize(one.label)]), attention, value => again({ attention: value, head: null })),
    select(t("head"), [["", t("meanHeads")], ...Array.from({ length: attentions[attention].heads }, (_, n) => [n, String(n)])], head ?? "", value => again({ head: value === "" ? null : value, attention })),
    bar(t(words ? "ablation" : "ablationUnits"), found.ablations.map(name => [name, t(`ablate_${name}`)]), found.ablation, ablation => again({ ablation }))];
  // A selected token is marked in all five attributions, with its values and ranks.
  const facts = h("div", { class: "soft facts-of", role: "status" }), orders = Object.fromEntries(known.map(name => [name, ranks(found.attributions[name].data)]));
  const pick = n => {
    strips.forEach(([, strip]) => strip?.update({ selected: n }));
    lab.set({ token: n });
    fill(facts, h("h3", {}, t("chosen"), " ", untranslated(names[n])), h("dl", {}, known.map(name => [h("dt", {}, t(`short_${name}`)), h("dd", { title: formatExact(found.attributions[name].data[n]), translate: lab.language === "xx" ? null : "no" }, formatShort(found.attributions[name].data[n]), " · ", orders[name][n] ? t("rankOfAll", orders[name][n], Math.max(...orders[name])) : "–")])));
  };
  const strips = METHODS.map(name => {
    const title = h("h3", {}, t(name)), tip = t(isVector(question) && SIGNED.includes(name) ? `meansVector_${name}` : `means_${name}`);
    if (!known.includes(name)) return [h("section", { class: "reading", "data-reading": name }, h("div", { class: "reading-name" }, title), h("p", { class: "note" }, lab.localize(found.reasons[name]))), null];
    const values = found.attributions[name].data, signed = SIGNED.includes(name), finite = Array.from(values).filter(Number.isFinite), first = ranks(values, n => found.tokens[n]?.unknown).indexOf(1);
    const domain = signed ? zeroCentred(finite) : [0, Math.max(...finite, 1e-9)], write = few(domain[1]);
    const strip = tokenStrip(lab, { names, values, masked: n => !Number.isFinite(values[n]), special: n => found.tokens[n].special, boundary: found.side === "source" ? boundaryOf(found.notices) : null, ...layout(found), kind: signed ? "scores" : "weights", domain, scale: "linear", label: t(name), digits: grid && names.length > 64 ? false : write, selected: lab.state.token === undefined ? null : Number(lab.state.token), onPick: pick });
    return [h("section", { class: `reading ${name === "effect" ? "measured" : ""}`, "data-reading": name, title: tip }, h("div", { class: "reading-name" }, title, name === "effect" ? null : agreementBar(lab, found, name), first < 0 ? null : h("p", { class: "soft" }, t("most", names[first], write(values[first])))), strip.element), strip];
  });
  if (names[lab.state.token]) pick(Number(lab.state.token));
  const table = numbersTable(lab, { caption: t("all"), columns: [t("number"), t(words ? "token" : "unitName"), ...known.map(name => t(name))], rows: names.map((token, n) => [String(n), token, ...known.map(name => found.attributions[name].data[n])]) });
  const quoted = words => `"${words.replaceAll('"', '""')}"`, csv = () => `\ufeff${[["", ...known], ...names.map((token, n) => [quoted(token), ...known.map(name => found.attributions[name].data[n])])].map(row => row.join(",")).join("\r\n")}\r\n`;
  const files = h("div", { class: "files" }, button(t("csv"), () => saveFile("attributions.csv", csv(), "text/csv"), { class: "small", title: t("fileTip", t("csv")) }), button(t("npz"), () => saveFile("attributions.npz", npz(Object.fromEntries(known.map(name => [name, found.attributions[name]])))), { class: "small", title: t("fileTip", t("npz")) }));
  const means = h("dl", { class: "definitions" }, METHODS.map(name => [h("dt", {}, t(name)), h("dd", { class: "soft" }, t(isVector(question) && SIGNED.includes(name) ? `meansVector_${name}` : `means_${name}`))]));
  return { tools, facts, table, files, means, picture: h("div", { class: grid ? "readings units" : even(names.length) ? "readings even" : "readings", style: { "--n": names.length } }, words ? null : h("p", { class: "soft" }, t(`unit_${found.side === "nodes" ? "graph" : found.side}`)), found.pixels ? pictureOf(lab, found) : null, strips.map(([element]) => element)) };
}
// Whether tokens stand in columns of equal width, so that the rows can be compared.
const even = count => count <= 18 && innerWidth > 1100;
// The correlation of one method with the effect as a bar from 0 to 1, with the noise floor as a mark.
function agreementBar(lab, found, name) {
  const held = found.agreement, r = held?.each[name];
  if (r === undefined) return null;
  const x = value => 2 + 96 * clamp(value, 0, 1), above = r > held.floor_each;
  return h("p", { class: "agreement-bar", title: lab.t("floorTip", formatShort(held.floor_each, 2)) }, s("svg", { viewBox: "0 0 100 12", width: 100, height: 12, "aria-hidden": "true" }, s("rect", { x: 2, y: 4, width: 96, height: 4, rx: 2, class: "track" }), s("rect", { x: 2, y: 3, width: Math.max(0, x(r) - 2), height: 6, rx: 3, class: above ? "above" : "below" }), s("line", { x1: x(held.floor_each), x2: x(held.floor_each), y1: 0, y2: 12, class: "floor" })),
    h("span", { "data-r": r, title: formatExact(r) }, formatShort(r, 2)));
}
// The units of an image are arranged like its patches.
const layout = ({ side, grid, first }) => side === "image" ? { columns: grid[1], first } : {};
function pictureOf(lab, { pixels, grid: [rows, columns], box }) {
  const canvas = h("canvas", { role: "img", "aria-label": lab.t("pictureHere"), class: "units-picture" }), source = pixelsOf(pixels), cell = Math.max(8, Math.floor(240 / Math.max(rows, columns))), pen = canvas.getContext("2d");
  canvas.width = columns * cell, canvas.height = rows * cell;
  pen.imageSmoothingEnabled = false, pen.drawImage(source, 0, 0, canvas.width / Math.max(1, box[1]), canvas.height / Math.max(1, box[0]));
  pen.strokeStyle = cssVariable("--line"), pen.lineWidth = 1;
  for (let n = 0; n < rows * columns; n++) pen.strokeRect(n % columns * cell + 0.5, Math.floor(n / columns) * cell + 0.5, cell, cell);
  return h("figure", {}, canvas, h("figcaption", { class: "soft" }, lab.t("pictureHere")));
}
// A fixed number of decimals per strip, so that strips align; exact numbers are in the table.
const few = most => { const digits = Math.min(8, Math.max(3, 2 - Math.floor(Math.log10(most)))); return x => Math.abs(x) < 0.5 / 10 ** digits ? "0" : x.toFixed(digits).replace(/^(-?)0\./, "$1.").replace("-", "−"); };
// The rank of each value by magnitude, from 1; 0 for those that are skipped.
function ranks(values, skip = () => false) {
  const order = Array.from(values.keys()).filter(n => Number.isFinite(values[n]) && !skip(n)).sort((a, b) => Math.abs(values[b]) - Math.abs(values[a])), found = Array(values.length).fill(0);
  order.forEach((n, rank) => { found[n] = rank + 1; });
  return found;
}

function agreement(lab, found, known) {
  const { t } = lab, { repeated } = found, place = h("div", {}), words = h("p", { class: "soft" });
  if (known.length < 2 || !found.agreement) return h("section", { class: "card" }, h("h3", {}, t("agree")), h("p", { id: "refused" }, known.length < 2 ? t("noAgree") : t("tooFew", found.units.count, found.units.least, t(found.side === "source" ? "unitsTokens" : "unitsOther"))));
  const draw = kind => {
    const held = found.correlations[kind], others = known.filter(name => name !== "effect"), near = others.reduce((a, b) => held.effect[b] > held.effect[a] ? b : a), count = known.length;
    const map = heatMap(lab, { title: t("correlation"), values: Float32Array.from(known.flatMap(a => known.map(b => held[a][b]))), shape: [count, count], rowNames: known.map(name => t(`short_${name}`)), columnNames: known.map(name => t(`short_${name}`)), kind: "scores", domain: [-1, 1], digits: 2, sums: false, top: 0, aside: true, orientation: "", selected: [0, count - 1], name: "correlations", what: t("correlation"), largestCell: 44 });
    fill(place, map.element), fill(words, t("best", t(near), formatShort(held.effect[near], 2)), " ", repeated?.correlation === undefined ? "" : t("itself", formatShort(repeated.correlation, 2), t(`ablate_${repeated.ablation}`)));
  };
  const kind = lab.state.sign === "signed" ? "signed" : "size";
  const box = h("section", { class: "card agreement-card" }, h("h3", {}, t("agree")), bar(t("compareBy"), [["size", t("bySize")], ["signed", t("signed")]], kind, value => { lab.set({ sign: value }), draw(value); }), place, words);
  draw(kind);
  return box;
}

// What is measured without a click: inputs and models so small that it takes a moment.
const isSmall = ({ units, attentions }) => units.count <= 48 && attentions.reduce((sum, one) => sum + one.heads, 0) <= 48;

function baselines(lab, base, found) {
  const { t } = lab, { question } = found, place = h("div", {}), vector = isVector(question), seed = Number(lab.state.seed ?? 0), numberCell = (value, part = null) => h("td", { class: part === null ? "number" : "number score", "data-value": value, title: formatExact(value), style: part === null ? {} : { "--part": `${100 * clamp(part, 0, 1)}%`, "--colour": "var(--query)" } }, h("span", {}, formatShort(value)));
  const line = (words, one, rank) => h("tr", {}, h("th", { scope: "row" }, words), vector ? null : h("td", { translate: "no", class: one.top_word !== undefined && one.top_word !== question.choices[0]?.word ? "keep turned" : "keep" }, `${visibleText(one.top_word ?? one.word)} ${formatPercent(one.top_probability ?? one.probability, 0)}`), vector ? numberCell(one.score) : numberCell(one.probability, one.probability), numberCell(one.change ?? 0), numberCell(one.distance ?? 0), rank === undefined ? null : numberCell(rank));
  async function run() {
    fill(place);
    const answer = await withProgress(lab, place, (onProgress, signal) => lab.request("honest/baselines", { ...base, seed }, { onProgress, signal }));
    if (!answer) return;
    const rows = [line(t("asIs"), { ...question, top_word: question.choices[0]?.word, top_probability: question.choices[0]?.probability }), ...answer.baselines.map(one => line(t(one.change_kind), one)), ...answer.shuffled.map(one => line(t("shuffledOf", one.seed), one)),
      ...answer.others.map(one => line(t("otherSeed", one.seed), { ...one.question, change: one.question.score - question.score, distance: NaN }, one.correlation))];
    const columns = [["change"], ...(vector ? [["staysVector"], ["gapVector"], ["apartVector"]] : [["answer"], ["staysShort", "stays"], ["gap"], ["apartShort", "apart"]]), ...(answer.others.length ? [["rankOf"]] : [])];
    fill(place, answer.note ? h("p", { class: "note" }, lab.localize(answer.note)) : null, h("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": t("baselines") }, h("table", { class: "numbers finder" }, h("thead", {}, h("tr", {}, columns.map(([key, tip]) => h("th", { scope: "col", title: tip ? t(tip) : null }, t(key))))), h("tbody", {}, rows))));
    lab.expose({ baselines: () => answer });
  }
  const start = () => { lab.set({ baselines: 1 }); return lab.attempt(run, place); };
  if (lab.state.baselines || (isSmall(found) && !lab.exported)) start();
  return h("section", { class: "card" }, h("div", { class: "map-head" }, h("h2", { class: "first" }, t("baselines")), h("div", { class: "row baseline-seed" }, number(t("seed"), seed, { min: 0, max: 99999 }, value => lab.set({ seed: value, baselines: 1 }, { show: true })), button(t("measure"), start, { class: "small", id: "baselines" }))), h("p", { class: "soft" }, t("baselinesHow")), place);
}

// Layers × heads as buttons; the edits are stored in the URL as layer.head.change, joined by "~".
function headsCard(lab, base, found) {
  const { attentions, question } = found, small = isSmall(found) && !lab.exported, { t } = lab, seed = Number(lab.state.seed ?? 0), vector = isVector(question), edits = new Map((lab.state.edits ?? "").split("~").filter(Boolean).map(one => one.split(".")).filter(([a, b, how]) => attentions[a]?.heads > b && CHANGES.includes(how)).map(([a, b, how]) => [`${a}.${b}`, how]));
  const grid = h("div", { class: "table-scroll" }), result = h("div", {}), measured = h("div", {}), note = h("p", { class: "soft" });
  let how = CHANGES.includes(lab.state.give) ? lab.state.give : "silent", alone = null;
  function draw() {
    const most = alone ? Math.max(...Array.from(alone.data).filter(Number.isFinite).map(Math.abs), 1e-9) : 1, digits = few(most);
    const cell = (a, b) => {
      const held = edits.get(`${a}.${b}`), value = alone?.data[a * alone.shape[1] + b];
      return h("td", {}, h("button", { type: "button", class: "head-cell", "aria-pressed": held !== undefined, "aria-label": t("cell", lab.localize(attentions[a].label), b, held ? t(held) : ""), title: held ? t(held) : value === undefined ? null : formatExact(value),
        style: value === undefined ? {} : { background: signedColour(value, most), color: signedTextColour(value, most) }, "data-head": `${a}.${b}`, onclick: () => toggle(a, b) }, held ? t(held) : value === undefined ? String(b) : digits(value)));
    };
    const widest = Math.max(...attentions.map(one => one.heads)), focused = document.activeElement?.dataset?.head;
    fill(grid, h("table", { class: "head-grid" }, h("thead", {}, h("tr", {}, h("td", {}), Array.from({ length: widest }, (_, n) => h("th", { scope: "col" }, `${n}`)))), h("tbody", {}, attentions.map((one, a) => h("tr", {}, h("th", { scope: "row" }, lab.localize(one.label)), Array.from({ length: one.heads }, (_, b) => cell(a, b)))))));
    fill(note, alone ? t("eachHow", t(how)) : "");
    if (focused) grid.querySelector(`[data-head="${focused}"]`)?.focus();
  }
  const written = () => [...edits].map(([place, change]) => `${place}.${change}`).join("~");
  const asked = () => [...edits].map(([place, change]) => ({ attention: attentions[place.split(".")[0]].name, head: Number(place.split(".")[1]), change }));
  function toggle(a, b) {
    const place = `${a}.${b}`;
    edits.get(place) === how ? edits.delete(place) : edits.set(place, how);
    lab.set({ edits: written() || null }), draw(), lab.attempt(apply, result);
  }
  const latest = lab.latestRequest();
  async function apply() {
    if (!edits.size) return fill(result, h("p", { class: "soft" }, t("none")));
    const found = await latest("honest/change", { ...base, edits: asked(), seed }).catch(error => { if (error.name !== "AbortError") throw error; });
    if (!found) return;
    const line = (words, one) => [h("span", { class: "keep" }, words), vector ? one.score : untranslated(one.items.map(item => `${visibleText(item.word)} ${formatPercent(item.probability)}`).join(" · "), { class: "keep" }), ...(vector ? [] : [one.probability]), one.change, one.distance];
    fill(result, numbersTable(lab, { caption: "", short: true, columns: ["", ...(vector ? [t("staysVector"), t("gapVector"), t("apartVector")] : [t("answer"), t("staysShort"), t("gap"), t("apartShort")])], rows: [line(t("before"), found.before), line(t("after"), found.after)] }));
    lab.expose({ change: () => found });
  }
  async function measure() {
    const asked = how, answer = await withProgress(lab, measured, (onProgress, signal) => lab.request("honest/heads", { ...base, change: asked, seed }, { onProgress, signal }));
    if (!answer || asked !== how) return;
    alone = answer.heads, lab.set({ alone: how }), draw();
  }
  lab.expose({ alone: () => alone && Array.from(alone.data) });
  draw(), lab.attempt(apply, result);
  if (lab.state.alone === how || small) lab.attempt(measure, measured);
  return h("section", { class: "card" }, h("h2", { class: "first" }, t("heads")), h("p", { class: "soft" }, t("headsHow")),
    h("div", { class: "row" }, bar(t("give"), CHANGES.map(change => [change, h("span", { title: t(`gives_${change}`) }, t(change))]), how, value => { how = value, alone = null, lab.set({ give: value, alone: null }), draw(); if (small) lab.attempt(measure, measured); }), button(t("each"), () => lab.attempt(measure, measured), { id: "each" }), button(t("clear"), () => { edits.clear(), lab.set({ edits: null }), draw(), lab.attempt(apply, result); })),
    grid, measured, note, result);
}
