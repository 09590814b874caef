// Input controls by type of input: image (drawn or dropped), audio, graph. Nothing leaves this machine.
import { button, fileBox, inputBox, popover, select, upload } from "lab/controls.js";
import { clamp, fill, h } from "lab/dom.js";

const PAD = 168, RATE = 8000, LONGEST = 20;
const NONE = { upload: null, example: null, drawing: null, tone: null, molecule: null };

// {element, input}: the controls, and the input of the current state (null if none is chosen); a new choice calls `onOpen(changes)` with changes of the state.
export function modelInput(lab, root, model, onOpen) {
  const open = changes => onOpen({ ...NONE, ...changes });
  return { image: pictureInput, sound: soundInput, graph: graphInput }[model.modality](lab, root, model, open);
}
const chips = (lab, open, files, more = []) => files.length || more.length ? popover(lab.t("examples"), [lab.t("examples"), " ▾"], close => h("div", { class: "chips" }, [...more, ...files.map(file => [file.replace(/\.\w+$/, ""), { example: file }])].map(([name, changes]) => button(name, () => (close(), open(changes)), { class: "chip", translate: changes.example ? "no" : null }))), { class: "quiet" }) : null;
// The menu of example pictures: names at once, the pictures as soon as they are there.
function pictureMenu(lab, model, open, files) {
  if (!files.length) return null;
  const choice = (file, pixels) => button([pixels ? pixelsOf(pixels) : null, h("span", {}, file.replace(/\.\w+$/, ""))], () => open({ example: file }), { class: "picture-choice", translate: "no" });
  return popover(lab.t("examples"), [lab.t("examples"), " ▾"], close => {
    const box = h("div", { class: "picture-menu", onclick: event => event.target.closest("button") && close() }, files.map(file => choice(file)));
    lab.request("image/examples", { model: model.name }).then(({ names, pixels }) => fill(box, names.map((name, n) => choice(name, pixels[n]))), () => {});
    return box;
  }, { class: "quiet", wide: true });
}
const shownName = name => h("span", { class: "shown-input", translate: "no" }, name);

function pictureInput(lab, root, model, open) {
  const { t, state } = lab, files = model.examples ?? [], example = state.upload || state.drawing ? null : state.example ?? files[0];
  const opened = file => lab.attempt(async () => open({ upload: (await upload(file)).upload }), root);
  const element = lab.exported ? null : h("div", { class: "input" }, shownName(example ?? ""), pictureMenu(lab, model, open, files), popover(t("draw"), t("draw"), close => drawingPad(lab, state.drawing, image => (close(), open({ drawing: image }))), { class: "quiet" }), fileBox(lab, "image/png,image/jpeg", t("dropPicture"), opened));
  return { element, input: state.upload ? { upload: state.upload } : state.drawing ? { base64: state.drawing } : example ? { example } : null };
}
function soundInput(lab, root, model, open) {
  const { t, state } = lab, files = model.examples ?? [], send = blob => lab.attempt(async () => open({ upload: (await upload(blob)).upload }), root);
  const element = lab.exported ? null : h("div", { class: "input" }, shownName(state.upload || state.tone ? "" : state.example ?? files[0] ?? ""), chips(lab, open, files, Object.keys(TONES).map(tone => [t(tone), { tone }])), recorder(lab, root, send), fileBox(lab, "audio/*,.wav,.flac,.ogg,.mp3,.npy", t("dropSound"), file => lab.attempt(async () => send(await readable(file, t)), root)));
  const { upload: sent, example } = state, tone = state.tone ?? (sent || example || files.length ? null : "beeps");
  return { element, input: sent ? { upload: sent } : tone ? { base64: base64(wav(TONES[tone](), RATE)) } : { example: example ?? files[0] } };
}
function graphInput(lab, root, model, open) {
  const { t, state } = lab, files = model.examples ?? [], example = state.upload || state.molecule ? null : state.example ?? files[0];
  const opened = file => lab.attempt(async () => open({ upload: (await upload(file)).upload }), root);
  if (model.task === "graphs") {
    const molecule = state.molecule ?? "CC(=O)Oc1ccccc1C(=O)O";
    return { element: inputBox(lab, { value: molecule, model, label: t("molecule"), examples: ["CCO", "c1ccccc1", "CC(=O)Oc1ccccc1C(=O)O"].map(text => ({ text })), onRun: ({ text }) => open({ molecule: text }) }), input: { text: molecule } };
  }
  const element = h("div", { class: "input" }, files.length ? select(t("graph"), files.map(file => [file, file]), example, chosen => open({ example: chosen }), { plain: true }) : null, lab.exported ? null : fileBox(lab, ".npz", t("openGraph"), opened));
  return { element, input: state.upload ? { upload: state.upload } : example ? { example } : null };
}

// A drawing area, white on black; the drawing is stored as a small image so that it fits in the URL.
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
  return h("div", { class: "field" }, h("span", {}, t("draw")), canvas, h("div", { class: "row" }, button(t("readDrawing"), send, { class: "small" }), button(t("clearDrawing"), clear, { class: "small" })));
}
// The image that the model receives, one or three channels of bytes.
export function pixelsOf({ shape: [channels, height, width], data }) {
  const canvas = h("canvas", { width, height }), image = new ImageData(width, height), size = width * height;
  for (let n = 0; n < size; n++) for (let part = 0; part < 4; part++) image.data[4 * n + part] = part === 3 ? 255 : data[(channels >= 3 ? part : 0) * size + n];
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

// Synthetic tones, as inputs without a recording.
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
// Audio that the browser can decode is converted to WAV. WAV files and frames (NPY) are sent unchanged; the server checks them.
async function readable(file, t) {
  if (/\.(wav|flac|ogg|npy)$/i.test(file.name ?? "")) return file;
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
