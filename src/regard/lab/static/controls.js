// Labelled controls: model, text and head pickers, popovers, file boxes, progress, notices about the input.
import { errorOf } from "lab/client.js";
import { formatBytes, formatBrief, formatPercent, formatShort, fill, untranslated, h, newId, s, scientific, topEntries, visibleText, truncate } from "lab/dom.js";

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
// A button that opens a panel under itself; Esc and a click elsewhere close it. `content` may be a function, called when the panel opens.
export function popover(label, words, content, { wide = false, ...attributes } = {}) {
  const id = newId(), panel = h("div", { id, popover: "auto", class: wide ? "popover wide" : "popover", role: "dialog", "aria-label": label });
  const opener = h("button", { type: "button", popovertarget: id, "aria-haspopup": "dialog", "aria-expanded": false, "aria-label": words === "?" ? label : null, title: label, ...attributes }, words);
  panel.addEventListener("beforetoggle", event => {
    const open = event.newState === "open", edge = opener.getBoundingClientRect(), right = edge.left > innerWidth / 2, narrow = innerWidth < 620;
    opener.setAttribute("aria-expanded", open);
    if (!open) return;
    fill(panel, typeof content === "function" ? content(() => panel.hidePopover()) : content);
    Object.assign(panel.style, { top: `${edge.bottom + 6}px`, maxHeight: `${Math.max(200, innerHeight - edge.bottom - 18)}px`, left: narrow ? "8px" : right ? "auto" : `${edge.left}px`, right: narrow ? "8px" : right ? `${innerWidth - edge.right}px` : "auto" });
  });
  return h("span", { class: "popover-box" }, opener, panel);
}

// The model to show, among those of some modalities (a list or a predicate): the one in the state, else a shipped one that reads the page's language, else a shipped one
// with examples, else the first; `null` if there is none.
const TAGGERS = { zh: ["tagger-zh", "tagger", "emoji"], en: ["tagger", "emoji"] };
const fitting = (lab, modalities) => lab.models.filter(typeof modalities === "function" ? modalities : model => modalities.includes(model.modality));
export function chosenModel(lab, modalities) {
  const fit = fitting(lab, modalities), language = lab.language === "zh" ? "zh" : "en", shipped = fit.filter(model => model.source === "shipped" && !model.hand_made);
  return fit.find(model => model.name === lab.state.model) ?? TAGGERS[language].map(name => fit.find(model => model.name === name)).find(Boolean)
    ?? shipped.find(model => model.languages.includes(language)) ?? shipped.find(model => model.examples?.length) ?? shipped[0] ?? fit[0] ?? null;
}
const languageNames = lab => new Intl.DisplayNames([lab.language === "zh" ? "zh" : "en"], { type: "language" });
// The title of a model in the page's language; a model of --models has its folder's name before it.
export function modelTitle(lab, model) {
  if (model.folder) return untranslated(model.name === model.folder || model.name.startsWith(`${model.folder}/`) ? model.name : `${model.folder}/${model.name}`);
  return typeof model.title === "object" ? h("span", {}, lab.localize(model.title)) : untranslated(model.title);
}
// A button with the chosen model; it opens a card for each model that fits. The text stays if the next model reads its language.
export function modelPicker(lab, { modalities, onChange }) {
  const fit = fitting(lab, modalities), now = chosenModel(lab, modalities), { t } = lab;
  if (!now) return h("p", { class: "note" }, t("noModels"));
  const rank = model => model.folder ? 0 : model.hand_made ? 3 : model.modality === now.modality ? 1 : 2; // those of --models first
  const choose = model => {
    const shown = lab.state.text === undefined && document.querySelector("#bar textarea")?.value, written = lab.examples.find(example => [example.text, example.other].includes(shown))?.language;
    if (shown && written && model.languages.includes(written)) lab.set({ text: shown });
    onChange(model.name);
  };
  return popover(t("chooseModel"), h("span", { class: "model-name" }, modelTitle(lab, now), h("span", { class: "at" }, t("layersCount", now.layers), " × ", t("headsCount", now.heads))),
    close => h("div", { class: "model-cards" }, fit.toSorted((a, b) => rank(a) - rank(b)).map(model => modelCard(lab, model, model === now, () => { close(); if (model !== now) choose(model); })), lab.models.filter(model => model.problem).map(model => h("p", { class: "note unusable", "data-model": model.name }, h("b", {}, modelTitle(lab, model)), " ", lab.localize(model.problem)))), { id: "model", class: "model-button", disabled: lab.exported, wide: true });
}
function modelCard(lab, model, here, onclick) {
  const { t } = lab, names = languageNames(lab), { card } = model, list = codes => codes.map(code => lab.language === "xx" ? `⟦${names.of(code)}⟧` : names.of(code)).join(t("and"));
  const main = card.score ? lab.localize(card.score) : card.scores?.[card.main] !== undefined ? [lab.term("metric", card.main), " ", metricValue(card.main, card.scores[card.main])] : null;
  const data = Array.isArray(card.data?.train) ? untranslated(card.data.train.slice(0, 2).map(name => truncate(String(name), 32)).join(", ")) : card.data?.en ? lab.localize(card.data) : null;
  const rows = [[t("reads"), [lab.term("modality", model.modality), model.languages.length ? [" · ", list(model.languages)] : null, card.target_languages ? [" → ", list(card.target_languages)] : null]], [t("task"), model.task && lab.term("task", model.task)], [t("data"), data], [t("scored"), main]];
  return h("button", { type: "button", class: "model-card", "data-model": model.name, "aria-pressed": here, autofocus: here, onclick },
    h("span", { class: "model-title" }, h("b", {}, modelTitle(lab, model)), model.folder ? null : untranslated(model.name, { class: "at" }), h("span", { class: model.hand_made ? "chip made" : "chip" }, t(model.hand_made ? "handMade" : "trained"))),
    card.summary ? h("span", { class: "soft" }, lab.localize(card.summary)) : null,
    h("span", { class: "facts" }, rows.filter(([, value]) => value).map(([name, value]) => [h("span", { class: "soft" }, name), h("span", {}, value)]), h("span", { class: "soft" }, t("size")), h("span", {}, t("layersCount", model.layers), " × ", t("headsCount", model.heads))));
}
// A metric's value: shares as per cent, the others with three digits.
export const metricValue = (name, value) => /accuracy|f1/i.test(name) && value <= 1 ? formatPercent(value) : formatShort(value);

