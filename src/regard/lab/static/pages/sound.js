// Audio: weights between frames, with seconds on the axes. Recordings never leave this machine.
import { cssColour, legend, shader } from "lab/colour.js";
import { chosenModel, headPicker, cautionLine, modelPicker, noticeBox, predictionLine, backendLine } from "lab/controls.js";
import { clamp, formatExact, fill, h, scaleCanvas, cssVariable } from "lab/dom.js";
import { modelInput } from "lab/inputs.js";
import { heatMap } from "lab/heat_map.js";
import { dots, numbersTable } from "lab/charts.js";

export const name = "sound";
export const text = {
  en: {
    title: "Audio", lead: "Audio is divided into short frames, and each frame attends to all frames. Record a word or drop an audio file; both axes of the map are seconds.",
    heard: (seconds, count, each) => `${seconds} s, ${count} tokens of ${each} s each.`, wave: "The recording", frames: "Model input: spectrogram, low frequencies at the bottom", energy: "energy, normalised (mean 0, deviation 1)", stripWords: "From top to bottom: loudness, the spectrogram, and the weights of the outlined frame in the colours of the map below. Click to choose a frame.",
    map: "Weights between frames", mapWords: "Rows = queries, columns = keys, both in seconds; each row sums to 1.", seconds: "seconds", apart: "distance", aside: x => `${x} s`,
    reachTitle: "Mean attention distance per head", reachX: "layer", reachY: "mean distance (seconds)", point: (layer, head, s) => `layer ${layer}, head ${head}: ${s} s`, allHeads: "Statistics of every head", distance: "distance (s)", entropyShare: "entropy ÷ log(keys)", chosen: s => `Largest weights of the frame at ${s}:`, distanceHow: "Mean over the frames of the recording of the distance to the frames they attend to. The weight on the padding is listed separately.", special: "on the padding",
    silence: seconds => `This model expects a fixed length: ${seconds} s of silence follow the recording as padding and are not drawn. The weight on the padding is listed for each frame.`, toAlignment: "See the seconds behind each output token on the page Alignment", outside: "weight on the padding", mapWordsSilence: "Rows = queries, columns = keys, both in seconds; each row sums to 1 together with its weight on the padding after the recording.", pooledWords: "There are too many frames to draw: each cell is the mean weight between groups of neighbouring frames.",
  },
  zh: {
    title: "音频", lead: "音频被切成短帧，每一帧关注所有帧。录一个词或拖入音频文件；权重图的两个轴都是秒。",
    heard: (seconds, count, each) => `共 ${seconds} 秒，${count} 个词元，每个 ${each} 秒。`, wave: "录音", frames: "模型输入：频谱图，低频在下", energy: "归一化的能量（均值 0，标准差 1）", stripWords: "从上到下：响度、频谱图、加框帧的权重（颜色同下图）。点击可选择一帧。",
    map: "帧与帧之间的权重", mapWords: "行 = 查询，列 = 键，都以秒计；每行之和为 1。", seconds: "秒", apart: "距离", aside: x => `${x} 秒`,
    reachTitle: "每个头的平均注意力距离", reachX: "层", reachY: "平均距离（秒）", point: (layer, head, s) => `第 ${layer} 层，头 ${head}：${s} 秒`, allHeads: "每个头的统计", distance: "距离（秒）", entropyShare: "熵 ÷ log(键数)", chosen: s => `${s} 处的帧，权重最大的是：`, distanceHow: "录音各帧到其关注帧的平均距离；填充部分的权重另列。", special: "填充部分",
    silence: seconds => `此模型要求固定长度：录音之后用 ${seconds} 秒静音填充，图中未画出。每帧在填充部分的权重单独列出。`, toAlignment: "到“对齐”页查看每个输出词元对应哪几秒", outside: "填充部分的权重", mapWordsSilence: "行 = 查询，列 = 键，都以秒计；每行加上录音之后填充部分的权重，和为 1。", pooledWords: "帧太多，无法逐一画出：每格是相邻若干帧之间的平均权重。",
  },
};
const WIDE = 900;

