// Image: the weights of a patch. Each patch of the image is a token; the class token has its own cell.
import { cssColour, legend, shader } from "lab/colour.js";
import { bar, chosenModel, fileButtons, headPicker, cautionLine, modelPicker, noticeBox, predictionLine, backendLine } from "lab/controls.js";
import { clamp, formatExact, fill, h, topEntries, formatPercent, scaleCanvas, cssVariable } from "lab/dom.js";
import { npz, saveFile } from "lab/export.js";
import { modelInput, pixelsOf } from "lab/inputs.js";
import { dots, numbersTable } from "lab/charts.js";

export const name = "image";
export const text = {
  en: {
    title: "Image", lead: "The image is divided into patches, and each patch attends to all patches. Draw a digit or drop an image, then click a patch to see its weights.",
    picture: "Weights of the chosen patch", mode: "Show", mode_heat: "one patch", mode_arrows: "largest weight of every patch", mode_rollout: "all layers (rollout)",
    query: name => `Query: ${name}`, outlined: "left: the image with the query patch outlined; right: its weights on the patches",
    help: "Click a patch or the class token, or move with the arrow keys.", topKeys: name => `Largest weights of ${name}`, cell: "cell", weight: "weight", sum: x => `This row sums to ${x}.`,
    onClass: x => `The class token has ${x} of the weight.`, rolloutWords: "Rollout multiplies the mean weights of the layers, with half of each token kept for the residual connection (Abnar and Zuidema 2020). It ignores the values.",
    reachTitle: "Mean attention distance per head", reachX: "layer", reachY: "mean distance (pixels)", reachHow: "Mean over the patches of the distance to the patches they attend to. Weights on patches are renormalised to sum to 1; the weight on the class token is listed separately.",
    distance: "distance (pixels)", special: "on the class token", entropyShare: "entropy ÷ log(keys)", sees: (h, w, rows, columns) => `The model receives ${w} × ${h} pixels as ${rows} × ${columns} patches.`,
    point: (layer, head, px) => `layer ${layer}, head ${head}: ${px} pixels`, allHeads: "Statistics of every head", pixel: "pixels",
    objects: "Detected objects", objectsHow: sure => `Each decoder query predicts one object: a class and a box. Boxes with a probability of at least ${sure} are drawn. Choose a line to see the weights of its query.`, cellsHow: sure => `Each grid cell predicts at most one object. Boxes with a probability of at least ${sure} are drawn. Choose a line to go to its cell.`, object: "object", ofQuery: n => `query ${n}`, objectQuery: (n, label) => label ? `query ${n} (${label})` : `query ${n}`, whereQuery: "Weights of the chosen query", probability: "probability", queryNumber: "query",
    outlinedQuery: "left: the image with the box of the query; right: its weights on the cells", helpQuery: "Choose an object in the list, or another query with the arrow keys.",
  },
  zh: {
    title: "图像", lead: "图像被切成图块，每个图块关注所有图块。手绘一个数字或拖入图像，再点击一个图块，查看它的权重。",
    picture: "所选图块的权重", mode: "显示", mode_heat: "单个图块", mode_arrows: "每个图块的最大权重", mode_rollout: "所有层（rollout）",
    query: name => `查询：${name}`, outlined: "左：图像，查询图块加框；右：它对各图块的权重",
    help: "点击图块或类别词元，也可用方向键移动。", topKeys: name => `${name}权重最大的是`, cell: "格", weight: "权重", sum: x => `本行之和为 ${x}。`,
    onClass: x => `类别词元占 ${x} 的权重。`, rolloutWords: "rollout 把各层的平均权重相乘，每个词元保留一半作为残差连接（Abnar 与 Zuidema 2020）；它忽略值向量。",
    reachTitle: "每个头的平均注意力距离", reachX: "层", reachY: "平均距离（像素）", reachHow: "各图块到其关注图块的平均距离。只计图块上的权重，并重新归一化为和等于 1；类别词元上的权重另列。",
    distance: "距离（像素）", special: "在类别词元上", entropyShare: "熵 ÷ log(键数)", sees: (h, w, rows, columns) => `模型接收 ${w} × ${h} 像素，分为 ${rows} × ${columns} 个图块。`,
    point: (layer, head, px) => `第 ${layer} 层，头 ${head}：${px} 像素`, allHeads: "每个头的统计", pixel: "像素",
    objects: "检测到的物体", objectsHow: sure => `解码器的每个查询预测一个物体：类别和边界框。只画概率不低于 ${sure} 的框；选择一行查看其查询的权重。`, cellsHow: sure => `每个网格单元最多预测一个物体。只画概率不低于 ${sure} 的框；选择一行跳到它的网格单元。`, object: "物体", ofQuery: n => `查询 ${n}`, objectQuery: (n, label) => label ? `查询 ${n}（${label}）` : `查询 ${n}`, whereQuery: "所选查询的权重", probability: "概率", queryNumber: "查询",
    outlinedQuery: "左：图像和查询的边界框；右：它对各格的权重", helpQuery: "在列表中选择物体，或用方向键切换查询。",
  },
};
const SIDE = 330, GAP = 18, MOST = 2048;

