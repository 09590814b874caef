// Course: chapters of steps. Each step has a claim, something to change, pictures that follow, code, findings and the measured verdict.
import { button } from "lab/controls.js";
import { fill, h, newId, scientific } from "lab/dom.js";
import { codeBlock } from "lab/course/code.js";
import { makeControl } from "lab/course/controls.js";
import { makePicture } from "lab/course/pictures.js";

export const name = "course";
export const text = {
  en: {
    title: "Course", lead: "Claims about attention, step by step, with numbers that you can change.",
    chapters: "Chapters", steps: "Steps of the chapter", stepOf: (n, all) => `Step ${n} of ${all}`, chapter: (n, title) => `${n} ${title}`, goStep: (n, title) => `Step ${n}: ${title}`, previousStep: "Previous step", nextStep: "Next step", nextChapter: title => `Next chapter: ${title}`, courseEnd: "This was the last step.",
    tryThis: "Try", reset: "Start values", findings: "What the numbers say", holds: "holds", fails: "does not hold for these values",
    verdicts: "Measured", openExperiment: "Open the experiment", notMeasured: "not measured yet", seeInLab: "See it in a trained model", part: (text, figures) => `${text}: ${figures}`,
    code: "The code", inNumpy: "In NumPy", inRegard: "The same in Regard", difference: x => `largest difference to NumPy: ${x}`,
    keysHelp: "n: next step · p: previous step · numbers can be dragged sideways or stepped with ↑ and ↓", dragHelp: "Drag the arrow tips, or focus one and use the arrow keys.", arrowHelp: name => `${name}: the arrow keys move this arrow`, paintHelp: "Press and drag to paint; with the keyboard: arrow keys and space.", mostWords: n => `up to ${n} words`, empty: "This chapter has no steps yet.",
  },
  zh: {
    title: "课程", lead: "一步一步检验关于注意力的说法，每个数字都可以改动。",
    chapters: "章节", steps: "本章的步骤", stepOf: (n, all) => `第 ${n} 步，共 ${all} 步`, chapter: (n, title) => `${n} ${title}`, goStep: (n, title) => `第 ${n} 步：${title}`, previousStep: "上一步", nextStep: "下一步", nextChapter: title => `下一章：${title}`, courseEnd: "这是最后一步。",
    tryThis: "试一试", reset: "恢复初值", findings: "数字说明了什么", holds: "成立", fails: "在当前取值下不成立",
    verdicts: "实测结论", openExperiment: "打开实验", notMeasured: "尚未测量", seeInLab: "在训练好的模型里看", part: (text, figures) => `${text}：${figures}`,
    code: "代码", inNumpy: "用 NumPy", inRegard: "用 Regard 的同一计算", difference: x => `与 NumPy 的最大差：${x}`,
    keysHelp: "n：下一步 · p：上一步 · 数字可以左右拖动，也可以用 ↑ ↓ 增减", dragHelp: "拖动箭头的尖端，或选中后用方向键移动。", arrowHelp: name => `${name}：用方向键移动这个箭头`, paintHelp: "按住并拖动来涂画；用键盘时按方向键和空格。", mostWords: n => `最多 ${n} 个词`, empty: "本章还没有步骤。",
  },
};
const VISITED = "regard.course", NARROW = 1080;
const visited = { read() { try { return new Set(JSON.parse(localStorage.getItem(VISITED) ?? "[]")); } catch { return new Set(); } }, add(name) { try { localStorage.setItem(VISITED, JSON.stringify([...this.read().add(name)])); } catch { /* a private window */ } } };

export async function show(root, lab) {
  const { chapters, kinds } = await lab.request("course/list", {}), all = chapters.flatMap(chapter => chapter.steps.map(step => ({ chapter, step })));
  const at = Math.max(0, all.findIndex(({ step }) => step.name === lab.state.step)), { chapter, step } = all[at], [before, after] = [all[at - 1], all[at + 1]];
  const go = to => to && lab.set({ step: to.step.name, values: null }, { replace: false, show: true });
  visited.add(step.name);
  lab.setHeading(lab.localize(step.title), lab.localize(step.claim));
  root.classList.add("course");
  root.append(chapterBar(lab, chapters, chapter, step, all, go, before, after));
  await showStep(root, lab, step, kinds);
  root.append(stepFoot(lab, chapter, before, after, go));
  const keys = event => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, textarea, select, [contenteditable]")) return;
    const to = { n: after, p: before }[event.key];
    if (to) event.preventDefault(), go(to);
  };
  document.addEventListener("keydown", keys, { signal: lab.signal });
  lab.signal.addEventListener("abort", () => root.classList.remove("course"));
}

// The values of the address, where they fit the step; the others are its start values.
function startValues(lab, step) {
  const language = lab.language === "zh" ? "zh" : "en", start = step.start[language];
  let given = {};
  try { given = JSON.parse(lab.state.values ?? "{}"); } catch { /* an address that was cut off */ }
  const names = new Set(step.controls.map(control => control.name));
  return { language, start, values: { ...start, ...Object.fromEntries(Object.entries(given).filter(([name]) => names.has(name))) } };
}

