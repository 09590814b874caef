// Labelled controls: model, text and head pickers, file boxes, progress, notices about the input.
import { formatBytes, formatBrief, fill, untranslated, h, newId, visibleText, truncate } from "lab/dom.js";

// A labelled select. `options`: [[value, text, own?], …]; texts with `own` (or all, with `plain`) come from a model and are not translated.
export function select(label, options, value, onchange, { plain = false, ...attributes } = {}) {
  const id = newId();
  const box = h("select", { id, ...attributes, onchange: event => onchange(event.target.value) },
    options.map(([name, words, own = plain]) => h("option", { value: name, selected: String(name) === String(value), translate: own ? "no" : null }, words)));
  return h("label", { class: "field", for: id }, h("span", {}, label), box);
}
// Radio buttons drawn as one bar.
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

// The model to show, among those of some modalities (a list or a predicate): the one in the state, else a shipped one that reads the page's language, else a shipped one
// with examples, else the first; `null` if there is none.
const TAGGERS = { zh: ["tagger-zh", "tagger"], en: ["tagger"] };
const fitting = (lab, modalities) => lab.models.filter(typeof modalities === "function" ? modalities : model => modalities.includes(model.modality));
export function chosenModel(lab, modalities) {
  const fit = fitting(lab, modalities), language = lab.language === "zh" ? "zh" : "en", shipped = fit.filter(model => model.source === "shipped" && !model.hand_made);
  return fit.find(model => model.name === lab.state.model) ?? TAGGERS[language].map(name => fit.find(model => model.name === name)).find(Boolean)
    ?? shipped.find(model => model.languages.includes(language)) ?? shipped.find(model => model.examples?.length) ?? shipped[0] ?? fit[0] ?? null;
}
export function modelPicker(lab, { modalities, onChange }) {
  const fit = fitting(lab, modalities), now = chosenModel(lab, modalities), { t } = lab;
  if (!now) return h("p", { class: "note" }, t("noModels"));
  const titled = model => model.folder && !model.name.startsWith(`${model.folder}/`) && model.name !== model.folder ? `${model.folder}/${model.name}` : lab.localize(model.title) || model.name;
  const named = new Intl.DisplayNames([lab.language === "zh" ? "zh" : "en"], { type: "language" });
  const described = model => [titled(model), ...model.languages.map(code => named.of(code)), t("layersCount", model.layers), t("headsCount", model.heads), t(model.hand_made ? "handMade" : model.source)].join(" · ");
  return select(t("model"), fit.map(model => [model.name, described(model)]), now.name, onChange, { plain: true, class: "wide" });
}

// The example texts of a model: its own, else those of other models, without the query and head that they show there. Examples in the page's language come first.
export function examplesFor(lab, model) {
  const own = lab.examples.filter(example => example.model === model?.name), language = lab.language === "zh" ? "zh" : "en";
  const texts = own.length ? own : lab.examples.filter(({ language: written }) => !model?.languages?.length || model.languages.includes(written)).map(({ text, language }) => ({ text, language }));
  const each = texts.flatMap(example => example.other === undefined ? [example] : [example, { ...example, text: example.other }]);
  return [...each.filter(example => example.language === language), ...each.filter(example => example.language !== language)];
}
// The example that the page shows now, with its attention, head and query there: {} if the text is another one.
export function exampleOf(lab, model) {
  const example = examplesFor(lab, model).find(example => example.title && example.text === startText(lab, model)) ?? {}, place = lab.page === "alignment" ? example.alignment : example;
  return place?.query === undefined ? {} : { ...example, ...place };
}
// What an example shows, as changes of the state.
export const exampleState = () => ({ attention: null, head: null, query: null });
export const captionLine = (lab, example) => example.title ? h("p", { class: "look-here" }, h("b", {}, lab.t("lookHere"), " "), lab.localize(example.title)) : null;

// A text area (and one for a target text, if `target` is given) with examples; calls `onRun({text, target})`.
export function inputBox(lab, { value, target, model, examples = examplesFor(lab, model), rows = 2, onRun, label, optional = false }) {
  const { t } = lab, areas = {};
  const problem = h("p", { role: "alert", hidden: true });
  const send = example => {
    fill(problem, areas.text.value.trim() || optional ? "" : t("emptyText")), problem.hidden = !problem.textContent;
    if (problem.hidden) onRun({ ...Object.fromEntries(Object.entries(areas).map(([name, area]) => [name, area.value])), example });
  };
  const area = (name, words, held) => {
    const id = newId();
    areas[name] = h("textarea",
      { id, rows, spellcheck: "false", disabled: lab.exported, translate: "no", value: held ?? "",
        onkeydown: event => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey || rows <= 2) && !event.shiftKey) event.preventDefault(), send(); } });
    return h("div", { class: "field grow" }, h("label", { for: id }, words), areas[name]);
  };
  const chips = examples.map(example => h("button", { type: "button", class: "chip", title: example.title ? lab.localize(example.title) : null,
    onclick: () => { areas.text.value = example.text; if (areas.target) areas.target.value = example.target ?? ""; send(example); } }, untranslated(truncate(visibleText(example.text), 62))));
  return h("form", { class: "input", onsubmit: event => { event.preventDefault(), send(); } },
    h("div", { class: "row" }, area("text", label ?? t("text"), value), target !== undefined ? area("target", t("target"), target) : null,
      lab.exported ? null : h("button", { type: "submit", class: "strong" }, t("run"))), problem,
    chips.length && !lab.exported ? h("div", { class: "chips" }, h("span", { class: "soft" }, t("examples")), chips) : null);
}
// The text of the state, else of the first example.
export const startText = (lab, model, otherwise = "") => lab.state.text ?? examplesFor(lab, model)[0]?.text ?? otherwise;