export async function show(root, lab) {
  const { t } = lab, model = chosenModel(lab, ["image"]);
  if (!model) return void root.append(h("p", { class: "note" }, t("noModels")));
  const { element, input } = modelInput(lab, root, model, changes => lab.set({ ...changes, query: null }, { show: true, replace: false }));
  root.append(h("div", { class: "input" }, h("div", { class: "row" }, modelPicker(lab, { modalities: ["image"], onChange: name => lab.set({ query: null, upload: null, example: null, drawing: null, model: name, attention: null, head: null }, { show: true }) })), element ?? ""));
  if (!input) return void root.append(h("p", { class: "note" }, t("noInput")));
  const asked = { model: model.name, input }, picture = await lab.request("image/run", asked), [rows, columns] = picture.grid, extra = picture.class_token ? 1 : 0, count = rows * columns + extra;
  // Self-attentions of the image tokens first, then the cross-attentions of a detector's queries.
  const all = [...picture.attentions, ...picture.crossed], attention = clamp(Number(lab.state.attention ?? all.length - 1), 0, all.length - 1), seen = all[attention], head = clamp(Number(lab.state.head ?? 0), 0, seen.heads - 1);
  const across = attention >= picture.attentions.length, queries = across ? seen.queries : count, found = picture.prediction.type === "objects" ? picture.prediction.items : [], boxOf = n => found.find(one => one.query === n);
  const mode = across ? "heat" : lab.state.mode ?? "heat", held = mode === "rollout" ? (await lab.request("image/rollout", asked)).flow : (await lab.request("heads/map", { ...asked, attention: seen.name, head, most: MOST })).weights;
  let query = clamp(Number(lab.state.query ?? (across ? found[0]?.query ?? 0 : 0)), 0, queries - 1);
  const cellName = n => n < extra ? t("classToken") : t("patch", Math.floor((n - extra) / columns) + 1, (n - extra) % columns + 1), named = n => across ? t("objectQuery", n, boxOf(n)?.label) : cellName(n), row = i => held.data.subarray(i * count, (i + 1) * count);

  const canvas = h("canvas", { tabindex: 0, role: "application", "aria-label": t(across ? "whereQuery" : "picture"), onkeydown: press, onclick: point }), words = h("div", {}), side = h("div", { class: "readout" }), listed = h("div", {});
  const points = picture.attentions.flatMap((one, layer) => Array.from(one.distance.data, (distance, n) => ({ x: layer, y: distance, layer, head: n, label: t("point", layer, n, distance.toFixed(2)) })));
  const chosenHead = (a, b) => lab.set({ attention: a, head: b, ...((a >= picture.attentions.length) === across ? {} : { query: null }) }, { show: true });
  root.append(noticeBox(lab, picture.notices, ["image"]) ?? "", found.length ? "" : predictionLine(lab, picture.prediction) ?? "", h("p", { class: "soft" }, t("sees", ...picture.size, rows, columns)),
    h("div", { class: "row pickers" }, headPicker(lab, all, attention, head, chosenHead), across ? null : bar(t("mode"), ["heat", "arrows", "rollout"].map(one => [one, t(`mode_${one}`)]), mode, value => lab.set({ mode: value }, { show: true }))),
    h("div", { class: "columns wide-left" },
      h("figure", { class: "card" }, h("div", { class: "map-head" }, h("h3", {}, t(across ? "whereQuery" : "picture")), fileButtons(lab, () => ({ png: () => canvas.toBlob(blob => saveFile("image.png", blob)), csv: () => saveFile("image.csv", csv(), "text/csv"), npz: () => saveFile("image.npz", npz({ weights: held, pixels: picture.pixels })), svg: () => saveFile("image.svg", svgOf(canvas), "image/svg+xml") }))),
        legend(lab, { kind: "weights", domain: [0, 1], scale: "root", what: t("weight"), masked: false }), canvas, words, h("p", { class: "soft help" }, t(across ? "helpQuery" : "help"))), h("div", {}, side, listed)),
    h("div", { class: "columns" }, h("div", { class: "card" }, dots(lab, { title: t("reachTitle"), xWords: t("reachX"), yWords: t("reachY"), points, xTicks: picture.attentions.map((_, n) => n), xDomain: [-0.5, picture.attentions.length - 0.5], here: points.findIndex(one => one.layer === attention && one.head === head), onPick: n => chosenHead(points[n].layer, points[n].head) }), h("p", { class: "soft" }, t("reachHow"))),
      h("div", { class: "card" }, numbersTable(lab, { caption: t("allHeads"), columns: [t("layer"), t("head"), t("distance"), t("special"), t("entropyShare")], rows: picture.attentions.flatMap((one, layer) => Array.from(one.distance.data, (distance, n) => [layer, n, distance, one.special.data[n], one.entropy_share.data[n]])) }))),
    cautionLine(lab), backendLine(lab, picture));

  // Left the image, right the weights; the class token is a separate cell before the weights.
  const source = pixelsOf(picture.pixels), cell = SIDE / Math.max(rows, columns), high = cell * rows, wide = cell * columns, start = wide + GAP + (extra ? cell + GAP : 0), shade = shader("weights", [0, 1], "root");
  const ends = [wide * Math.min(1, picture.size[1] / (columns * picture.cell[1])), high * Math.min(1, picture.size[0] / (rows * picture.cell[0]))];  // a picture need not fill its last cells
  const inPicture = n => [(n - extra) % columns * cell, Math.floor((n - extra) / columns) * cell, cell, cell], inWeights = n => n < extra ? [wide + GAP, 0, cell, cell] : [start + (n - extra) % columns * cell, Math.floor((n - extra) / columns) * cell, cell, cell];
  function paint() {
    const pen = scaleCanvas(canvas, start + wide, high), weights = row(query), ruled = n => pen.strokeRect(...inWeights(n));
    canvas.style.height = "auto";
    pen.imageSmoothingEnabled = false, pen.drawImage(source, 0, 0, ...ends);
    for (let n = 0; n < count; n++) pen.fillStyle = cssColour(shade(weights[n])), pen.fillRect(...inWeights(n));
    pen.strokeStyle = cssVariable("--line"), pen.lineWidth = 1;
    for (let n = 0; n < count; n++) ruled(n);
    if (mode === "arrows") arrows(pen, n => n < extra ? [wide + GAP, 0, cell, cell] : inPicture(n));
    pen.globalAlpha = 1;
    const mine = one => across && one.query === query;  // drawn last, over the others
    for (const one of found.filter(one => !mine(one) && one.probability >= picture.prediction.sure).concat(found.filter(mine))) framed(pen, one);
    pen.strokeStyle = cssVariable("--accent"), pen.lineWidth = 3;
    if (!across) ruled(query);
    if (!across && query >= extra) pen.strokeRect(...inPicture(query));
    if (extra) pen.fillStyle = cssVariable("--soft"), pen.font = "11px sans-serif", pen.textAlign = "center", pen.fillText("CLS", wide + GAP + cell / 2, cell + 13);
  }
  // The box of a detected object with its class; the box of the chosen query is highlighted.
  function framed(pen, one) {
    const [left, top, right, bottom] = one.box, [w, tall] = ends, mine = across && one.query === query, words = `${one.label} ${formatPercent(one.probability, 0)}`;
    pen.strokeStyle = cssVariable(mine ? "--accent" : "--key"), pen.lineWidth = mine ? 3 : 1.5, pen.strokeRect(left * w, top * tall, (right - left) * w, (bottom - top) * tall);
    pen.font = "12px sans-serif", pen.textAlign = "left";
    const y = Math.max(13, top * tall - 4), size = pen.measureText(words).width;
    pen.fillStyle = cssVariable("--paper"), pen.fillRect(left * w, y - 12, size + 6, 15), pen.fillStyle = cssVariable("--ink"), pen.fillText(words, left * w + 3, y);
  }
  function arrows(pen, box) {
    const middle = n => { const [x, y, w, tall] = box(n); return [x + w / 2, y + tall / 2]; };
    for (let n = 0; n < count; n++) {
      const [best] = topEntries(row(n), 1), [x, y] = middle(n), [to, down] = middle(best.index);
      pen.strokeStyle = pen.fillStyle = cssVariable("--accent"), pen.globalAlpha = 0.25 + 0.75 * Math.sqrt(best.value), pen.lineWidth = 1 + 4 * best.value;
      pen.beginPath(), best.index === n ? pen.arc(x, y - 7, 6, 0, 7) : (pen.moveTo(x, y), pen.lineTo(to, down)), pen.stroke();
      pen.beginPath(), pen.arc(to, down, 3, 0, 7), pen.fill();
    }
  }
  function tell(spoken) {
    const weights = row(query), best = topEntries(weights, 8), sum = weights.reduce((total, x) => total + x, 0);
    fill(words, h("p", {}, t("query", named(query)), " · ", h("span", { class: "soft" }, t(across ? "outlinedQuery" : "outlined"))), mode === "rollout" ? h("p", { class: "soft" }, t("rolloutWords")) : null);
    fill(side, h("p", { class: "row-sum" }, t("sum", sum.toFixed(6)), " ", extra ? t("onClass", weights[0].toFixed(4)) : null), numbersTable(lab, { caption: t("topKeys", named(query)), columns: [t("cell"), t("weight")], rows: best.map(({ index, value }) => [h("span", {}, cellName(index)), value]), ...(across ? {} : { onRow: n => choose(best[n].index) }) }));
    if (found.length) fill(listed, h("p", { class: "soft" }, t(picture.queries ? "objectsHow" : "cellsHow", picture.prediction.sure)), numbersTable(lab, { caption: t("objects"), columns: [t("object"), t("probability"), t(picture.queries ? "queryNumber" : "cell")], rows: found.map(one => [h("span", { translate: "no" }, one.label), one.probability, h("span", {}, picture.queries ? t("ofQuery", one.query) : cellName(one.query + extra))]), ...(across || !picture.queries ? { onRow: n => choose(found[n].query) } : {}) }));
    if (spoken) lab.announce(`${named(query)}: ${cellName(best[0].index)} ${formatExact(best[0].value)}`);
  }
  function choose(n) { query = clamp(n, 0, queries - 1), lab.set({ query }), paint(), tell(true); }
  function press(event) {
    const down = across ? 1 : columns, to = { ArrowLeft: query - 1, ArrowRight: query + 1, ArrowUp: query - down, ArrowDown: query < extra && !across ? extra : query + down, Home: 0, End: queries - 1 }[event.key];
    if (to !== undefined) event.preventDefault(), to >= 0 && to < queries ? choose(to) : event.key === "ArrowUp" && choose(0);
  }
  function point(event) {
    const edge = canvas.getBoundingClientRect(), ratio = (start + wide) / edge.width, x = (event.clientX - edge.left) * ratio, y = (event.clientY - edge.top) * ratio;
    if (across) return inBox(x / ends[0], y / ends[1]);
    const from = x <= wide ? 0 : start;
    if (x > wide && x < start) return extra && y < cell ? choose(0) : undefined;
    choose(extra + clamp(Math.floor(y / cell), 0, rows - 1) * columns + clamp(Math.floor((x - from) / cell), 0, columns - 1));
  }
  // The smallest box under the pointer.
  function inBox(x, y) {
    const area = ([left, top, right, bottom]) => (right - left) * (bottom - top), under = found.filter(({ box: [left, top, right, bottom] }) => x >= left && x <= right && y >= top && y <= bottom).sort((a, b) => area(a.box) - area(b.box));
    if (under.length) choose(under[0].query);
  }
  const csv = () => [`query,key,weight\n`, Array.from({ length: queries }, (_, i) => Array.from(row(i), (x, j) => `${i},${j},${formatExact(x)}`).join("\n")).join("\n"), "\n"];
  canvas.style.maxWidth = "100%";
  paint(), tell(false);
  lab.expose({ read: () => ({ query, count, weights: Array.from(row(query)), grid: picture.grid, mode, across, found }), cell: (i, j) => ({ value: row(i)[j], row: named(i), column: cellName(j) }) });
}

const svgOf = canvas => `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${canvas.width} ${canvas.height}"><image width="${canvas.width}" height="${canvas.height}" href="${canvas.toDataURL()}"/></svg>`;
