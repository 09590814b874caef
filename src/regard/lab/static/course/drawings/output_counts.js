// N vectors go in; N labels, one label or M labels come out. Each row links to a trained model of that kind.
//
// Reads count, each, whole and free of the result.
import { fill, h, s } from "lab/dom.js";

const ROWS = [
  { name: "each", sign: "N → N", task: { en: "a label for each vector: tagging", zh: "每个向量一个标签：词性标注" }, links: { en: ["heads", "tagger"], zh: ["heads", "tagger-zh"] }, model: { en: "the tagger", zh: "词性标注模型" } },
  { name: "whole", sign: "N → 1", task: { en: "one label for all: a spoken word, a sentiment", zh: "整体一个标签：语音单词、情感" }, links: { en: ["sound", "spoken-digits"] }, model: { en: "spoken digits", zh: "语音数字模型" } },
  { name: "free", sign: "N → M", task: { en: "as many as the model decides: translation", zh: "个数由模型决定：翻译" }, links: { en: ["alignment", "translator"], zh: ["alignment", "translator-zh-en"] }, model: { en: "the translator", zh: "翻译模型" } },
];
const TEXT = { open: { en: "Open", zh: "打开" }, vectors: { en: "vectors", zh: "个向量" }, labels: { en: "labels", zh: "个标签" }, label: { en: "label", zh: "个标签" }, vector: { en: "vector", zh: "个向量" } };
const COLOURS = ["--query", "--value", "--output"];

export function draw(host, result, lab) {
  const keep = Object.fromEntries(["lang", "theme"].filter(key => lab.state?.[key]).map(key => [key, lab.state[key]]));
  // the model that reads the page's language, where it is installed
  const address = links => { const own = links[lab.language], [page, model] = own && lab.models.some(one => one.name === own[1]) ? own : links.en; return `#${page}?${new URLSearchParams({ model, ...keep })}`; };
  const show = now => fill(host, h("div", { style: { display: "grid", gap: "16px" } }, ROWS.map(row => {
    const labels = [now[row.name]].flat(), most = Math.max(now.count, labels.length), step = Math.min(30, 620 / most), side = step * 0.78;
    const middle = (count, n) => (n + 0.5 + (most - count) / 2) * step, width = most * step;
    return h("div", {}, h("p", { style: { margin: "0 0 4px" } }, h("b", { class: "digits" }, row.sign), " ", lab.localize(row.task), " · ", h("a", { href: address(row.links) }, lab.localize({ en: `${TEXT.open.en} ${row.model.en}`, zh: `${TEXT.open.zh}${row.model.zh}` }))),
      s("svg", { viewBox: `0 0 ${width + 110} 92`, class: "chart", role: "img", "aria-label": `${now.count} → ${labels.length}`, style: `width:100%;max-width:${width + 110}px` },
        labels.map((_, m) => Array.from({ length: now.count }, (_, n) => s("line", { x1: middle(now.count, n), y1: 70 - side / 2, x2: middle(labels.length, m), y2: 20 + side / 2, style: "stroke:var(--faint);stroke-width:.7;opacity:.5" }))),
        labels.map((label, m) => [s("circle", { cx: middle(labels.length, m), cy: 20, r: side / 2, style: `fill:var(${COLOURS[label]})` }), s("text", { x: middle(labels.length, m), y: 24, "text-anchor": "middle", style: "font-size:11px;fill:var(--paper)", "data-name": row.name, "data-i": row.name === "whole" ? null : m, "data-value": label }, label + 1)]),
        Array.from({ length: now.count }, (_, n) => s("rect", { x: middle(now.count, n) - side / 2, y: 70 - side / 2, width: side, height: side, rx: 4, style: "fill:var(--wash);stroke:var(--soft)" })),
        s("text", { x: width + 8, y: 24, style: "font-size:13px;fill:var(--ink)" }, `${labels.length} ${lab.localize(labels.length === 1 ? TEXT.label : TEXT.labels)}`), s("text", { x: width + 8, y: 74, style: "font-size:13px;fill:var(--ink)" }, `${now.count} ${lab.localize(now.count === 1 ? TEXT.vector : TEXT.vectors)}`)));
  })));
  show(result);
  return show;
}
