// Image: the weights of a patch, painted over the picture. Each patch is a token; the class token stands under the picture.
import { bar, button, chosenModel, fileButtons, headPicker, cautionLine, modelPicker, noticeBox, predictionLine, backendLine } from "lab/controls.js";
import { clamp, formatExact, formatShort, numeral, fill, h, topEntries, formatPercent, scaleCanvas } from "lab/dom.js";
import { npz, saveFile } from "lab/export.js";
import { modelInput, pixelsOf } from "lab/inputs.js";
import { dimmedImage, keysForHalf, largest, lightImage, lightLegend, strengthSlider } from "lab/overlay.js";
import { dots, numbersTable } from "lab/charts.js";
import { rankingTable } from "lab/ranking.js";
import { cards, fold, stage } from "lab/stage.js";

export const name = "image";
export const text = {
  en: {
    title: "Image", lead: "The image is divided into patches, and each patch attends to all patches. Move over the picture: bright patches are those that the patch under the pointer attends to. Click to keep a patch. The small pictures show the same patch in every head; click one to open it. You can draw a digit or drop an image of your own.",
    look: (name, key, share, half, count, layer, head) => `in layer ${layer}, head ${head}, ${name} gives ${share} of its weight to ${key}; half of it is on ${half} of ${count} tokens.`, lookRollout: (name, half, count) => `through all layers, half of what reaches ${name} comes from ${half} of ${count} tokens.`,
    film: "This query in every head", filmHead: (layer, head, most) => `layer ${layer}, head ${head}, largest weight ${most}`, layerShort: n => `layer ${n}`, strength: "overlay", more: "More about this picture: distances, every head, downloads",
    picture: "Weights of the chosen patch", mode: "Show", mode_heat: "one patch", mode_arrows: "strongest links", mode_rollout: "all layers (rollout)",
    query: name => `Query: ${name}`,
    help: "Move over the picture, click to keep a patch, or use the arrow keys.", topKeys: name => `Largest weights of ${name}`, cell: "cell", weight: "weight", sum: x => `This row sums to ${x}.`,
    onClass: x => `The class token has ${x} of the weight.`, rolloutWords: "Rollout multiplies the mean weights of the layers, with half of each token kept for the residual connection (Abnar and Zuidema 2020). It ignores the values.",
    reachTitle: "Mean attention distance per head", reachX: "layer", reachY: "mean distance (pixels)", reachHow: "Mean over the patches of the distance to the patches they attend to. Weights on patches are renormalised to sum to 1; the weight on the class token is listed separately.",
    distance: "distance (pixels)", special: "on the class token", entropyShare: "entropy ÷ log(keys)", sees: (h, w, rows, columns) => `The model receives ${w} × ${h} pixels as ${rows} × ${columns} patches.`,
    point: (layer, head, px) => `layer ${layer}, head ${head}: ${px} pixels`, allHeads: "Statistics of every head", pixel: "pixels",
    objects: "Detected objects", objectsHow: sure => `Each decoder query predicts one object: a class and a box. Boxes with a probability of at least ${sure} are drawn. Choose a line to see the weights of its query.`, cellsHow: sure => `Each grid cell predicts at most one object. Boxes with a probability of at least ${sure} are drawn. Choose a line to go to its cell.`, object: "object", ofQuery: n => `query ${n}`, objectQuery: (n, label) => label ? `query ${n} (${label})` : `query ${n}`, whereQuery: "Weights of the chosen query", probability: "probability", queryNumber: "query",
    helpQuery: "Move over a box, choose an object in the list, or use the arrow keys.",
  },
  zh: {
    title: "图像", lead: "图像被切成图块，每个图块关注所有图块。在图上移动鼠标：亮的图块就是鼠标所指图块关注的地方；点击可固定一个图块。小图是同一个图块在各个头里的样子，点击可打开。也可以手绘数字或拖入自己的图像。",
    look: (name, key, share, half, count, layer, head) => `在第 ${layer} 层的头 ${head} 里，${name}把 ${share} 的权重给了${key}；一半的权重集中在 ${count} 个词元中的 ${half} 个上。`, lookRollout: (name, half, count) => `经过所有层，到达${name}的信息有一半来自 ${count} 个词元中的 ${half} 个。`,
    film: "同一查询在各个头里", filmHead: (layer, head, most) => `第 ${layer} 层，头 ${head}，最大权重 ${most}`, layerShort: n => `第 ${n} 层`, strength: "叠加强度", more: "更多：距离、每个头的统计、下载",
    picture: "所选图块的权重", mode: "显示", mode_heat: "单个图块", mode_arrows: "最强连接", mode_rollout: "所有层（rollout）",
    query: name => `查询：${name}`,
    help: "在图上移动鼠标，点击固定图块，也可用方向键。", topKeys: name => `${name}权重最大的是`, cell: "格", weight: "权重", sum: x => `本行之和为 ${x}。`,
    onClass: x => `类别词元占 ${x} 的权重。`, rolloutWords: "rollout 把各层的平均权重相乘，每个词元保留一半作为残差连接（Abnar 与 Zuidema 2020）；它忽略值向量。",
    reachTitle: "每个头的平均注意力距离", reachX: "层", reachY: "平均距离（像素）", reachHow: "各图块到其关注图块的平均距离。只计图块上的权重，并重新归一化为和等于 1；类别词元上的权重另列。",
    distance: "距离（像素）", special: "在类别词元上", entropyShare: "熵 ÷ log(键数)", sees: (h, w, rows, columns) => `模型接收 ${w} × ${h} 像素，分为 ${rows} × ${columns} 个图块。`,
    point: (layer, head, px) => `第 ${layer} 层，头 ${head}：${px} 像素`, allHeads: "每个头的统计", pixel: "像素",
    objects: "检测到的物体", objectsHow: sure => `解码器的每个查询预测一个物体：类别和边界框。只画概率不低于 ${sure} 的框；选择一行查看其查询的权重。`, cellsHow: sure => `每个网格单元最多预测一个物体。只画概率不低于 ${sure} 的框；选择一行跳到它的网格单元。`, object: "物体", ofQuery: n => `查询 ${n}`, objectQuery: (n, label) => label ? `查询 ${n}（${label}）` : `查询 ${n}`, whereQuery: "所选查询的权重", probability: "概率", queryNumber: "查询",
    helpQuery: "把鼠标移到框上，或在列表中选择物体，也可用方向键。",
  },
};
const TALL = 500, WIDE = 760, MOST = 2048, SMALL = 132;
// Where to start: the head whose patch looks farthest away with the most weight; with a class token or object queries the last layer.
function startOf({ attentions, crossed, class_token: classToken }) {
  const last = { attention: attentions.length + crossed.length - 1, head: 0, weight: -1 };
  return classToken || crossed.length ? last : attentions.reduce((best, one, attention) => Array.from(one.link_weights.data).reduce((held, weight, head) => weight > held.weight ? { attention, head, weight } : held, best), last);
}