// What must be said of the input: tokens that the model does not know, another language, its length, its looks. `modalities` are those of the page, for the offer of another model.
export function noticeBox(lab, notices, modalities) {
  const { t } = lab, listed = names => names.map(name => lab.localize(name)).join(t("and"));
  const offer = name => fitting(lab, modalities).some(model => model.name === name) ? button(t("openOffer", name), () => lab.set({ model: name, attention: null, head: null, query: null, place: null }, { show: true, replace: false }), { class: "small" }) : null;
  const words = {
    hand_made: () => t("notice_hand_made"), language: ({ script, reads, offer: name }) => [t("notice_language", lab.localize(script), listed(reads)), " ", offer(name)],
    unknown: ({ count, total }) => count === total ? t("notice_all_unknown") : t("notice_unknown", count, total), length: ({ training_length: length, total }) => t("notice_length", length, total),
    unlike: ({ distance }, modality) => [h("b", {}, t(`notice_unlike_${modality}`)), " ", h("span", { class: "soft" }, t("unlikeHow", formatBrief(distance, 1)))],
  };
  const modality = lab.models.find(model => model.name === lab.state.model)?.modality === "sound" || lab.page === "sound" ? "sound" : "image";
  return notices.length ? h("div", { class: "notices" }, notices.map(notice => h("p", { class: "note", "data-notice": notice.type, role: "note" }, words[notice.type](notice, modality)))) : null;
}
// Whether the model knows no token of the input: nothing is drawn then.
export const allUnknown = notices => notices.some(({ type, count, total }) => type === "unknown" && count === total);
// The first token beyond the longest training input; null if there is none.
export const boundaryOf = notices => notices.find(({ type }) => type === "length")?.training_length ?? null;

// Selects an attention and a head; `attentions` as the server describes them.
export function headPicker(lab, attentions, attention, head, onChange) {
  const { t } = lab, held = attentions[attention];
  return h("div", { class: "row pickers" },
    select(t("attention"), attentions.map((one, n) => [n, lab.localize(one.label)]), attention,
      value => onChange(Number(value), Math.min(head, attentions[value].heads - 1))),
    select(t("head"), Array.from({ length: held.heads }, (_, n) => [n, n]), head, value => onChange(attention, Number(value))));
}
// A drop area and file picker; calls `onFile(file)`.
export function fileBox(lab, accept, words, onFile) {
  const input = h("input", { type: "file", accept, class: "unseen", onchange: () => input.files[0] && onFile(input.files[0]) });
  const box = h("label",
    { class: "drop", ondragover: event => event.preventDefault(),
      ondrop: event => { event.preventDefault(); if (event.dataTransfer.files[0]) onFile(event.dataTransfer.files[0]); } },
    input, h("span", {}, words));
  return box;
}
// Uploads a file; the id of the response is used as the input {"upload": id}.
export async function upload(file) {
  const response = await fetch("/api/upload", { method: "POST", body: file, headers: { "Content-Type": file.type || "application/octet-stream" } });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

// Download buttons; `files()` → {png, svg, csv, npz}: functions that create and save one file each.
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
// Shows progress and a cancel button while `run(onProgress, signal)` is pending.
export async function withProgress(lab, place, run) {
  const { t } = lab, controller = new AbortController(), words = h("span", {}, t("working")), bar = h("progress", {});
  const line = h("div", { class: "progress", role: "status" }, bar, words, button(t("cancel"), () => controller.abort(), { class: "small" }));
  place.append(line);
  try {
    return await run(({ done, total, words: told }) => { if (total) bar.max = total, bar.value = done; if (told) fill(words, lab.localize(told)); }, controller.signal);
  } catch (error) {
    if (error.name === "AbortError" && controller.signal.aborted) { place.append(h("p", { class: "soft" }, t("cancelled"))); return undefined; }
    throw error;
  } finally { line.remove(); }
}
// The prediction with its probabilities: {type, text?, items: [{label, probability, token? or node?}]}; `names` are those of the tokens.
export function predictionLine(lab, prediction, names = [], most = 5) {
  if (!prediction?.items?.length) return null;
  const many = ["tags", "nodes"].includes(prediction.type), items = prediction.items.slice(0, many ? 40 : prediction.text === undefined ? most : 0);
  return h("div", { class: "prediction" }, h("span", { class: "soft" }, lab.t("prediction")),
    prediction.text === undefined ? null : untranslated(prediction.text, { class: "answer" }),
    items.map(item => h("span", { class: "answer", translate: "no" }, many ? h("b", {}, names[item.token ?? item.node] ?? item.token) : null,
      h("span", {}, visibleText(item.label)),
      item.probability === undefined || item.probability === null ? null : h("span", { class: "at" }, `${(100 * item.probability).toFixed(1)} %`))));
}
// The backend that ran, and the difference between the numbers shown and its output (a number, or {largest}).
export function backendLine(lab, { backend, attentions = [], difference }) {
  const who = backend ?? [...new Set(attentions.map(one => one.backend).filter(Boolean))].join(", "), far = difference?.largest ?? difference;
  return h("p", { class: "soft ran" }, lab.t("ran", who || "–", typeof far === "number" ? far.toExponential(1) : "–"));
}
export const cautionLine = lab => h("p", { class: "honest" }, lab.t("honest"));
export const sizeLine = (lab, size, time) => h("p", { class: "soft", id: "cost" }, lab.t("bytesSent", formatBytes(size), Math.round(time)));
