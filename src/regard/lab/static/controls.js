// Controls: native elements with labels. Which model, which text, which head.
import { bytes, fill, given, h, newId, seen, short } from "lab/dom.js";

// A labelled choice. `options`: [[value, words, own?], …]; `own` words (or all, with `plain`) come from a model and are in no language.
export function select(label, options, value, onchange, { plain = false, ...attributes } = {}) {
  const id = newId();
  const box = h("select", { id, ...attributes, onchange: event => onchange(event.target.value) },
    options.map(([name, words, own = plain]) => h("option", { value: name, selected: String(name) === String(value), translate: own ? "no" : null }, words)));
  return h("label", { class: "field", for: id }, h("span", {}, label), box);
}
// Few choices side by side: radio buttons drawn as one bar.
export function bar(label, options, value, onchange) {
  const name = newId();
  return h("fieldset", { class: "choice" }, h("legend", {}, label), options.map(([key, words]) => h("label", {},
    h("input", { type: "radio", name, value: key, checked: String(key) === String(value), onchange: () => onchange(key) }), h("span", {}, words))));
}
export const check = (label, checked, onchange) => h("label", { class: "check" },
  h("input", { type: "checkbox", checked, onchange: event => onchange(event.target.checked) }), h("span", {}, label));
export function number(label, value, { min, max, step = 1 }, onchange) {
  return h("label", { class: "field" }, h("span", {}, label),
    h("input", { type: "number", value, min, max, step, onchange: event => onchange(event.target.value === "" && value === "" ? NaN : Number(event.target.value)) }));
}
export const button = (words, onclick, attributes = {}) => h("button", { type: "button", onclick, ...attributes }, words);

// The models of some kinds (a list, or a function that says which); the state's model if it is one of them, else the tagger, which reads words, one that has examples, or the first. `null` where there is none.
const fitting = (lab, kinds) => lab.models.filter(typeof kinds === "function" ? kinds : model => kinds.includes(model.kind));
export function chosenModel(lab, kinds) {
  const fit = fitting(lab, kinds);
  return fit.find(model => model.name === lab.state.model) ?? fit.find(model => model.name === "tagger") ?? fit.find(model => model.examples?.length) ?? fit[0] ?? null;
}
export function modelPicker(lab, { kinds, onChange }) {
  const fit = fitting(lab, kinds), now = chosenModel(lab, kinds), { t } = lab;
  if (!now) return h("p", { class: "note" }, t("noModels"));
  const described = model => `${lab.say(model.title) || model.name} · ${t("layersCount", model.layers)} · ${t("headsCount", model.heads)} · ${t(model.source)}`;
  return select(t("model"), fit.map(model => [model.name, described(model)]), now.name, onChange, { plain: true, class: "wide" });
}

// The texts that stand ready for a model: [{text, title}]; a pair of sentences gives two.
export const examplesFor = (lab,
  model) => lab.examples.filter(example => example.text !== undefined && [undefined, "text",
    model?.kind].includes(example.kind) && (!example.models || example.models.includes(model?.name)))
  .flatMap(example => example.other === undefined ? [example] : [example, { ...example, text: example.other }]);

// A text (and a target text, where `target` is given) with the ready examples; `onRun({text, target})`.
export function inputBox(lab, { value, target, model, examples = examplesFor(lab, model), rows = 2, onRun, label }) {
  const { t } = lab, areas = {};
  const send = () => onRun(Object.fromEntries(Object.entries(areas).map(([name, area]) => [name, area.value])));
  const area = (name, words, held) => {
    const id = newId();
    areas[name] = h("textarea",
      { id, rows, spellcheck: "false", disabled: lab.exported, translate: "no", value: held ?? "",
        onkeydown: event => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey || rows <= 2) && !event.shiftKey) event.preventDefault(), send(); } });
    return h("div", { class: "field grow" }, h("label", { for: id }, words), areas[name]);
  };
  const chips = examples.map(example => h("button", { type: "button", class: "chip", title: example.title ? lab.say(example.title) : null,
    onclick: () => { areas.text.value = example.text; if (areas.target) areas.target.value = example.target ?? ""; send(); } }, given(short(seen(example.text), 62))));
  return h("form", { class: "input", onsubmit: event => { event.preventDefault(), send(); } },
    h("div", { class: "row" }, area("text", label ?? t("text"), value), target !== undefined ? area("target", t("target"), target) : null,
      lab.exported ? null : h("button", { type: "submit", class: "strong" }, t("run"))),
    chips.length && !lab.exported ? h("div", { class: "chips" }, h("span", { class: "soft" }, t("examples")), chips) : null);
}
// The chosen example's text when the address has none.
export const startText = (lab, model, otherwise = "") => lab.state.text ?? examplesFor(lab, model)[0]?.text ?? otherwise;

