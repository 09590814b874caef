// Audio: the waveform and the spectrogram with the weights of a frame, or of a letter of the output, painted over them. Recordings never leave this machine.
import { button, chosenModel, headPicker, cautionLine, modelPicker, noticeBox, predictionLine, backendLine } from "lab/controls.js";
import { clamp, formatExact, formatShort, numeral, fill, h, s, scaleCanvas, topEntries, visibleText, cssVariable } from "lab/dom.js";
import { modelInput } from "lab/inputs.js";
import { heatMap } from "lab/heat_map.js";
import { keysForHalf, largest, lightImage, lightLegend, lightTable, strengthSlider } from "lab/overlay.js";
import { dots, numbersTable } from "lab/charts.js";
import { rankingTable } from "lab/ranking.js";
import { fold, stage } from "lab/stage.js";

export const name = "sound";
export const text = {
  en: {
    title: "Audio", lead: "Audio is divided into short frames, and each frame attends to all frames. Move over the recording: what the frame under the pointer does not attend to becomes dark. Click to keep a frame, play the recording to follow it. Record a word or drop an audio file of your own.",
    look: (time, part, total, layer, head, best) => `in layer ${layer}, head ${head}, the frame at ${time} attends mostly to ${best}; half of its weight is on ${part} s of ${total} s.`, lookLetter: (letter, part, total, layer, head, best) => `for “${letter}” layer ${layer}, head ${head} attends mostly to ${best}; half of the weight is on ${part} s of ${total} s.`,
    strip: "Waveform and spectrogram with the weights of the chosen frame", film: "This query in every head (layer.head)", filmHead: (layer, head, most) => `layer ${layer}, head ${head}, largest weight ${most}`, strength: "overlay", more: "More about this recording: distances, every head", help: "Top: waveform. Below: spectrogram, low frequencies at the bottom. Space plays, the arrow keys move.", sum: x => `This row sums to ${x}.`,
    written: "The output: choose a letter to see what the model attended to", chosenLetter: letter => `Largest weights of “${letter}”`, mapWordsLetters: "Rows = tokens of the output, columns = seconds of the recording; each row sums to 1.", noAudio: "This model reads frames; there is no recording to play.",
    heard: (seconds, count, each) => `${seconds} s, ${count} tokens of ${each} s each.`,
    map: "Weights between frames", mapWords: "Rows = queries, columns = keys, both in seconds; each row sums to 1.", seconds: "seconds", apart: "distance", aside: x => `${x} s`,
    reachTitle: "Mean attention distance per head", reachX: "layer", reachY: "mean distance (seconds)", point: (layer, head, s) => `layer ${layer}, head ${head}: ${s} s`, allHeads: "Statistics of every head", distance: "distance (s)", entropyShare: "entropy ÷ log(keys)", chosen: s => `Largest weights of the frame at ${s}`, distanceHow: "Mean over the frames of the recording of the distance to the frames they attend to. The weight on the padding is listed separately.", special: "on the padding",
    silence: seconds => `This model expects a fixed length: ${seconds} s of silence follow the recording as padding and are not drawn. The weight on the padding is listed for each frame.`, toAlignment: "See the seconds behind each output token on the page Alignment", outside: "weight on the padding", mapWordsSilence: "Rows = queries, columns = keys, both in seconds; each row sums to 1 together with its weight on the padding after the recording.", pooledWords: "There are too many frames to draw: each cell is the mean weight between groups of neighbouring frames.",
  },
  zh: {
    title: "音频", lead: "音频被切成短帧，每一帧关注所有帧。在录音上移动鼠标：鼠标所指的帧不关注的部分会变暗。点击固定一帧，播放时会跟着走。也可以录一个词或拖入音频文件。",
    look: (time, part, total, layer, head, best) => `在第 ${layer} 层的头 ${head} 里，${time} 处的帧主要关注 ${best}；一半的权重集中在 ${total} 秒中的 ${part} 秒上。`, lookLetter: (letter, part, total, layer, head, best) => `写“${letter}”时，第 ${layer} 层的头 ${head} 主要关注 ${best}；一半的权重集中在 ${total} 秒中的 ${part} 秒上。`,
    strip: "波形和频谱图，叠加所选帧的权重", film: "同一查询在各个头里（层.头）", filmHead: (layer, head, most) => `第 ${layer} 层，头 ${head}，最大权重 ${most}`, strength: "叠加强度", more: "更多：距离、每个头的统计", help: "上：波形；下：频谱图，低频在下。空格播放，方向键移动。", sum: x => `本行之和为 ${x}。`,
    written: "输出：选择一个字母，看模型关注录音的哪一段", chosenLetter: letter => `“${letter}”权重最大的是`, mapWordsLetters: "行 = 输出的词元，列 = 录音的时间（秒）；每行之和为 1。", noAudio: "这个模型读取的是帧，没有可播放的录音。",
    heard: (seconds, count, each) => `共 ${seconds} 秒，${count} 个词元，每个 ${each} 秒。`,
    map: "帧与帧之间的权重", mapWords: "行 = 查询，列 = 键，都以秒计；每行之和为 1。", seconds: "秒", apart: "距离", aside: x => `${x} 秒`,
    reachTitle: "每个头的平均注意力距离", reachX: "层", reachY: "平均距离（秒）", point: (layer, head, s) => `第 ${layer} 层，头 ${head}：${s} 秒`, allHeads: "每个头的统计", distance: "距离（秒）", entropyShare: "熵 ÷ log(键数)", chosen: s => `${s} 处的帧，权重最大的是`, distanceHow: "录音各帧到其关注帧的平均距离；填充部分的权重另列。", special: "填充部分",
    silence: seconds => `此模型要求固定长度：录音之后用 ${seconds} 秒静音填充，图中未画出。每帧在填充部分的权重单独列出。`, toAlignment: "到“对齐”页查看每个输出词元对应哪几秒", outside: "填充部分的权重", mapWordsSilence: "行 = 查询，列 = 键，都以秒计；每行加上录音之后填充部分的权重，和为 1。", pooledWords: "帧太多，无法逐一画出：每格是相邻若干帧之间的平均权重。",
  },
};
const ARCS = 56, WAVE = 70, SPECTRUM = 210, AXIS = 22, SMALL = [120, 22], NIGHT = "#0b0d16";
// Where to start: the head and frame of the strongest far link.
const startOf = attentions => attentions.reduce((best, one, attention) => Array.from(one.link_weights.data).reduce((held, weight, head) => weight > held.weight ? { attention, head, weight } : held, best), { attention: 0, head: 0, weight: -1 });