export async function show(root, lab) {
  const { t } = lab, model = chosenModel(lab, ["sound"]);
  if (!model) return void root.append(h("p", { class: "note" }, t("noModels")));
  const { element, input } = modelInput(lab, root, model, changes => lab.set({ ...changes, query: null }, { show: true, replace: false }));
  root.append(h("div", { class: "input" }, h("div", { class: "row" }, modelPicker(lab, { modalities: ["sound"], onChange: name => lab.set({ model: name, attention: null, head: null, query: null }, { show: true }) })), element ?? ""));
  const asked = { model: model.name, input }, heard = await lab.request("sound/run", asked), count = heard.heard, each = heard.seconds_per_token, after = heard.tokens.length - count;
  const attention = clamp(Number(lab.state.attention ?? 0), 0, heard.attentions.length - 1), seen = heard.attentions[attention], head = clamp(Number(lab.state.head ?? 0), 0, seen.heads - 1);
  const region = after ? { rows: [0, count], keys: [0, count] } : {}, { weights, masked, outside, pooled } = await lab.request("heads/map", { ...asked, attention: seen.name, head, ...region });
  const cells = weights.shape[0], wide = count / cells * each, at = n => `${(n * wide).toFixed(2)} s`;
  let query = clamp(Number(lab.state.query ?? Math.floor(cells / 2)), 0, cells - 1);
  const strip = h("canvas", { "aria-hidden": "true", class: "sound-strip" }), words = h("p", { class: "soft" });
  const map = heatMap(lab, { title: t("map"), values: weights.data, masked: masked?.data ?? null, shape: weights.shape, rowNames: at, columnNames: at, selected: [query, query], orientation: t(after ? "mapWordsSilence" : "mapWords"), name: "sound", height: 460,
    facts: (i, j) => [[t("apart"), t("aside", (Math.abs(i - j) * wide).toFixed(3))], ...(after && outside ? [[t("outside"), formatExact(outside.data[i])]] : [])], onCell: (i, j, moved) => { if (moved) query = i, lab.set({ query }), paint(); } });
  const points = heard.attentions.flatMap((one, layer) => Array.from(one.distance.data, (distance, n) => ({ x: layer, y: distance, layer, head: n, label: t("point", layer, n, distance.toFixed(3)) })));
  root.append(noticeBox(lab, heard.notices, ["sound"]) ?? "", predictionLine(lab, heard.prediction) ?? "", heard.prediction.type === "text" && !heard.prediction.items.length ? h("p", { translate: "no" }, heard.prediction.text) : "", model.generates ? h("p", {}, h("a", { href: `#alignment?${new URLSearchParams(Object.fromEntries(["upload", "example", "tone", "lang"].map(key => [key, lab.state[key]]).filter(([, value]) => value !== undefined).concat([["model", model.name]])))}` }, t("toAlignment"))) : "", h("p", { class: "soft" }, t("heard", heard.seconds.toFixed(2), count, each.toFixed(3)), after ? [" ", t("silence", (after * each).toFixed(1))] : null, pooled ? [" ", t("pooledWords")] : null),
    h("figure", { class: "card" }, h("h3", {}, t("frames")), legend(lab, { kind: "scores", domain: [-3, 3], scale: "linear", what: t("energy"), masked: false }), strip, words, h("p", { class: "soft" }, t("stripWords"))), h("div", { class: "row pickers" }, headPicker(lab, heard.attentions, attention, head, (a, b) => lab.set({ attention: a, head: b }, { show: true }))), map.element,
    h("div", { class: "columns" }, h("div", { class: "card" }, dots(lab, { title: t("reachTitle"), xWords: t("reachX"), yWords: t("reachY"), points, xTicks: heard.attentions.map((_, n) => n), xDomain: [-0.5, heard.attentions.length - 0.5], here: points.findIndex(one => one.layer === attention && one.head === head), onPick: n => lab.set({ attention: points[n].layer, head: points[n].head }, { show: true }) })),
      h("div", { class: "card" }, numbersTable(lab, { caption: t("allHeads"), columns: [t("layer"), t("head"), t("distance"), ...(after ? [t("special")] : []), t("entropyShare")], rows: heard.attentions.flatMap((one, layer) => Array.from(one.distance.data, (distance, n) => [layer, n, distance, ...(after ? [one.special.data[n]] : []), one.entropy_share.data[n]])) }), after ? h("p", { class: "soft" }, t("distanceHow")) : null)),
    cautionLine(lab), backendLine(lab, heard));

  // Loudness, the spectrogram and the weights of the chosen frame, on one time axis.
  function paint() {
    const pen = scaleCanvas(strip, WIDE, 208), [frames, bins] = heard.frames.shape, wave = heard.wave.data, most = Math.max(...wave, 1e-6), across = WIDE / cells;
    pen.fillStyle = cssVariable("--soft");
    for (let n = 0; n < wave.length; n++) { const tall = 26 * wave[n] / most; pen.fillRect(n * WIDE / wave.length, 28 - tall, Math.max(1, WIDE / wave.length), Math.max(0.5, 2 * tall)); }
    pen.imageSmoothingEnabled = false, pen.drawImage(spectrum(heard.frames), 0, 60, WIDE, 100);
    const shade = shader("weights", [0, 1], "root"), row = weights.data.subarray(query * cells, (query + 1) * cells);
    for (let n = 0; n < cells; n++) pen.fillStyle = cssColour(shade(row[n])), pen.fillRect(n * across, 164, across + 0.5, 18);
    pen.strokeStyle = cssVariable("--accent"), pen.lineWidth = 2, pen.strokeRect(query * across, 60, Math.max(2, across), 122);
    pen.fillStyle = cssVariable("--soft"), pen.font = "11px sans-serif", pen.textAlign = "center";
    for (let n = 0, step = Math.max(1, Math.ceil(heard.seconds * 10 / 8)); n <= heard.seconds * 10; n += step) pen.fillText(`${(n / 10).toFixed(1)} s`, clamp(n / 10 / heard.seconds * WIDE, 14, WIDE - 14), 200);
    fill(words, t("chosen", at(query)), " ", top(row));
  }
  const top = row => Array.from(row, (x, n) => [x, n]).sort((a, b) => b[0] - a[0]).slice(0, 4).map(([x, n]) => `${at(n)} (${x.toFixed(3)})`).join(", ");
  strip.addEventListener("click", event => { const edge = strip.getBoundingClientRect(); map.pin(clamp(Math.floor((event.clientX - edge.left) / edge.width * cells), 0, cells - 1)); });
  paint(), strip.style.width = "100%", strip.style.height = "auto";
  lab.expose({ read: () => ({ query, count, seconds: heard.seconds, each, outside: outside && Array.from(outside.data) }) });
}
function spectrum({ shape: [frames, bins], data }) {
  const canvas = h("canvas", { width: frames, height: bins }), image = new ImageData(frames, bins), shade = shader("scores", [-3, 3]);
  for (let f = 0; f < frames; f++) for (let b = 0; b < bins; b++) image.data.set([...shade(data[f * bins + b]), 255], 4 * ((bins - 1 - b) * frames + f));
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}