// The example texts of a model: its own, else those of other models, without the query and head that they show there. Examples in the page's language come first.
export function examplesFor(lab, model) {
  const own = lab.examples.filter(example => example.model === model?.name), language = lab.language === "zh" ? "zh" : "en";
  const reads = written => !(model?.languages?.length && !model.languages.includes(written)) && !(model?.scripts?.length && !model.scripts.includes(written === "zh" ? "CJK" : "LATIN"));
  const texts = own.length ? own : lab.examples.filter(example => reads(example.language)).map(({ text, language }) => ({ text, language }));
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
// The caption of an example with what is measured here: the largest weight of its query, the query's own token (`own`) aside. `name(n)`: the token of a key.
export function captionWords(lab, example, weights, name, own = -1) {
  const [best] = topEntries(weights, 1, n => n === own);
  return [lab.localize(example.title), best ? ` ${lab.t("captionWeight", name(best.index), formatPercent(best.value))}` : ""];
}

// "Examples ▾"; only the sign where there is little room.
export const examplesSign = lab => [h("span", { class: "roomy" }, lab.t("examples"), " "), "▾"];
// A line of text that grows while it is edited (and one for a target text, if `target` is given) with a menu of examples; calls `onRun({text, target})`. For the bar.
export function inputBox(lab, { value, target, model, examples = examplesFor(lab, model), onRun, label, optional = false, run = lab.t("run") }) {
  const { t } = lab, areas = {};
  const problem = h("p", { role: "alert", hidden: true });
  const send = example => {
    fill(problem, areas.text.value.trim() || optional ? "" : t("emptyText")), problem.hidden = !problem.textContent;
    if (problem.hidden) onRun({ ...Object.fromEntries(Object.entries(areas).map(([name, area]) => [name, area.value])), example });
  };
  const area = (name, words, text) => {
    const grow = on => { const node = areas[name]; node.style.height = "", node.style.height = on && node.scrollHeight > node.clientHeight + 2 ? `${Math.min(node.scrollHeight + 4, innerHeight * 0.5)}px` : ""; };
    areas[name] = h("textarea",
      { rows: 1, spellcheck: "false", disabled: lab.exported, translate: "no", value: text ?? "", "aria-label": words, placeholder: words, "data-focus": name, onfocus: () => grow(true), oninput: () => grow(true), onblur: () => grow(false),
        onkeydown: event => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) event.preventDefault(), send(); } });
    return h("div", { class: "line-box" }, areas[name]);
  };
  const pick = (example, close) => { close(), areas.text.value = example.text; if (areas.target) areas.target.value = example.target ?? ""; send(example); };
  const menu = close => h("div", { class: "menu" }, examples.map(example => button([untranslated(truncate(visibleText(example.text), 90)), example.title ? h("span", { class: "soft" }, lab.localize(example.title)) : null], () => pick(example, close), { class: "example" })));
  return h("form", { class: "input", onsubmit: event => { event.preventDefault(), send(); } },
    area("text", label ?? t("text"), value), target !== undefined ? area("target", t("target"), target) : null,
    examples.length && !lab.exported ? popover(t("examples"), examplesSign(lab), menu, { wide: true, class: "quiet" }) : null,
    lab.exported ? null : h("button", { type: "submit", class: "strong", "data-focus": "run" }, run), problem);
}
// The text of the state, else of the first example.
export const startText = (lab, model, otherwise = "") => lab.state.text ?? examplesFor(lab, model)[0]?.text ?? otherwise;

