// Image: where a patch looks. The picture is cut into patches; each is a token, and the class token is a cell of its own.
import { css, legend, shader } from "lab/colour.js";
import { bar, button, chosenModel, fileBox, fileButtons, headPicker, honestLine, modelPicker, predictionLine, ranLine, upload } from "lab/controls.js";
import { clamp, exact, fill, h, largest, sharpen, style } from "lab/dom.js";
import { npz, saveFile } from "lab/export.js";
import { dots, numbersTable } from "lab/table.js";

export const name = "image";
export const text = {
  en: {
    title: "Image", lead: "A picture is cut into patches, and each patch looks at all others. Draw a digit or drop a picture, then click a patch to see where it looks.",
    draw: "Draw here", clear: "Clear", read: "Read the drawing", drop: "Drop or choose a picture (PNG, JPEG)", padLabel: "A field to draw on with the pointer",
    picture: "Where the chosen patch looks", mode: "Show", mode_heat: "one patch", mode_arrows: "strongest of every patch", mode_rollout: "all layers (rollout)",
    classToken: "class token", patch: (row, column) => `patch ${row}, ${column}`, query: name => `Query: ${name}`, outlined: "left the picture, the patch that looks outlined; right its weights on the patches",
    help: "Click a patch or the class token, or move with the arrow keys.", looksMost: name => `${name} looks most at`, cell: "cell", weight: "weight", sum: x => `This row sums to ${x}.`,
    onClass: x => `${x} of the weight is on the class token.`, rolloutWords: "Rollout multiplies the layers' mean weights, half of each token kept (Abnar and Zuidema 2020); it knows nothing of values.",
    reachTitle: "How far each head looks", reachX: "layer", reachY: "mean distance (pixels)", reachHow: "Mean over patches of the distance to the patches they look at, weights on patches made to sum to 1; weight on the class token is told apart.",
    distance: "distance (pixels)", special: "on the class token", entropyShare: "entropy ÷ log(keys)", sees: (h, w, rows, columns) => `The model sees ${w} × ${h} pixels as ${rows} × ${columns} patches.`,
    point: (layer, head, px) => `layer ${layer}, head ${head}: ${px} pixels`, allHeads: "All heads in numbers", pixel: "pixels",
  },
  zh: {
    title: "图像", lead: "一幅图被切成小块，每一块都看其他所有块。画一个数字或拖入一张图，再点击一块，看它看向哪里。",
    draw: "在此作画", clear: "清空", read: "识别这幅画", drop: "拖入或选择一张图（PNG、JPEG）", padLabel: "可用指针作画的画板",
    picture: "所选图块看向哪里", mode: "显示", mode_heat: "一块", mode_arrows: "每块最强的一处", mode_rollout: "所有层（rollout）",
    classToken: "类别词元", patch: (row, column) => `图块 ${row}, ${column}`, query: name => `查询：${name}`, outlined: "左边是图，在看的图块加了框；右边是它给各块的权重",
    help: "点击一块或类别词元，也可用方向键移动。", looksMost: name => `${name}最常看`, cell: "格", weight: "权重", sum: x => `本行之和为 ${x}。`,
    onClass: x => `其中 ${x} 的权重在类别词元上。`, rolloutWords: "rollout 把各层的平均权重相乘，每个词元保留一半自身（Abnar 与 Zuidema 2020）；它不考虑值向量。",
    reachTitle: "每个头看多远", reachX: "层", reachY: "平均距离（像素）", reachHow: "各图块到所看图块的平均距离，只计图块上的权重并使其和为 1；类别词元上的权重另列。",
    distance: "距离（像素）", special: "在类别词元上", entropyShare: "熵 ÷ log(键数)", sees: (h, w, rows, columns) => `模型看到的是 ${w} × ${h} 像素，分为 ${rows} × ${columns} 块。`,
    point: (layer, head, px) => `第 ${layer} 层，头 ${head}：${px} 像素`, allHeads: "所有头的数值", pixel: "像素",
  },
};
const SIDE = 330, GAP = 18, PAD = 168;

