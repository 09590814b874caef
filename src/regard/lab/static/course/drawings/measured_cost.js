// Measured times of one layer by length: numbers of the experiment `cost`, beside the length that the reader chose.
import { formatBrief, h } from "lab/dom.js";
import { drawLines } from "lab/course/lines.js";

const SERIES = [["recurrence", { en: "LSTM", zh: "LSTM" }], ["attention", { en: "attention, weights stored", zh: "注意力，存下权重" }], ["blocks", { en: "attention, in blocks", zh: "注意力，分块计算" }]];
const TEXT = {
  at: { en: (length, dim, parts) => `Nearest measured length: L = ${length}, d = ${dim}: ${parts}.`, zh: (length, dim, parts) => `最近的实测长度：L = ${length}，d = ${dim}：${parts}。` },
  missing: { en: "The experiment “cost” has no published result.", zh: "实验“cost”还没有公布的结果。" },
};

export function draw(host, result, lab, step) {
  const numbers = step.picture.numbers;
  if (!numbers) return void host.append(h("p", { class: "soft" }, lab.localize(TEXT.missing)));
  const { lengths, times, dim = 64 } = numbers, data = Object.fromEntries(SERIES.map(([name]) => [name, times.layers[name].map(x => 1000 * x)]));
  const picture = { ...step.picture, x: "lengths", ys: SERIES, log_x: true, log_y: true, marker: "length", x_label: { en: "words L", zh: "词数 L" }, y_label: { en: "milliseconds", zh: "毫秒" } };
  const chart = h("div"), note = h("p", { class: "soft" });
  host.append(chart, note);
  const within = length => Math.max(lengths[0], Math.min(lengths.at(-1), length)), given = now => ({ ...data, lengths, length: within(now.length) });
  const follow = drawLines(chart, given(result), lab, Object.create(step, { picture: { value: picture } }));
  const show = now => {
    follow(given(now));
    const n = lengths.reduce((best, length, m) => Math.abs(Math.log(length / now.length)) < Math.abs(Math.log(lengths[best] / now.length)) ? m : best, 0);
    const parts = (language, mark) => SERIES.map(([name, label]) => `${label[language]} ${formatBrief(data[name][n], 2)} ms`).join(mark);
    note.textContent = lab.localize({ en: TEXT.at.en(lengths[n], dim, parts("en", "; ")), zh: TEXT.at.zh(lengths[n], dim, parts("zh", "；")) }), note.dataset.name = "measured", note.dataset.value = data.attention[n] / data.recurrence[n];
  };
  show(result);
  return show;
}