async function showStep(root, lab, step, kinds) {
  const { language, start, values } = startValues(lab, step);
  step = Object.assign(Object.create(step), { values });
  const changed = () => Object.fromEntries(Object.entries(step.values).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(start[name])));
  let answer, controls = [], parts = [], busy = false, again = false;
  const ask = async () => { const found = await lab.request("course/run", { step: step.name, values: changed(), language }); return { ...found, result: revive(found.result) }; };
  // One request at a time: what changes meanwhile is sent when its answer has come.
  async function follow() {
    if (busy) { again = true; return; }
    busy = true;
    do {
      again = false;
      await lab.attempt(async () => { answer = await ask(), root.querySelector(":scope > .error")?.remove(), display(); }, root);
    } while (again && !lab.signal.aborted);
    busy = false;
  }
  const writeValues = lab.debounce(() => lab.set({ values: Object.keys(changed()).length ? JSON.stringify(changed()) : null }), 250);
  const change = changes => {
    Object.assign(step.values, changes);
    for (const { name, show } of controls) if (name in changes) show(step.values[name]);
    writeValues();
    reset.disabled = !Object.keys(changed()).length;
    follow();
  };
  const display = () => { for (const part of parts) part.update(answer.result); code.update(answer), showFindings(findings, lab, answer.findings); };
  answer = await ask();
  const reset = button(lab.t("reset"), () => change(structuredClone(start)), { class: "small", disabled: !Object.keys(changed()).length });
  controls = step.controls.map(control => ({ name: control.name, ...makeControl(control, step.values[control.name], lab, step, change) }));
  parts = await Promise.all(step.pictures.map(picture => makePicture(picture, answer.result, lab, step, change)));
  const code = codeBlock(lab, step, change), findings = h("ul", { class: "findings" });
  const stage = h("div", { class: "course-pictures" });
  const side = h("aside", { class: "course-side" }, h("div", { class: "task" }, h("p", {}, h("b", {}, lab.t("tryThis")), " ", lab.localize(step.task))),
    controls.length ? h("div", { class: "controls" }, controls.map(control => control.node), h("p", { class: "reset" }, reset)) : null);
  const wide = parts.some(part => part.wide), told = answer.findings.length ? h("section", { class: "picture findings-box", "aria-live": "polite" }, h("h2", {}, lab.t("findings")), findings) : null;
  const cards = [...parts.map(part => part.node), ...(told && !wide ? [told] : [])];
  root.append(h("div", { class: `course-body ${wide ? "wide" : ""}` }, stage, side, wide ? told : null));
  showFindings(findings, lab, answer.findings), fill(stage, cards), arrange(stage, cards, side);
  for (const part of parts) part.start();
  arrange(stage, cards, side);
  root.append(step.evidence.length || step.link ? verdictCard(lab, step, kinds) : "", h("details", { class: "course-code", open: true }, h("summary", {}, h("h2", {}, lab.t("code"))), code.node));
  code.update(answer);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; arrange(stage, cards, side); for (const part of parts) part.redraw(answer.result); } }, { signal: lab.signal });
  lab.expose({ read: () => ({ step: step.name, values: step.values, result: answer.result, attend: answer.attend, findings: answer.findings }) });
}
// Pictures in two columns where there is room, each in the shorter one; a drawing is as wide as both.
// Where all stands in one column, what can be changed follows the first picture.
function arrange(stage, nodes, side) {
  const narrow = innerWidth <= NARROW;
  if (!narrow && side.parentNode !== stage.parentNode) stage.after(side);
  if (stage.clientWidth < 660 || nodes.length < 2) { fill(stage, narrow ? [nodes[0], side, nodes.slice(1)] : nodes); return; }
  const heights = nodes.map(node => node.offsetHeight), blocks = [];
  let columns = null;
  nodes.forEach((node, n) => {
    if (node.matches(".picture-drawing, .picture-whole")) { columns = null, blocks.push(node); return; }
    if (!columns) columns = [0, 1].map(() => ({ node: h("div", { class: "picture-column" }), tall: 0 })), blocks.push(h("div", { class: "picture-columns" }, columns.map(column => column.node)));
    const shorter = columns[1].tall < columns[0].tall ? columns[1] : columns[0];
    shorter.node.append(node), shorter.tall += heights[n];
  });
  fill(stage, narrow ? [blocks[0], side, blocks.slice(1)] : blocks);
  for (const block of blocks) if (block.children.length === 2 && block.matches(".picture-columns") && !block.lastChild.children.length) block.replaceWith(...block.firstChild.children);
}
// JSON has no infinities: the server writes their names.
const NAMES = { NaN, Infinity, "-Infinity": -Infinity };
const revive = value => Array.isArray(value) ? value.map(revive) : value !== null && typeof value === "object" ? Object.fromEntries(Object.entries(value).map(([name, item]) => [name, revive(item)])) : typeof value === "string" && value in NAMES ? NAMES[value] : value;