// Which attention and which head of it; `attentions` as the server describes them.
export function headPicker(lab, attentions, attention, head, onChange) {
  const { t } = lab, held = attentions[attention];
  return h("div", { class: "row pickers" },
    select(t("attention"), attentions.map((one, n) => [n, lab.say(one.label)]), attention,
      value => onChange(Number(value), Math.min(head, attentions[value].heads - 1))),
    select(t("head"), Array.from({ length: held.heads }, (_, n) => [n, n]), head, value => onChange(attention, Number(value))));
}
// A file dropped or chosen; `onFile(file)`.
export function fileBox(lab, accept, words, onFile) {
  const input = h("input", { type: "file", accept, class: "unseen", onchange: () => input.files[0] && onFile(input.files[0]) });
  const box = h("label",
    { class: "drop", ondragover: event => event.preventDefault(),
      ondrop: event => { event.preventDefault(); if (event.dataTransfer.files[0]) onFile(event.dataTransfer.files[0]); } },
    input, h("span", {}, words));
  return box;
}
// Sends a file's bytes; the answer's id is an input {"upload": id}.
export async function upload(file) {
  const response = await fetch("/api/upload", { method: "POST", body: file, headers: { "Content-Type": file.type || "application/octet-stream" } });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

// Buttons for files of a picture; `files()` → {png, svg, csv, npz}: functions that make and save one each.
export function fileButtons(lab, files) {
  const { t } = lab;
  return h("div", { class: "files", role: "group", "aria-label": t("download") }, ["png", "svg", "csv", "npz"].map(kind =>
    h("button", { type: "button", class: "small", title: t("fileTip", t(kind)), onclick: () => files()[kind]?.() }, t(kind))));
}
export function copyButton(lab, words) {
  const node = button(lab.t("copy"), async () => {
    await navigator.clipboard?.writeText(words()).catch(() => {});
    fill(node, lab.t("copied")), setTimeout(() => fill(node, lab.t("copy")), 1500);
  }, { class: "small" });
  return node;
}
// While something is computed: what, how far, and a way to stop it. `run(onProgress, signal)`.
export async function withProgress(lab, place, run) {
  const { t } = lab, controller = new AbortController(), words = h("span", {}, t("working")), bar = h("progress", {});
  const line = h("div", { class: "progress", role: "status" }, bar, words, button(t("cancel"), () => controller.abort(), { class: "small" }));
  place.append(line);
  try {
    return await run(({ done, total, words: told }) => { if (total) bar.max = total, bar.value = done; if (told) fill(words, lab.say(told)); }, controller.signal);
  } catch (error) {
    if (error.name === "AbortError" && controller.signal.aborted) { place.append(h("p", { class: "soft" }, t("cancelled"))); return undefined; }
    throw error;
  } finally { line.remove(); }
}
// What the model answered, with its probabilities: {kind, text?, items: [{label, probability, token? or place?}]}; `names` are the tokens'.
export function predictionLine(lab, prediction, names = [], most = 5) {
  if (!prediction?.items?.length) return null;
  const many = ["tags", "nodes"].includes(prediction.kind), items = prediction.items.slice(0, many ? 40 : prediction.text === undefined ? most : 0);
  return h("div", { class: "prediction" }, h("span", { class: "soft" }, lab.t("prediction")),
    prediction.text === undefined ? null : given(prediction.text, { class: "answer" }),
    items.map(item => h("span", { class: "answer", translate: "no" }, many ? h("b", {}, names[item.token ?? item.node] ?? item.token) : null,
      h("span", {}, seen(item.label)),
      item.probability === undefined || item.probability === null ? null : h("span", { class: "at" }, `${(100 * item.probability).toFixed(1)} %`))));
}
// Kernel honesty: who ran, and how far the numbers shown are from what ran (a number, or {largest}).
export function ranLine(lab, { backend, attentions = [], difference }) {
  const who = backend ?? [...new Set(attentions.map(one => one.backend).filter(Boolean))].join(", "), far = difference?.largest ?? difference;
  return h("p", { class: "soft ran" }, lab.t("ran", who || "–", typeof far === "number" ? far.toExponential(1) : "–"));
}
export const honestLine = lab => h("p", { class: "honest" }, lab.t("honest"));
export const sizeLine = (lab, size, time) => h("p", { class: "soft", id: "cost" }, lab.t("bytesSent", bytes(size), Math.round(time)));
