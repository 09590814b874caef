// Sound: frames against frames, with seconds on the axes. Recordings never leave this machine.
import { css, legend, shader } from "lab/colour.js";
import { button, chosenModel, fileBox, headPicker, honestLine, modelPicker, predictionLine, ranLine, upload } from "lab/controls.js";
import { clamp, fill, h, sharpen, style } from "lab/dom.js";
import { heatMap } from "lab/map.js";
import { dots, numbersTable } from "lab/table.js";

export const name = "sound";
export const text = {
  en: {
    title: "Sound", lead: "A recording is cut into short frames, and each frame looks at all others. Record a word or drop a clip; both axes of the map are seconds.",
    record: "Record", stop: "Stop", recording: s => `Recording … ${s} s`, drop: "Drop or choose a recording (WAV, FLAC, OGG, MP3)", beeps: "Two beeps", chirp: "A rising tone", noMicrophone: "The browser gives no microphone. Drop a file instead.",
    heard: (seconds, count, each) => `${seconds} s, heard as ${count} tokens of ${each} s each.`, wave: "The recording", frames: "What the model hears: frames over time, low to high", energy: "energy less its mean, over its deviation", stripWords: "From above: loudness, frequencies from low to high, and the weights of the outlined frame in the colours of the map below. Click to choose a frame.",
    map: "Frames against frames", mapWords: "Rows = the frame that looks, columns = the frame looked at, both in seconds; each row sums to 1.", seconds: "seconds", apart: "apart", aside: x => `${x} s`,
    reachTitle: "How far each head looks", reachX: "layer", reachY: "mean distance (seconds)", point: (layer, head, s) => `layer ${layer}, head ${head}: ${s} s`, allHeads: "All heads in numbers", distance: "distance (s)", entropyShare: "entropy ÷ log(keys)", chosen: s => `The frame at ${s} looks at:`, unreadable: "The browser cannot read this file as sound.",
  },
  zh: {
    title: "声音", lead: "一段录音被切成短帧，每一帧都看其他所有帧。录一个词或拖入一段声音；图的两轴都是秒。",
    record: "录音", stop: "停止", recording: s => `正在录音……${s} 秒`, drop: "拖入或选择一段录音（WAV、FLAC、OGG、MP3）", beeps: "两声短音", chirp: "升调音", noMicrophone: "浏览器没有提供麦克风。请拖入文件。",
    heard: (seconds, count, each) => `共 ${seconds} 秒，听作 ${count} 个词元，每个 ${each} 秒。`, wave: "录音", frames: "模型听到的：随时间的帧，自低至高", energy: "能量减均值再除以标准差", stripWords: "自上而下：响度、自低至高的频率、加框的帧的权重（颜色同下图）。点击可选一帧。",
    map: "帧对帧", mapWords: "行 = 在看的帧，列 = 被看的帧，都以秒计；每行之和为 1。", seconds: "秒", apart: "相隔", aside: x => `${x} 秒`,
    reachTitle: "每个头看多远", reachX: "层", reachY: "平均距离（秒）", point: (layer, head, s) => `第 ${layer} 层，头 ${head}：${s} 秒`, allHeads: "所有头的数值", distance: "距离（秒）", entropyShare: "熵 ÷ log(键数)", chosen: s => `${s} 处的帧看向：`, unreadable: "浏览器无法把此文件读作声音。",
  },
};
const WIDE = 900, RATE = 8000, LONGEST = 20;