function showFindings(list, lab, findings) {
  fill(list, findings.map(finding => h("li", { class: finding.holds ? "holds" : "fails" }, h("span", { class: "finding-sign", "aria-hidden": "true" }, finding.holds ? "✓" : "✗"),
    h("span", { class: "unseen" }, lab.t(finding.holds ? "holds" : "fails")), h("p", {}, lab.language === "xx" ? lab.localize(finding) : withNumbers(lab.localize(finding))))));
}
// Numbers in a sentence stand out.
const withNumbers = words => words.split(/((?<![A-Za-z_^\d.])[−-]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?: ?[%×])?)/).map((part, n) => n % 2 ? h("b", { class: "digits" }, /\de/.test(part) ? scientific(part) : part.replace("-", "−")) : part);

function verdictCard(lab, step, kinds) {
  const { t } = lab, experiments = lab.pages.includes("experiments");
  const keep = Object.fromEntries(["lang", "theme"].filter(key => lab.state[key]).map(key => [key, lab.state[key]]));
  const address = (page, state) => `#${page}?${new URLSearchParams({ ...state, ...keep })}`;
  const one = ({ experiment, title, verdict }) => h("article", { class: "evidence", "data-experiment": experiment },
    h("p", { class: "evidence-title" }, verdict ? h("span", { class: `verdict ${verdict.kind}`, title: lab.localize(kinds[verdict.kind]) }, `${kinds[verdict.kind].sign} `, lab.localize(kinds[verdict.kind])) : h("span", { class: "soft" }, t("notMeasured")), " ", h("b", {}, title ? lab.localize(title) : h("span", { translate: "no" }, experiment))),
    verdict?.parts.length ? h("ul", { class: "subclaims" }, verdict.parts.map(part => h("li", { class: part.holds ? "holds" : "fails" }, h("span", { class: "finding-sign" }, part.holds ? "✓" : "✗"), h("p", {}, lab.localize(part.text), " ", h("span", { class: "figures" }, lab.localize(part.figures).replace(/\d(?:\.\d+)?e[-+]\d+/g, scientific)))))) : verdict ? h("p", {}, lab.localize(verdict.key)) : null,
    h("a", { href: experiments ? address("experiments", { experiment }) : address("runs", { view: "experiments", experiment }) }, t("openExperiment")));
  const [page, query = ""] = step.link.split("?");
  return h("section", { class: "verdicts" }, step.evidence.length ? [h("h2", {}, t("verdicts")), h("div", { class: "evidences" }, step.evidence.map(one))] : null,
    step.link ? h("p", {}, h("a", { class: "lab-link", href: address(page, Object.fromEntries(new URLSearchParams(query))) }, t("seeInLab"), " →")) : null);
}

function chapterBar(lab, chapters, chapter, step, all, go, before, after) {
  const { t } = lab, seen = visited.read(), place = chapter.steps.indexOf(step);
  return h("nav", { class: "course-bar", "aria-label": t("chapters") },
    h("ol", { class: "chapter-list" }, chapters.map(one => h("li", {}, h("button", { type: "button", "aria-current": one === chapter ? "true" : null, disabled: !one.steps.length, title: lab.localize(one.title), onclick: () => go(all.find(held => held.chapter === one)) }, h("b", {}, one.number), h("span", { class: "chapter-name" }, lab.localize(one.title)))))),
    h("div", { class: "step-line" }, h("ol", { class: "pips", "aria-label": t("steps") }, chapter.steps.map((one, n) => h("li", {}, h("button", { type: "button", class: `pip ${seen.has(one.name) ? "seen" : ""}`, "aria-current": one === step ? "step" : null, "aria-label": t("goStep", n + 1, lab.localize(one.title)), title: lab.localize(one.title), onclick: () => go(all.find(held => held.step === one)) })))),
      h("span", { class: "soft step-count" }, t("stepOf", place + 1, chapter.steps.length)),
      h("span", { class: "step-buttons" }, button("←", () => go(before), { class: "step-previous", disabled: !before, "aria-label": t("previousStep"), title: t("previousStep") }), button("→", () => go(after), { class: "step-next strong", disabled: !after, "aria-label": t("nextStep"), title: t("nextStep") }))));
}
function stepFoot(lab, chapter, before, after, go) {
  const { t } = lab, words = after && (after.chapter === chapter ? lab.localize(after.step.title) : t("nextChapter", lab.localize(after.chapter.title)));
  return h("div", { class: "course-foot" }, before ? button([h("span", { class: "soft" }, `← ${t("previousStep")}`), h("span", {}, lab.localize(before.step.title))], () => go(before), { class: "foot-step" }) : h("span", {}),
    after ? button([h("span", { class: "soft" }, `${t("nextStep")} →`), h("span", {}, words)], () => go(after), { class: "foot-step right", id: newId() }) : h("p", { class: "soft" }, t("courseEnd")), h("p", { class: "soft foot-help" }, t("keysHelp")));
}

// A saved view holds the list and the present numbers in both languages, whatever was dragged before.
export async function keep(lab) {
  const { step } = window.lab.read(), values = JSON.parse(lab.state.values ?? "{}");
  await lab.request("course/list", {});
  return ["en", "zh"].map(language => ({ path: "course/run", body: { step, values, language } }));
}