// What must be said of the input: tokens that the model does not know, another language, its length, its looks. `modalities` are those of the page, for the offer of another model.
export function noticeBox(lab, notices, modalities) {
  const { t } = lab, listed = names => names.map(name => lab.localize(name)).join(t("and"));
  const offer = name => fitting(lab, modalities).some(model => model.name === name) ? button(t("openOffer", lab.models.find(model => model.name === name).folder ? name : lab.localize(lab.models.find(model => model.name === name).title)), () => lab.set({ model: name, attention: null, head: null, query: null, place: null }, { show: true, replace: false }), { class: "small" }) : null;
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
  if (!response.ok) throw await errorOf(response);
  return response.json();
}

const downloadSign = () => s("svg", { viewBox: "0 0 16 16", width: 13, height: 13, "aria-hidden": "true" }, s("path", { d: "M8 2v8M4.5 7 8 10.5 11.5 7M2.5 13.5h11", fill: "none", stroke: "currentColor", "stroke-width": 1.7 }));
// Download buttons; `files()` → {png, svg, csv, npz}: functions that create and save one file each.
export function fileButtons(lab, files) {
  const { t } = lab;
  return popover(t("download"), downloadSign(), close => h("div", { class: "files", role: "group", "aria-label": t("download") }, ["png", "svg", "csv", "npz"].map(kind =>
    button(t(kind), () => (close(), files()[kind]?.()), { class: "small", title: t("fileTip", t(kind)) }))), { class: "small files-open", "aria-label": t("download") });
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
  const token = item => item.token === undefined ? null : `source:${item.token}`, answers = items.map(item => h("span", { class: "answer", translate: "no", onpointerenter: () => lab.highlight(token(item)), onpointerleave: () => lab.highlight(null) }, many ? h("b", {}, names[item.token ?? item.node] ?? item.token) : null,
      h("span", {}, visibleText(item.label)), [prediction.type === "tags" ? tagGloss(lab, item.label) : labelGloss(lab, item.label)].filter(words => words && words !== item.label).map(words => h("span", { class: "at" }, words)),
      item.probability === undefined || item.probability === null ? null : h("span", { class: "at" }, `${(100 * item.probability).toFixed(1)} %`)));
  lab.onHighlight(lit => answers.forEach((node, n) => node.classList.toggle("hover", lit !== null && token(items[n]) === lit)));
  return h("div", { class: "prediction" }, h("span", { class: "soft" }, lab.t("prediction")), prediction.text === undefined ? null : untranslated(prediction.text, { class: "answer" }), answers);
}
// What a part-of-speech tag stands for, such as "noun" for NOUN or B-NOUN; empty for other tags.
export const tagGloss = (lab, tag) => { const name = /^(?:[BMES]-)?([A-Z]+)$/.exec(tag)?.[1], words = name && lab.term("tag", name); return typeof words === "string" ? words : ""; };
// A class of a shipped model in the page's language; empty for others.
const labelGloss = (lab, label) => { const words = lab.term("label", label); return typeof words === "string" ? words : ""; };
// The backend that ran, and the difference between the numbers shown and its output (a number, or {largest}).
export function backendLine(lab, { backend, attentions = [], difference }) {
  const who = backend ?? [...new Set(attentions.map(one => one.backend).filter(Boolean))].join(", "), far = difference?.largest ?? difference;
  return h("p", { class: "soft ran" }, lab.t("ran", who || "–", typeof far === "number" ? scientific(far.toExponential(1)) : "–"));
}
export const cautionLine = lab => h("p", { class: "honest" }, lab.t("honest"));
export const sizeLine = (lab, size, time) => h("p", { class: "soft", id: "cost" }, lab.t("bytesSent", formatBytes(size), Math.round(time)));