export async function show(root, lab) {
  const { t } = lab, model = chosenModel(lab, ["image"]);
  if (!model) return void root.append(h("p", { class: "note" }, t("noModels")));
  const fresh = { query: null, upload: null, example: null, drawing: null }, open = changes => lab.set({ ...fresh, ...changes }, { show: true, replace: false });
  const files = model.examples ?? [], { upload: sent, drawing } = lab.state, example = sent || drawing ? null : lab.state.example ?? files[0];
  const opened = file => lab.attempt(async () => open({ upload: (await upload(file)).upload }), root);
  root.append(h("div", { class: "input" }, h("div", { class: "row" }, modelPicker(lab, { kinds: ["image"], onChange: name => lab.set({ ...fresh, model: name, attention: null, head: null }, { show: true }) })),
    lab.exported ? null : h("div", { class: "row" }, drawingPad(lab, drawing, image => open({ drawing: image })), fileBox(lab, "image/png,image/jpeg", t("drop"), opened),
      files.length ? h("div", { class: "chips" }, h("span", { class: "soft" }, t("examples")), files.map(file => button(file, () => open({ example: file }), { class: "chip", translate: "no" }))) : null)));
  const input = sent ? { upload: sent } : drawing ? { base64: drawing } : example ? { example } : null;
  if (!input) return;
  const asked = { model: model.name, input }, picture = await lab.ask("image/run", asked), [rows, columns] = picture.grid, extra = picture.class_token ? 1 : 0, count = rows * columns + extra;
  const attention = clamp(Number(lab.state.attention ?? picture.attentions.length - 1), 0, picture.attentions.length - 1), seen = picture.attentions[attention], head = clamp(Number(lab.state.head ?? 0), 0, seen.heads - 1);
  const mode = lab.state.mode ?? "heat", held = mode === "rollout" ? (await lab.ask("image/rollout", asked)).flow : (await lab.ask("heads/map", { ...asked, attention: seen.name, head })).weights;
  let query = clamp(Number(lab.state.query ?? 0), 0, count - 1);
  const named = n => n < extra ? t("classToken") : t("patch", Math.floor((n - extra) / columns) + 1, (n - extra) % columns + 1), row = i => held.data.subarray(i * count, (i + 1) * count);

  const canvas = h("canvas", { tabindex: 0, role: "application", "aria-label": t("picture"), onkeydown: press, onclick: point }), words = h("div", {}), side = h("div", { class: "readout" });
  const points = picture.attentions.flatMap((one, layer) => Array.from(one.distance.data, (distance, n) => ({ x: layer, y: distance, layer, head: n, label: t("point", layer, n, distance.toFixed(2)) })));
  root.append(predictionLine(lab, picture.prediction) ?? "", h("p", { class: "soft" }, t("sees", ...picture.size, rows, columns)),
    h("div", { class: "row pickers" }, headPicker(lab, picture.attentions, attention, head, (a, b) => lab.set({ attention: a, head: b }, { show: true })), bar(t("mode"), ["heat", "arrows", "rollout"].map(one => [one, t(`mode_${one}`)]), mode, value => lab.set({ mode: value }, { show: true }))),
    h("div", { class: "columns wide-left" },
      h("figure", { class: "card" }, h("div", { class: "map-head" }, h("h3", {}, t("picture")), fileButtons(lab, () => ({ png: () => canvas.toBlob(blob => saveFile("image.png", blob)), csv: () => saveFile("image.csv", csv(), "text/csv"), npz: () => saveFile("image.npz", npz({ weights: held, pixels: picture.pixels })), svg: () => saveFile("image.svg", svgOf(canvas), "image/svg+xml") }))),
        legend(lab, { kind: "weights", domain: [0, 1], scale: "root", what: t("weight"), masked: false }), canvas, words, h("p", { class: "soft help" }, t("help"))), side),
    h("div", { class: "columns" }, h("div", { class: "card" }, dots(lab, { title: t("reachTitle"), xWords: t("reachX"), yWords: t("reachY"), points, xTicks: picture.attentions.map((_, n) => n), xDomain: [-0.5, picture.attentions.length - 0.5], here: points.findIndex(one => one.layer === attention && one.head === head), onPick: n => lab.set({ attention: points[n].layer, head: points[n].head }, { show: true }) }), h("p", { class: "soft" }, t("reachHow"))),
      h("div", { class: "card" }, numbersTable(lab, { caption: t("allHeads"), columns: [t("layer"), t("head"), t("distance"), t("special"), t("entropyShare")], rows: picture.attentions.flatMap((one, layer) => Array.from(one.distance.data, (distance, n) => [layer, n, distance, one.special.data[n], one.entropy_share.data[n]])) }))),
    honestLine(lab), ranLine(lab, picture));

  // Left the picture, right the weights in their pure colours; the class token is a cell of its own before the weights.
  const source = pixelsOf(picture.pixels), cell = SIDE / Math.max(rows, columns), high = cell * rows, across = cell * columns, start = across + GAP + (extra ? cell + GAP : 0), shade = shader("weights", [0, 1], "root");
  const inPicture = n => [(n - extra) % columns * cell, Math.floor((n - extra) / columns) * cell, cell, cell], inWeights = n => n < extra ? [across + GAP, 0, cell, cell] : [start + (n - extra) % columns * cell, Math.floor((n - extra) / columns) * cell, cell, cell];
  function paint() {
    const pen = sharpen(canvas, start + across, high), weights = row(query), ruled = n => pen.strokeRect(...inWeights(n));
    canvas.style.height = "auto";
    pen.imageSmoothingEnabled = false, pen.drawImage(source, 0, 0, across, high);
    for (let n = 0; n < count; n++) pen.fillStyle = css(shade(weights[n])), pen.fillRect(...inWeights(n));
    pen.strokeStyle = style("--line"), pen.lineWidth = 1;
    for (let n = 0; n < count; n++) ruled(n);
    if (mode === "arrows") arrows(pen, n => n < extra ? [across + GAP, 0, cell, cell] : inPicture(n));
    pen.globalAlpha = 1, pen.strokeStyle = style("--accent"), pen.lineWidth = 3, ruled(query);
    if (query >= extra) pen.strokeRect(...inPicture(query));
    if (extra) pen.fillStyle = style("--soft"), pen.font = "11px sans-serif", pen.textAlign = "center", pen.fillText("CLS", across + GAP + cell / 2, cell + 13);
  }
  function arrows(pen, box) {
    const middle = n => { const [x, y, w, tall] = box(n); return [x + w / 2, y + tall / 2]; };
    for (let n = 0; n < count; n++) {
      const [best] = largest(row(n), 1), [x, y] = middle(n), [to, down] = middle(best.index);
      pen.strokeStyle = pen.fillStyle = style("--accent"), pen.globalAlpha = 0.25 + 0.75 * Math.sqrt(best.value), pen.lineWidth = 1 + 4 * best.value;
      pen.beginPath(), best.index === n ? pen.arc(x, y - 7, 6, 0, 7) : (pen.moveTo(x, y), pen.lineTo(to, down)), pen.stroke();
      pen.beginPath(), pen.arc(to, down, 3, 0, 7), pen.fill();
    }
  }
  function tell(spoken) {
    const weights = row(query), best = largest(weights, 8), sum = weights.reduce((total, x) => total + x, 0);
    fill(words, h("p", {}, t("query", named(query)), " · ", h("span", { class: "soft" }, t("outlined"))), mode === "rollout" ? h("p", { class: "soft" }, t("rolloutWords")) : null);
    fill(side, h("p", { class: "row-sum" }, t("sum", sum.toFixed(6)), " ", extra ? t("onClass", weights[0].toFixed(4)) : null), numbersTable(lab, { caption: t("looksMost", named(query)), columns: [t("cell"), t("weight")], rows: best.map(({ index, value }) => [h("span", {}, named(index)), value]), onRow: n => choose(best[n].index) }));
    if (spoken) lab.say_aloud(`${named(query)}: ${named(best[0].index)} ${exact(best[0].value)}`);
  }
  function choose(n) { query = clamp(n, 0, count - 1), lab.set({ query }), paint(), tell(true); }
  function press(event) {
    const to = { ArrowLeft: query - 1, ArrowRight: query + 1, ArrowUp: query - columns, ArrowDown: query < extra ? extra : query + columns, Home: 0, End: count - 1 }[event.key];
    if (to !== undefined) event.preventDefault(), to >= 0 && to < count ? choose(to) : event.key === "ArrowUp" && choose(0);
  }
  function point(event) {
    const edge = canvas.getBoundingClientRect(), ratio = (start + across) / edge.width, x = (event.clientX - edge.left) * ratio, y = (event.clientY - edge.top) * ratio;
    const from = x <= across ? 0 : start;
    if (x > across && x < start) return extra && y < cell ? choose(0) : undefined;
    choose(extra + clamp(Math.floor(y / cell), 0, rows - 1) * columns + clamp(Math.floor((x - from) / cell), 0, columns - 1));
  }
  const csv = () => [`query,key,weight\n`, Array.from({ length: count }, (_, i) => Array.from(row(i), (x, j) => `${i},${j},${exact(x)}`).join("\n")).join("\n"), "\n"];
  canvas.style.maxWidth = "100%";
  paint(), tell(false);
  lab.expose({ read: () => ({ query, count, weights: Array.from(row(query)), grid: picture.grid, mode }), cell: (i, j) => ({ value: row(i)[j], row: named(i), column: named(j) }) });
}