export async function show(root, lab) {
  const { t } = lab, model = chosenModel(lab, ["sound"]);
  if (!model) return void root.append(h("p", { class: "note" }, t("noModels")));
  const open = changes => lab.set({ upload: null, example: null, tone: null, query: null, ...changes }, { show: true, replace: false });
  const send = blob => lab.attempt(async () => open({ upload: (await upload(blob)).upload }), root), files = model.examples ?? [];
  root.append(h("div", { class: "input" }, h("div", { class: "row" }, modelPicker(lab, { kinds: ["sound"], onChange: name => lab.set({ model: name, attention: null, head: null, query: null }, { show: true }) })),
    lab.exported ? null : h("div", { class: "row" }, recorder(lab, root, send), fileBox(lab, "audio/*,.wav,.flac,.ogg,.mp3", t("drop"), file => lab.attempt(async () => send(await readable(file, t)), root)),
      h("div", { class: "chips" }, h("span", { class: "soft" }, t("examples")), Object.keys(TONES).map(tone => button(t(tone), () => open({ tone }), { class: "chip" })), files.map(file => button(file, () => open({ example: file }), { class: "chip", translate: "no" }))))));
  const { upload: sent, example } = lab.state, tone = lab.state.tone ?? (sent || example || files.length ? null : "beeps");
  const input = sent ? { upload: sent } : tone ? { base64: base64(wav(TONES[tone](), RATE)) } : { example: example ?? files[0] };
  const asked = { model: model.name, input }, heard = await lab.ask("sound/run", asked), count = heard.tokens.length, each = heard.seconds_per_token;
  const attention = clamp(Number(lab.state.attention ?? 0), 0, heard.attentions.length - 1), seen = heard.attentions[attention], head = clamp(Number(lab.state.head ?? 0), 0, seen.heads - 1);
  const { weights, masked } = await lab.ask("heads/map", { ...asked, attention: seen.name, head }), at = n => `${(n * each).toFixed(2)} s`;
  let query = clamp(Number(lab.state.query ?? Math.floor(count / 2)), 0, count - 1);
  const strip = h("canvas", { "aria-hidden": "true", class: "sound-strip" }), words = h("p", { class: "soft" });
  const map = heatMap(lab, { title: t("map"), values: weights.data, masked: masked?.data ?? null, shape: weights.shape, rowNames: at, columnNames: at, selected: [query, query], orientation: t("mapWords"), name: "sound", height: 460,
    facts: (i, j) => [[t("apart"), t("aside", (Math.abs(i - j) * each).toFixed(3))]], onCell: (i, j, moved) => { if (moved) query = i, lab.set({ query }), paint(); } });
  const points = heard.attentions.flatMap((one, layer) => Array.from(one.distance.data, (distance, n) => ({ x: layer, y: distance, layer, head: n, label: t("point", layer, n, distance.toFixed(3)) })));
  root.append(predictionLine(lab, heard.prediction) ?? "", heard.prediction.kind === "text" ? h("p", { translate: "no" }, heard.prediction.text) : "", h("p", { class: "soft" }, t("heard", heard.seconds.toFixed(2), count, each.toFixed(3))),
    h("figure", { class: "card" }, h("h3", {}, t("frames")), legend(lab, { kind: "scores", domain: [-3, 3], scale: "linear", what: t("energy"), masked: false }), strip, words, h("p", { class: "soft" }, t("stripWords"))), h("div", { class: "row pickers" }, headPicker(lab, heard.attentions, attention, head, (a, b) => lab.set({ attention: a, head: b }, { show: true }))), map.element,
    h("div", { class: "columns" }, h("div", { class: "card" }, dots(lab, { title: t("reachTitle"), xWords: t("reachX"), yWords: t("reachY"), points, xTicks: heard.attentions.map((_, n) => n), xDomain: [-0.5, heard.attentions.length - 0.5], here: points.findIndex(one => one.layer === attention && one.head === head), onPick: n => lab.set({ attention: points[n].layer, head: points[n].head }, { show: true }) })),
      h("div", { class: "card" }, numbersTable(lab, { caption: t("allHeads"), columns: [t("layer"), t("head"), t("distance"), t("entropyShare")], rows: heard.attentions.flatMap((one, layer) => Array.from(one.distance.data, (distance, n) => [layer, n, distance, one.entropy_share.data[n]])) }))),
    honestLine(lab), ranLine(lab, heard));

  // Loudness, the frames, and the chosen frame's weights below them, on one axis of seconds.
  function paint() {
    const pen = sharpen(strip, WIDE, 208), [frames, bins] = heard.frames.shape, wave = heard.wave.data, most = Math.max(...wave, 1e-6), wide = WIDE / count;
    pen.fillStyle = style("--soft");
    for (let n = 0; n < wave.length; n++) { const tall = 26 * wave[n] / most; pen.fillRect(n * WIDE / wave.length, 28 - tall, Math.max(1, WIDE / wave.length), Math.max(0.5, 2 * tall)); }
    pen.imageSmoothingEnabled = false, pen.drawImage(spectrum(heard.frames), 0, 60, WIDE, 100);
    const shade = shader("weights", [0, 1], "root"), row = weights.data.subarray(query * count, (query + 1) * count);
    for (let n = 0; n < count; n++) pen.fillStyle = css(shade(row[n])), pen.fillRect(n * wide, 164, wide + 0.5, 18);
    pen.strokeStyle = style("--accent"), pen.lineWidth = 2, pen.strokeRect(query * wide, 60, Math.max(2, wide), 122);
    pen.fillStyle = style("--soft"), pen.font = "11px sans-serif", pen.textAlign = "center";
    for (let n = 0, step = Math.max(1, Math.ceil(heard.seconds * 10 / 8)); n <= heard.seconds * 10; n += step) pen.fillText(`${(n / 10).toFixed(1)} s`, clamp(n / 10 / heard.seconds * WIDE, 14, WIDE - 14), 200);
    fill(words, t("chosen", at(query)), " ", top(row));
  }
  const top = row => Array.from(row, (x, n) => [x, n]).sort((a, b) => b[0] - a[0]).slice(0, 4).map(([x, n]) => `${at(n)} (${x.toFixed(3)})`).join(", ");
  strip.addEventListener("click", event => { const edge = strip.getBoundingClientRect(); map.pin(clamp(Math.floor((event.clientX - edge.left) / edge.width * count), 0, count - 1)); });
  paint(), strip.style.width = "100%", strip.style.height = "auto";
  lab.expose({ read: () => ({ query, count, seconds: heard.seconds, each }) });
}
function spectrum({ shape: [frames, bins], data }) {
  const canvas = h("canvas", { width: frames, height: bins }), image = new ImageData(frames, bins), shade = shader("scores", [-3, 3]);
  for (let f = 0; f < frames; f++) for (let b = 0; b < bins; b++) image.data.set([...shade(data[f * bins + b]), 255], 4 * ((bins - 1 - b) * frames + f));
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

// Tones made here, so that the page has something to hear before anyone speaks.
const tone = (seconds, f) => Float32Array.from({ length: seconds * RATE }, (_, n) => f(n / RATE));
const TONES = {
  beeps: () => tone(0.8, s => (s > 0.1 && s < 0.3) || (s > 0.5 && s < 0.7) ? 0.5 * Math.sin(2 * Math.PI * 660 * s) : 0),
  chirp: () => tone(0.8, s => 0.4 * Math.sin(2 * Math.PI * (200 * s + 900 * s * s))),
};
// 16-bit WAV of one channel.
export function wav(samples, rate) {
  const bytes = new DataView(new ArrayBuffer(44 + 2 * samples.length)), word = (at, letters) => [...letters].forEach((letter, n) => bytes.setUint8(at + n, letter.charCodeAt(0)));
  word(0, "RIFF"), bytes.setUint32(4, 36 + 2 * samples.length, true), word(8, "WAVEfmt "), bytes.setUint32(16, 16, true), bytes.setUint16(20, 1, true), bytes.setUint16(22, 1, true);
  bytes.setUint32(24, rate, true), bytes.setUint32(28, 2 * rate, true), bytes.setUint16(32, 2, true), bytes.setUint16(34, 16, true), word(36, "data"), bytes.setUint32(40, 2 * samples.length, true);
  samples.forEach((x, n) => bytes.setInt16(44 + 2 * n, Math.round(32767 * clamp(x, -1, 1)), true));
  return new Uint8Array(bytes.buffer);
}
function base64(bytes) { let text = ""; for (const byte of bytes) text += String.fromCharCode(byte); return btoa(text); }
// What the browser can decode becomes a WAV; a WAV goes as it is, so that the server judges it.
async function readable(file, t) {
  if (/\.(wav|flac|ogg)$/i.test(file.name ?? "")) return file;
  const context = new AudioContext();
  try {
    const sound = await context.decodeAudioData(await file.arrayBuffer());
    return new Blob([wav(sound.getChannelData(0).subarray(0, LONGEST * sound.sampleRate), sound.sampleRate)], { type: "audio/wav" });
  } catch { throw new Error(t("unreadable")); } finally { context.close(); }
}
function recorder(lab, root, send) {
  const { t } = lab, label = h("span", {}, t("record")), node = button(label, () => lab.attempt(toggle, root), { class: "strong" });
  let running = null;
  async function toggle() {
    if (running) return running.stop();
    if (!navigator.mediaDevices?.getUserMedia) throw new Error(t("noMicrophone"));
    const stream = await navigator.mediaDevices.getUserMedia({ audio: true }).catch(() => { throw new Error(t("noMicrophone")); }), parts = [], started = Date.now();
    running = new MediaRecorder(stream);
    const clock = setInterval(() => { fill(label, `${t("stop")} · ${t("recording", ((Date.now() - started) / 1000).toFixed(0))}`); if (Date.now() - started > 1000 * LONGEST) running?.stop(); }, 200);
    running.ondataavailable = event => parts.push(event.data);
    running.onstop = () => { clearInterval(clock), stream.getTracks().forEach(track => track.stop()), running = null, fill(label, t("record")), lab.attempt(async () => send(await readable(new Blob(parts), t)), root); };
    lab.signal.addEventListener("abort", () => running?.stop(), { once: true });
    running.start();
  }
  return node;
}