export async function show(root, lab) {
  const { t } = lab, model = chosenModel(lab, ["sound"]);
  if (!model) return void root.append(h("p", { class: "note" }, t("noModels")));
  const { element, input } = modelInput(lab, root, model, changes => lab.set({ ...changes, query: null }, { show: true, replace: false }));
  lab.bar(modelPicker(lab, { modalities: ["sound"], onChange: name => lab.set({ model: name, attention: null, head: null, query: null }, { show: true }) }), element ?? "");
  const asked = { model: model.name, input }, heard = await lab.request("sound/run", asked), count = heard.heard, each = heard.seconds_per_token, after = heard.tokens.length - count;
  // Self-attentions of the frames first, then the cross-attentions of a decoder's tokens.
  const all = [...heard.attentions, ...heard.crossed], start = startOf(heard.attentions), attention = clamp(Number(lab.state.attention ?? start.attention), 0, all.length - 1), seen = all[attention], head = clamp(Number(lab.state.head ?? (lab.state.attention === undefined ? start.head : 0)), 0, seen.heads - 1), across = attention >= heard.attentions.length;
  const { weights, masked, outside, pooled } = await lab.request("heads/map", mapRequest(asked, heard, seen, head, across));
  const [queries, cells] = weights.shape, wide = count / cells * each, at = n => `${(n * wide).toFixed(2)} s`, letter = n => visibleText(heard.written[n] ?? "?"), named = n => across ? letter(n) : at(n);
  let pinned = clamp(Number(lab.state.query ?? (across ? 0 : Math.floor(seen.links.data[2 * head] * cells / count))), 0, queries - 1), query = pinned, strength = Number(lab.state.strength ?? 0.6), heardAt = null;
  const row = i => weights.data.subarray(i * cells, (i + 1) * cells);
  const canvas = h("canvas", { class: "overlay sound-strip", role: "application", tabindex: 0, "aria-label": t("strip"), onkeydown: press, onpointermove: event => { if (event.pointerType === "mouse" && !across) look(under(event)); }, onpointerleave: () => look(pinned), onclick: event => { seek(event), across || choose(under(event)); } });
  const foot = h("div", { class: "row overlay-foot" }), film = h("div", { class: "film sound-film", role: "group", "aria-label": t("film") }), side = h("div", { class: "readout" }), letters = h("div", { class: "strip", role: "group", "aria-label": t("written") });
  const chosenHead = (a, b) => lab.set({ attention: a, head: b, ...((a >= heard.attentions.length) === across ? {} : { query: null }) }, { show: true });
  const playButton = button([playSign(), h("span", {}, t("play"))], () => lab.attempt(play, root), { class: "strong" });
  const map = heatMap(lab, { title: t("map"), values: weights.data, masked: masked?.data ?? null, shape: weights.shape, rowNames: named, columnNames: at, selected: [query, topEntries(row(query), 1)[0].index], aside: true, top: 0, orientation: t(across ? "mapWordsLetters" : after ? "mapWordsSilence" : "mapWords"), name: "sound", height: 460,
    facts: (i, j) => [...(across ? [] : [[t("apart"), t("aside", (Math.abs(i - j) * wide).toFixed(3))]]), ...(after && outside ? [[t("outside"), formatShort(outside.data[i])]] : [])], onCell: (i, j, moved) => { if (moved) choose(i, true); } });
  const points = heard.attentions.flatMap((one, layer) => Array.from(one.distance.data, (distance, n) => ({ x: layer, y: distance, layer, head: n, label: t("point", layer, n, distance.toFixed(3)) })));
  const reach = dots(lab, { title: t("reachTitle"), xWords: t("reachX"), yWords: t("reachY"), points, xTicks: heard.attentions.map((_, n) => n), xDomain: [-0.5, heard.attentions.length - 0.5], here: points.findIndex(one => one.layer === attention && one.head === head), onPick: n => chosenHead(points[n].layer, points[n].head) });
  const page = stage(lab, {
    notices: noticeBox(lab, heard.notices, ["sound"]),
    tools: [playButton, headPicker(lab, all, attention, head, chosenHead)],
    picture: h("figure", { class: "overlay-box" }, canvas, foot, heard.written.length ? h("div", {}, h("p", { class: "soft" }, t("written")), letters) : null, predictionLine(lab, heard.prediction) ?? (heard.prediction.text && !heard.written.length ? h("p", { translate: "no" }, heard.prediction.text) : null)),
    side: [h("div", {}, h("h3", {}, t("film")), film), side],
  });
  page.element.classList.add("sound-stage");
  root.append(page.element, h("div", { class: "columns wide-left sound-map" }, map.element, h("div", { class: "sound-map-side" }, map.readout, reach)),
    fold(t("more"), h("p", { class: "soft" }, t("heard", heard.seconds.toFixed(2), count, each.toFixed(3)), after ? [" ", t("silence", (after * each).toFixed(1))] : null, pooled ? [" ", t("pooledWords")] : null),
      model.generates ? h("p", {}, h("a", { href: `#alignment?${new URLSearchParams(Object.fromEntries(["upload", "example", "tone", "lang"].map(key => [key, lab.state[key]]).filter(([, value]) => value !== undefined).concat([["model", model.name]])))}` }, t("toAlignment"))) : null,
      h("div", {}, numbersTable(lab, { caption: t("allHeads"), columns: [t("layer"), t("head"), t("distance"), ...(after ? [t("special")] : []), t("entropyShare")], rows: heard.attentions.flatMap((one, layer) => Array.from(one.distance.data, (distance, n) => [layer, n, distance, ...(after ? [one.special.data[n]] : []), one.entropy_share.data[n]])) }), after ? h("p", { class: "soft" }, t("distanceHow")) : null),
      cautionLine(lab), backendLine(lab, heard)));

  // Arcs from the frame to those that it attends to, over the waveform and the spectrogram on one time axis; what is not attended to is dark.
  const spectrum = spectrumOf(heard.frames), top = across ? 0 : ARCS, foot0 = top + WAVE + SPECTRUM, high = foot0 + AXIS, x = seconds => seconds / heard.seconds * room;
  let room = 900;
  function paint() {
    room = Math.max(280, canvas.parentElement.clientWidth);
    const pen = scaleCanvas(canvas, room, high), wave = heard.wave.data, loud = largest(wave) || 1e-6, weight = row(query), most = largest(weight), light = lightTable(), middle = top + WAVE / 2, column = room / cells;
    canvas.style.width = "100%", canvas.style.height = "auto";
    pen.fillStyle = NIGHT, pen.fillRect(0, 0, room, foot0);
    pen.imageSmoothingEnabled = false, pen.drawImage(spectrum, 0, top + WAVE, room, SPECTRUM);
    pen.fillStyle = "#d9dfec";
    for (let n = 0; n < wave.length; n++) { const tall = (WAVE / 2 - 4) * wave[n] / loud; pen.fillRect(n * room / wave.length, middle - tall, Math.max(1, room / wave.length), Math.max(0.6, 2 * tall)); }
    for (let n = 0; n < cells; n++) pen.fillStyle = `rgb(11 13 22 / ${strength * (1 - weight[n] / (most || 1))})`, pen.fillRect(n * column, top, column + 0.3, WAVE + SPECTRUM);
    for (let n = 0; n < cells; n++) pen.fillStyle = `rgb(${light(weight[n] / (most || 1)).join(" ")})`, pen.fillRect(n * column, top - 2, column + 0.3, 6);
    if (!across) arcs(pen, weight, column);
    if (!across) pen.strokeStyle = "#ff9d4d", pen.lineWidth = 2.5, pen.strokeRect(query * column + 1, top + 1.5, Math.max(3, column - 2), WAVE + SPECTRUM - 3);
    if (heardAt !== null) pen.fillStyle = "#fff", pen.fillRect(x(heardAt) - 1, 0, 2.5, foot0);
    pen.fillStyle = cssVariable("--soft"), pen.font = "12px sans-serif", pen.textAlign = "center";
    const step = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10].find(n => heard.seconds / n <= room / 80) ?? 30;
    for (let s = 0; s <= heard.seconds + 1e-6; s += step) pen.fillText(`${Number(s.toFixed(2))} s`, clamp(x(s), 14, room - 16), high - 5);
    fill(foot, lightLegend(lab, most, t("weight")), strengthSlider(t("strength"), strength, value => { strength = value, lab.set({ strength: value === 0.6 ? null : value }), paint(); }), h("span", { class: "soft" }, t("help")));
  }
  // An arc to each of the frames with the largest weights, as wide as its weight; a loop is the weight on the frame itself.
  function arcs(pen, weight, column) {
    const from = (query + 0.5) * column;
    for (const { index, value } of topEntries(weight, 8, n => weight[n] < 0.02)) {
      const to = (index + 0.5) * column, half = Math.max(7, Math.abs(to - from) / 2), tall = Math.min(ARCS - 8, 14 + half * 0.4);
      pen.strokeStyle = "#ff9d4d", pen.globalAlpha = clamp(0.25 + value, 0, 1), pen.lineWidth = 1 + 7 * value;
      pen.beginPath(), pen.ellipse((from + to) / 2, top - 2, half, tall, 0, Math.PI, 2 * Math.PI), pen.stroke();
      if (value > 0.09) pen.globalAlpha = 1, pen.fillStyle = "#fff", pen.font = "600 12px sans-serif", pen.textAlign = "center", pen.lineWidth = 3, pen.strokeStyle = NIGHT, pen.strokeText(value.toFixed(2).replace(/^0/, ""), clamp(to, 16, room - 16), top - 8), pen.fillText(value.toFixed(2).replace(/^0/, ""), clamp(to, 16, room - 16), top - 8);
    }
    pen.globalAlpha = 1;
  }
  function tell(spoken) {
    const weight = row(query), best = topEntries(weight, 5), half = keysForHalf(weight), sum = weight.reduce((total, one) => total + one, 0) + (outside ? outside.data[query] : 0);
    page.look(t(across ? "lookLetter" : "look", named(query), (half * wide).toFixed(2), heard.seconds.toFixed(2), seen.layer, head, at(best[0].index)));
    fill(side, rankingTable(across ? t("chosenLetter", named(query)) : t("chosen", at(query)), best.map(({ index, value }) => ({ name: at(index), value, ...(across ? {} : { onPick: () => choose(index) }) }))), after && outside ? h("p", { class: "soft" }, t("outside"), " ", numeral(outside.data[query])) : null, h("p", { class: "soft row-sum", title: formatExact(sum) }, t("sum", sum.toFixed(3))));
    [...letters.children].forEach((node, n) => node.setAttribute("aria-pressed", across && n === query));
    if (spoken) lab.announce(`${named(query)}: ${at(best[0].index)} ${formatExact(best[0].value)}`);
  }
  // A letter of the output shows where the decoder listened when it wrote it.
  const lastCross = all.length - 1, toLetter = n => across ? choose(n) : lab.set({ attention: lastCross, head: 0, query: n }, { show: true });
  fill(letters, heard.crossed.length ? heard.written.map((_, n) => h("button", { type: "button", class: "token", translate: "no", onclick: () => toLetter(n), onpointerenter: () => across && look(n), onpointerleave: () => across && look(pinned) }, letter(n))) : []);

  // Every head at the same query, as small strips of weights.
  const askFilm = lab.latestRequest();
  const showFilmSoon = lab.debounce(() => showFilm(), 90);
  async function showFilm() {
    const real = across ? query : Math.round((query + 0.5) * count / cells - 0.5), answer = await askFilm("sound/query", { ...asked, query: clamp(real, 0, (across ? heard.written.length : count) - 1), crossed: across }).catch(() => null), layers = across ? heard.crossed : heard.attentions, offset = across ? heard.attentions.length : 0;
    if (!answer) return;
    film.style.setProperty("--heads", 1);
    fill(film, layers.flatMap((one, n) => Array.from({ length: one.heads }, (_, m) => {
      const size = one.keys, weight = answer.weights[n].data.subarray(m * size, m * size + count), small = h("canvas", { "aria-hidden": "true" }), pen = scaleCanvas(small, ...SMALL), words = t("filmHead", one.layer, m, formatShort(largest(weight)));
      pen.fillStyle = NIGHT, pen.fillRect(0, 0, ...SMALL), pen.imageSmoothingEnabled = false, pen.drawImage(lightImage(weight, 1, count, largest(weight)), 0, 0, count, 1, 0, 0, ...SMALL), small.style.width = "100%", small.style.height = `${SMALL[1]}px`;
      return h("button", { type: "button", "aria-pressed": n + offset === attention && m === head, "aria-label": words, title: words, onclick: () => chosenHead(n + offset, m) }, h("span", { class: "at" }, `${one.layer}.${m}`), small);
    })));
  }
  function look(n) { if (n === query) return; query = n, paint(), tell(false), showFilmSoon(); }
  function choose(n, fromMap = false) { pinned = query = clamp(n, 0, queries - 1), lab.set({ query }), paint(), tell(!fromMap), showFilmSoon.cancel(), showFilm(); if (!fromMap) map.select(query, map.column); }
  function press(event) {
    const to = { ArrowLeft: query - 1, ArrowRight: query + 1, ArrowUp: query - 1, ArrowDown: query + 1, Home: 0, End: queries - 1 }[event.key];
    if (event.key === " ") event.preventDefault(), lab.attempt(play, root);
    if (to !== undefined) event.preventDefault(), choose(to);
  }
  const share = event => { const edge = canvas.getBoundingClientRect(); return clamp((event.clientX - edge.left) / edge.width, 0, 0.9999); }, under = event => Math.floor(share(event) * cells);
  // Plays the recording; the query follows the cursor.
  let player = null;
  function seek(event) { if (player) player.currentTime = share(event) * heard.seconds; }
  async function play() {
    if (player && !player.paused) return player.pause();
    if (!player) {
      const { wav } = await lab.request("sound/audio", asked);
      if (!wav) throw new Error(t("noAudio"));
      player = new Audio(URL.createObjectURL(new Blob([wav.data], { type: "audio/wav" })));
      player.onplay = () => { label("pause"), follow(); }, player.onpause = () => { label("play"), heardAt = null, look(pinned), paint(); };
      lab.signal.addEventListener("abort", () => { player.pause(), URL.revokeObjectURL(player.src); });
    }
    await player.play();
  }
  const label = key => fill(playButton, key === "pause" ? pauseSign() : playSign(), h("span", {}, t(key)));
  function follow() {
    if (player.paused) return;
    heardAt = player.currentTime;
    const now = clamp(Math.floor(heardAt / heard.seconds * cells), 0, cells - 1);
    if (!across && now !== query) look(now); else paint();
    requestAnimationFrame(follow);
  }
  const sized = new ResizeObserver(() => paint());
  sized.observe(canvas.parentElement), lab.signal.addEventListener("abort", () => sized.disconnect());
  paint(), tell(false), await showFilm();
  lab.expose({ read: () => ({ query, pinned, count, seconds: heard.seconds, each, playing: player ? !player.paused : false, weights: Array.from(row(query)), written: heard.written, outside: outside && Array.from(outside.data) }), keep: () => toKeep(asked, heard, all, count) });
}
const mapRequest = (asked, heard, attention, head, across) => ({ ...asked, attention: attention.name, head, ...(heard.tokens.length > heard.heard ? { ...(across ? {} : { rows: [0, heard.heard] }), keys: [0, heard.heard] } : {}) });
// What a saved view holds besides what was shown: every head, every query, and the recording.
function toKeep(asked, heard, all, count) {
  const own = heard.attentions.length, maps = all.flatMap((one, n) => Array.from({ length: one.heads }, (_, head) => ({ path: "heads/map", body: mapRequest(asked, heard, one, head, n >= own) })));
  const films = (length, crossed) => Array.from({ length }, (_, query) => ({ path: "sound/query", body: { ...asked, query, crossed } }));
  return [{ path: "sound/audio", body: asked }, ...maps, ...films(heard.crossed.length ? heard.written.length : 0, true), ...films(count, false)];
}
const playSign = () => s("svg", { viewBox: "0 0 12 12", width: 11, height: 11, "aria-hidden": "true", class: "sign" }, s("path", { d: "M2 1l9 5-9 5z", fill: "currentColor" })), pauseSign = () => s("svg", { viewBox: "0 0 12 12", width: 11, height: 11, "aria-hidden": "true", class: "sign" }, s("path", { d: "M2 1h3v10H2zM7 1h3v10H7z", fill: "currentColor" }));
function spectrumOf({ shape: [frames, bins], data }) {
  const canvas = h("canvas", { width: frames, height: bins }), image = new ImageData(frames, bins), sorted = Float32Array.from(data).sort(), [low, high] = [0.1, 0.99].map(part => sorted[Math.floor(part * (sorted.length - 1))]);
  // in grey: colour belongs to the weights
  for (let f = 0; f < frames; f++) for (let b = 0; b < bins; b++) { const x = clamp((data[f * bins + b] - low) / (high - low || 1), 0, 1); image.data.set([16 + 214 * x, 19 + 220 * x, 34 + 214 * x, 255], 4 * ((bins - 1 - b) * frames + f)); }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}
