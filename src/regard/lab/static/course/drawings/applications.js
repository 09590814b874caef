// Where attention is used: field, task, who asks and who answers, model families, and trained models to open in the lab.
import { fill, h } from "lab/dom.js";

const FIELDS = { text: { en: "text", zh: "文本" }, image: { en: "images", zh: "图像" }, both: { en: "across modalities", zh: "跨模态" } };
const ROWS = [
  { task: "translation", field: "text", title: { en: "translation", zh: "机器翻译" }, pairs: { en: "target → source", zh: "目标 → 源" }, families: "Transformer, Marian, T5", code: "rg.models.transformer", links: [["alignment", "translator"], ["alignment", "translator-zh-en"]] },
  { task: "generation", field: "text", title: { en: "text generation", zh: "文本生成" }, pairs: { en: "word → earlier words", zh: "词 → 前文" }, families: "GPT-2, Llama", code: "rg.models.gpt2", links: [["heads", "writer"], ["heads", "poet"], ["heads", "shakespeare"]] },
  { task: "classification", field: "text", title: { en: "classification, tagging", zh: "文本分类、标注" }, pairs: { en: "[CLS] or word → all words", zh: "[CLS] 或词 → 全部词" }, families: "BERT", code: "rg.models.bert", links: [["heads", "tagger"], ["heads", "tagger-zh"]] },
  { task: "images", field: "image", title: { en: "image classification", zh: "图像分类" }, pairs: { en: "patch → all patches", zh: "图块 → 全部图块" }, families: "ViT", code: "rg.models.vit", links: [["image", "digits"]] },
  { task: "detection", field: "image", title: { en: "object detection", zh: "目标检测" }, pairs: { en: "object query → patches", zh: "物体查询 → 图块" }, families: "DETR", code: "rg.models.detr", links: [] },
  { task: "matching", field: "both", title: { en: "matching images and texts", zh: "图文匹配" }, pairs: { en: "within each, then compared", zh: "各自内部，再比较" }, families: "CLIP", code: "rg.models.clip", links: [] },
  { task: "speech", field: "both", title: { en: "speech recognition", zh: "语音识别" }, pairs: { en: "text → frames", zh: "文字 → 语音帧" }, families: "Whisper", code: "rg.models.whisper", links: [["sound", "spoken-digits"]] },
];
const TEXT = { field: { en: "field", zh: "领域" }, task: { en: "task", zh: "任务" }, pairs: { en: "who attends to what", zh: "谁关注什么" }, families: { en: "models", zh: "模型" }, open: { en: "build it, or open a trained one", zh: "自己构建，或打开训练好的" } };

export function draw(host, result, lab, step, change) {
  const keep = Object.fromEntries(["lang", "theme"].filter(key => lab.state?.[key]).map(key => [key, lab.state[key]]));
  const link = ([page, model]) => h("a", { href: `#${page}?${new URLSearchParams({ model, ...keep })}`, translate: "no", style: { "margin-left": "8px" } }, model);
  const show = now => fill(host, h("div", { class: "table-scroll", style: { "max-height": "none" }, tabindex: 0, role: "region", "aria-label": lab.localize(step.picture.title) }, h("table", { class: "numbers" },
    h("thead", {}, h("tr", {}, ["field", "task", "pairs", "families", "open"].map(key => h("th", { scope: "col", style: { "text-align": "left" } }, lab.localize(TEXT[key]))))),
    h("tbody", {}, ROWS.map(row => h("tr", { "data-task": row.task, style: row.task === now.task ? { background: "var(--accent-wash)" } : {} },
      h("td", { style: { "white-space": "nowrap" } }, lab.localize(FIELDS[row.field])), h("td", {}, h("button", { type: "button", class: "small", style: { "white-space": "nowrap" }, "aria-pressed": String(row.task === now.task), onclick: () => change({ task: row.task }) }, lab.localize(row.title))), h("td", { style: { "min-width": "8.5em" } }, lab.localize(row.pairs)), h("td", { translate: "no" }, row.families), h("td", {}, h("code", { translate: "no" }, row.code), row.links.filter(([, model]) => lab.models.some(one => one.name === model)).map(link))))))));
  show(result);
  return show;
}