// The picture that the model sees, one or three channels of bytes.
function pixelsOf({ shape: [channels, height, width], data }) {
  const canvas = h("canvas", { width, height }), image = new ImageData(width, height), size = width * height;
  for (let n = 0; n < size; n++) for (let part = 0; part < 4; part++) image.data[4 * n + part] = part === 3 ? 255 : data[(channels >= 3 ? part : 0) * size + n];
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}
const svgOf = canvas => `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${canvas.width} ${canvas.height}"><image width="${canvas.width}" height="${canvas.height}" href="${canvas.toDataURL()}"/></svg>`;

// A black field to draw on in white; the drawing is sent as a small picture, so that the address can hold it.
function drawingPad(lab, drawn, onDone) {
  const { t } = lab, canvas = h("canvas", { width: PAD, height: PAD, class: "pad", role: "img", "aria-label": t("padLabel") }), pen = canvas.getContext("2d");
  let last = null;
  const clear = () => { pen.fillStyle = "#000", pen.fillRect(0, 0, PAD, PAD); };
  const at = event => { const edge = canvas.getBoundingClientRect(); return [(event.clientX - edge.left) * PAD / edge.width, (event.clientY - edge.top) * PAD / edge.height]; };
  const line = to => { pen.strokeStyle = "#fff", pen.lineWidth = 17, pen.lineCap = pen.lineJoin = "round", pen.beginPath(), pen.moveTo(...last), pen.lineTo(...to), pen.stroke(), last = to; };
  canvas.addEventListener("pointerdown", event => { canvas.setPointerCapture(event.pointerId), last = at(event), line(last); });
  canvas.addEventListener("pointermove", event => last && line(at(event)));
  canvas.addEventListener("pointerup", () => { last = null; });
  clear();
  if (drawn) { const image = new Image(); image.onload = () => pen.drawImage(image, 0, 0, PAD, PAD), image.src = `data:image/png;base64,${drawn}`; }
  const send = () => { const small = h("canvas", { width: 32, height: 32 }); small.getContext("2d").drawImage(canvas, 0, 0, 32, 32), onDone(small.toDataURL("image/png").split(",")[1]); };
  return h("div", { class: "field" }, h("span", {}, t("draw")), canvas, h("div", { class: "row" }, button(t("read"), send, { class: "small" }), button(t("clear"), clear, { class: "small" })));
}