export async function show(root, lab) {
  const { t } = lab, model = chosenModel(lab, ["image"]);
  if (!model) return void root.append(h("p", { class: "note" }, t("noModels")));
  const { element, input } = modelInput(lab, root, model, changes => lab.set({ ...changes, query: null }, { show: true, replace: false }));
  lab.bar(modelPicker(lab, { modalities: ["image"], onChange: name => lab.set({ query: null, upload: null, example: null, drawing: null, model: name, attention: null, head: null }, { show: true }) }), element ?? "");
  if (!input) return void root.append(h("p", { class: "note" }, t("noInput")));
  const asked = { model: model.name, input }, picture = await lab.request("image/run", asked), [rows, columns] = picture.grid, extra = picture.class_token ? 1 : 0, count = rows * columns + extra;
  // Self-attentions of the image tokens first, then the cross-attentions of a detector's queries.
  const all = [...picture.attentions, ...picture.crossed], start = startOf(picture), attention = clamp(Number(lab.state.attention ?? start.attention), 0, all.length - 1), seen = all[attention], head = clamp(Number(lab.state.head ?? (lab.state.attention === undefined ? start.head : 0)), 0, seen.heads - 1);
  const across = attention >= picture.attentions.length, queries = across ? seen.queries : count, found = picture.prediction.type === "objects" ? picture.prediction.items : [], boxOf = n => found.find(one => one.query === n);
  const mode = across ? "heat" : lab.state.mode ?? "heat", matrix = mode === "rollout" ? (await lab.request("image/rollout", asked)).flow : (await lab.request("heads/map", mapRequest(asked, seen, head))).weights;
  const first = across ? found[0]?.query ?? 0 : extra ? 0 : seen.links.data[2 * head];
  let pinned = clamp(Number(lab.state.query ?? first), 0, queries - 1), query = pinned, strength = Number(lab.state.strength ?? 1);
  const cellName = n => n < extra ? t("classToken") : t("patch", Math.floor((n - extra) / columns) + 1, (n - extra) % columns + 1), named = n => across ? t("objectQuery", n, boxOf(n)?.label) : cellName(n), row = i => matrix.data.subarray(i * count, (i + 1) * count);

  const canvas = h("canvas", { tabindex: 0, role: "application", class: "overlay", "aria-label": t(across ? "whereQuery" : "picture"), onkeydown: press, onpointermove: hover, onpointerleave: () => look(pinned), onclick: event => choose(under(event)) });
  const legendPlace = h("div", { class: "row overlay-foot" }), film = h("div", { class: "film", role: "group", "aria-label": t("film") }), side = h("div", { class: "readout" }), listed = h("div", {});
  const points = picture.attentions.flatMap((one, layer) => Array.from(one.distance.data, (distance, n) => ({ x: layer, y: distance, layer, head: n, label: t("point", layer, n, distance.toFixed(2)) })));
  const chosenHead = (a, b) => lab.set({ attention: a, head: b, ...((a >= picture.attentions.length) === across ? {} : { query: null }) }, { show: true });
  const page = stage(lab, {
    notices: noticeBox(lab, picture.notices, ["image"]),
    tools: [headPicker(lab, all, attention, head, chosenHead), across ? null : bar(t("mode"), ["heat", "arrows", "rollout"].map(one => [one, t(`mode_${one}`)]), mode, value => lab.set({ mode: value === "heat" ? null : value }, { show: true }))],
    picture: h("figure", { class: "overlay-box" }, canvas, legendPlace, found.length ? null : predictionLine(lab, picture.prediction), h("p", { class: "soft help" }, t(across ? "helpQuery" : "help"))),
    side: [h("div", { class: "film-side" }, h("div", {}, h("h3", {}, t("film")), film), side)],
  });
  page.element.classList.add("picture-left");
  root.append(page.element, found.length ? listed : "",
    fold(t("more"), h("p", { class: "soft" }, t("sees", ...picture.size, rows, columns)), fileButtons(lab, () => ({ png: () => canvas.toBlob(blob => saveFile("image.png", blob)), csv: () => saveFile("image.csv", csv(), "text/csv"), npz: () => saveFile("image.npz", npz({ weights: matrix, pixels: picture.pixels })), svg: () => saveFile("image.svg", svgOf(canvas), "image/svg+xml") })),
      cards(h("div", {}, dots(lab, { title: t("reachTitle"), xWords: t("reachX"), yWords: t("reachY"), points, xTicks: picture.attentions.map((_, n) => n), xDomain: [-0.5, picture.attentions.length - 0.5], here: points.findIndex(one => one.layer === attention && one.head === head), onPick: n => chosenHead(points[n].layer, points[n].head) }), h("p", { class: "soft" }, t("reachHow"))),
        numbersTable(lab, { caption: t("allHeads"), columns: [t("layer"), t("head"), t("distance"), t("special"), t("entropyShare")], rows: picture.attentions.flatMap((one, layer) => Array.from(one.distance.data, (distance, n) => [layer, n, distance, one.special.data[n], one.entropy_share.data[n]])) })),
      cautionLine(lab), backendLine(lab, picture)));

  // The picture with the weights of the query over it.
  const source = pixelsOf(picture.pixels), ground = dimmedImage(source), cell = Math.min(TALL / rows, WIDE / columns), high = cell * rows, wide = cell * columns;
  const ends = [wide * Math.min(1, picture.size[1] / (columns * picture.cell[1])), high * Math.min(1, picture.size[0] / (rows * picture.cell[0]))];  // a picture need not fill its last cells
  const boxAt = n => [(n - extra) % columns * cell, Math.floor((n - extra) / columns) * cell, cell, cell];
  function paint() {
    const pen = scaleCanvas(canvas, wide, high), weights = row(query), patches = weights.subarray(extra), most = largest(mode === "rollout" ? patches.filter((_, n) => n + extra !== query) : patches); // of a rollout the patch itself is off the scale
    canvas.style.height = "auto";
    pen.imageSmoothingEnabled = false, pen.drawImage(source, 0, 0, ...ends);
    pen.globalAlpha = strength, pen.drawImage(ground, 0, 0, ...ends), pen.globalAlpha = 1;
    if (mode !== "arrows") {
      pen.globalAlpha = strength, pen.drawImage(lightImage(patches, rows, columns, most), 0, 0, columns, rows, 0, 0, wide, high), pen.globalAlpha = 1;
      if (!across && mode === "heat" && query >= extra) rays(pen, weights);
    } else arrows(pen);
    const mine = one => across && one.query === query;  // drawn last, over the others
    for (const one of found.filter(one => !mine(one) && one.probability >= picture.prediction.sure).concat(found.filter(mine))) framed(pen, one);
    if (!across && query >= extra) outline(pen, boxAt(query));
    fill(legendPlace, lightLegend(lab, most, t("weight")), extra ? button([t("classToken"), " ", h("span", { class: "digits" }, formatShort(weights[0]))], () => choose(0), { class: "small", "aria-pressed": query === 0 && !across, title: t("onClass", formatExact(weights[0])) }) : null, strengthSlider(t("strength"), strength, value => { strength = value, lab.set({ strength: value === 1 ? null : value }), paint(); }), h("span", { class: "soft" }, t("query", named(query))));
  }
  const outline = (pen, box) => { pen.lineWidth = 5, pen.strokeStyle = "#fff", pen.strokeRect(...box), pen.lineWidth = 2.5, pen.strokeStyle = "#b04e0a", pen.strokeRect(...box); };
  // The box of a detected object with its class; the box of the chosen query is highlighted.
  function framed(pen, one) {
    const [left, top, right, bottom] = one.box, [w, tall] = ends, mine = across && one.query === query, words = `${one.label} ${formatPercent(one.probability, 0)}`, box = [left * w, top * tall, (right - left) * w, (bottom - top) * tall];
    if (mine) outline(pen, box); else pen.strokeStyle = "#fff", pen.lineWidth = 1.5, pen.strokeRect(...box);
    pen.font = "12px sans-serif", pen.textAlign = "left";
    const y = Math.max(13, top * tall - 4), size = pen.measureText(words).width;
    pen.fillStyle = mine ? "#b04e0a" : "rgb(20 22 31 / 0.75)", pen.fillRect(left * w, y - 12, size + 6, 15), pen.fillStyle = "#fff", pen.fillText(words, left * w + 3, y);
  }
  const centre = n => { const [x, y, w, tall] = n < extra ? [0, 0, 0, 0] : boxAt(n); return [x + w / 2, y + tall / 2]; };
  // A curve from the query to each patch that gets a tenth of its weight.
  function rays(pen, weights) {
    const [x, y] = centre(query);
    for (const { index, value } of topEntries(weights, 6, key => key < extra || key === query || weights[key] < 0.1)) {
      const [to, down] = centre(index), bend = [(x + to) / 2 + (y - down) * 0.14, (y + down) / 2 + (to - x) * 0.14];
      for (const [colour, more] of [["rgb(11 13 22 / 0.55)", 3], ["#ff9d4d", 0]]) pen.strokeStyle = colour, pen.lineWidth = 1.5 + 5 * value + more, pen.lineCap = "round", pen.beginPath(), pen.moveTo(x, y), pen.quadraticCurveTo(...bend, to, down), pen.stroke();
    }
  }
  function arrows(pen) {
    for (let n = extra; n < count; n++) {
      const [best] = topEntries(row(n), 1, key => key < extra), [x, y] = centre(n), [to, down] = centre(best.index);
      pen.strokeStyle = pen.fillStyle = n === query ? "#fff" : "#ff9d4d", pen.globalAlpha = n === query ? 1 : 0.12 + 0.6 * best.value, pen.lineWidth = 0.8 + 2.4 * best.value;
      pen.beginPath(), best.index === n ? pen.arc(x, y, cell / 5, 0, 7) : (pen.moveTo(x, y), pen.lineTo(to, down)), pen.stroke();
      pen.beginPath(), pen.arc(to, down, 3, 0, 7), pen.fill();
    }
    pen.globalAlpha = 1;
  }
  function tell(spoken) {
    const weights = row(query), best = topEntries(weights, 6), sum = weights.reduce((total, x) => total + x, 0), half = keysForHalf(weights);
    page.look(mode === "rollout" ? t("lookRollout", named(query), half, count) : t("look", named(query), cellName(best[0].index), formatPercent(best[0].value, 0), half, count, seen.layer, head));
    fill(side, rankingTable(t("topKeys", named(query)), best.map(({ index, value }) => ({ name: cellName(index), value, own: true, ...(across ? {} : { onPick: () => choose(index) }) }))), h("p", { class: "soft row-sum", title: formatExact(sum) }, t("sum", sum.toFixed(3))), mode === "rollout" ? h("p", { class: "soft" }, t("rolloutWords")) : null);
    if (found.length) fill(listed, h("h3", {}, t("objects")), h("p", { class: "soft" }, t(picture.queries ? "objectsHow" : "cellsHow", picture.prediction.sure)), numbersTable(lab, { caption: "", columns: [t("object"), t("probability"), t(picture.queries ? "queryNumber" : "cell")], rows: found.map(one => [h("span", { translate: "no" }, one.label), one.probability, h("span", {}, picture.queries ? t("ofQuery", one.query) : cellName(one.query + extra))]), ...(across || !picture.queries ? { onRow: n => choose(found[n].query) } : {}) }));
    if (spoken) lab.announce(`${named(query)}: ${cellName(best[0].index)} ${formatExact(best[0].value)}`);
  }
  // Every head at the same query, as small overlays.
  const askFilm = lab.latestRequest();
  const showFilmSoon = lab.debounce(() => showFilm(), 90);
  async function showFilm() {
    const answer = await askFilm("image/query", { ...asked, query, crossed: across }).catch(() => null), layers = across ? picture.crossed : picture.attentions, offset = across ? picture.attentions.length : 0;
    if (!answer) return;
    film.style.setProperty("--heads", Math.max(...layers.map(one => one.heads)));
    fill(film, layers.map((one, n) => h("div", { class: "film-row" }, h("span", { class: "at" }, t("layerShort", one.layer)), Array.from({ length: one.heads }, (_, m) => {
      const weights = answer.weights[n].data.subarray(m * count, (m + 1) * count), patches = weights.subarray(extra), small = h("canvas", { "aria-hidden": "true" }), pen = scaleCanvas(small, SMALL * columns / Math.max(rows, columns), SMALL * rows / Math.max(rows, columns)), here = n + offset === attention && m === head;
      const size = [SMALL * columns / Math.max(rows, columns), SMALL * rows / Math.max(rows, columns)];
      pen.imageSmoothingEnabled = false, pen.drawImage(ground, 0, 0, ...size), pen.drawImage(lightImage(patches, rows, columns, largest(patches)), 0, 0, columns, rows, 0, 0, ...size);
      small.style.width = "100%", small.style.height = "auto";
      return h("button", { type: "button", "aria-pressed": here, "aria-label": t("filmHead", one.layer, m, formatShort(largest(patches))), title: t("filmHead", one.layer, m, formatShort(largest(patches))), onclick: () => chosenHead(n + offset, m) }, small);
    }))));
  }
  function look(n) { if (n === null || n === query) return; query = n, paint(), tell(false), showFilmSoon(); }
  function choose(n) { if (n === null) return; pinned = query = clamp(n, 0, queries - 1), lab.set({ query }), paint(), tell(true), showFilmSoon.cancel(), showFilm(); }
  function press(event) {
    const down = across ? 1 : columns, to = { ArrowLeft: query - 1, ArrowRight: query + 1, ArrowUp: query - down, ArrowDown: query < extra && !across ? extra : query + down, Home: 0, End: queries - 1 }[event.key];
    if (to !== undefined) event.preventDefault(), to >= 0 && to < queries ? choose(to) : event.key === "ArrowUp" && choose(0);
  }
  // The patch, or the query of the smallest box, under the pointer.
  function under(event) {
    const edge = canvas.getBoundingClientRect(), ratio = wide / edge.width, x = (event.clientX - edge.left) * ratio, y = (event.clientY - edge.top) * ratio;
    if (!across) return extra + clamp(Math.floor(y / cell), 0, rows - 1) * columns + clamp(Math.floor(x / cell), 0, columns - 1);
    const area = ([left, top, right, bottom]) => (right - left) * (bottom - top), within = found.filter(({ box: [left, top, right, bottom] }) => x >= left * ends[0] && x <= right * ends[0] && y >= top * ends[1] && y <= bottom * ends[1]).sort((a, b) => area(a.box) - area(b.box));
    return within[0]?.query ?? null;
  }
  function hover(event) { if (event.pointerType === "mouse") look(under(event) ?? pinned); }
  const csv = () => [`query,key,weight\n`, Array.from({ length: queries }, (_, i) => Array.from(row(i), (x, j) => `${i},${j},${formatExact(x)}`).join("\n")).join("\n"), "\n"];
  paint(), tell(false), await showFilm();
  lab.expose({ read: () => ({ query, pinned, count, weights: Array.from(row(query)), grid: picture.grid, mode, across, found }), cell: (i, j) => ({ value: row(i)[j], row: named(i), column: cellName(j) }), keep: () => toKeep(asked, all, picture.attentions.length, { false: count, true: picture.queries }) });
}
const mapRequest = (asked, attention, head) => ({ ...asked, attention: attention.name, head, most: MOST });
// What a saved view holds besides what was shown: every head, every query, and rollout.
function toKeep(asked, attentions, own, queries) {
  const maps = attentions.flatMap(one => Array.from({ length: one.heads }, (_, head) => ({ path: "heads/map", body: mapRequest(asked, one, head) })));
  const films = [false, ...(attentions.length > own ? [true] : [])].flatMap(crossed => Array.from({ length: queries[crossed] }, (_, query) => ({ path: "image/query", body: { ...asked, query, crossed } })));
  return [{ path: "image/rollout", body: asked }, ...maps, ...films];
}
const svgOf = canvas => `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${canvas.width} ${canvas.height}"><image width="${canvas.width}" height="${canvas.height}" href="${canvas.toDataURL()}"/></svg>`;
