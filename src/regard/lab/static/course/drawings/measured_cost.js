// Measured times of one layer over the length and over the dimension: numbers of the experiment `paths`, beside the
// length and the dimension that the reader chose.
import { formatBrief, h } from "lab/dom.js";
import { drawLines } from "lab/course/lines.js";

const SERIES = [["recurrent", { en: "recurrent (GRU)", zh: "循环（GRU）" }], ["attention", { en: "attention", zh: "注意力" }]];
const CHARTS = [
  { axis: "lengths", over: "length", chosen: "length", label: { en: "words L", zh: "词数 L" }, note: { en: (value, fixed, ratio) => `At L = ${value}, d = ${fixed}: attention takes ${ratio} times as long as the GRU.`, zh: (value, fixed, ratio) => `L = ${value}，d = ${fixed}：注意力用时是 GRU 的 ${ratio} 倍。` }, fixed: "dim" },
  { axis: "dims", over: "dim", chosen: "dim", label: { en: "size of a vector d", zh: "向量大小 d" }, note: { en: (value, fixed, ratio) => `At L = ${fixed}, d = ${value}: attention takes ${ratio} times as long as the GRU.`, zh: (value, fixed, ratio) => `L = ${fixed}，d = ${value}：注意力用时是 GRU 的 ${ratio} 倍。` }, fixed: "length" },
];
const MISSING = { en: "The experiment has no published result.", zh: "这个实验还没有公布的结果。" };

export function draw(host, result, lab, step) {
  const numbers = step.picture.numbers;
  if (!numbers) return void host.append(h("p", { class: "soft" }, lab.localize(MISSING)));
  const updates = CHARTS.map(chart => drawChart(host, result, lab, step, numbers, chart));
  return now => updates.forEach(update => update(now));
}
function drawChart(host, result, lab, step, numbers, { axis, over, chosen, label, note, fixed }) {
  const sizes = numbers[axis], data = Object.fromEntries(SERIES.map(([name]) => [name, numbers.times[name][over].map(x => 1000 * x)]));
  const picture = { ...step.picture, x: axis, ys: SERIES, log_x: true, log_y: true, marker: "marker", x_label: label, y_label: { en: "milliseconds", zh: "毫秒" } };
  const chart = h("div"), words = h("p", { class: "soft", "data-name": `measured-${over}` });
  host.append(chart, words);
  const given = now => ({ ...data, [axis]: sizes, marker: Math.max(sizes[0], Math.min(sizes.at(-1), now[chosen])) });
  const follow = drawLines(chart, given(result), lab, Object.create(step, { picture: { value: picture } }));
  const show = now => {
    follow(given(now));
    const apart = size => Math.abs(Math.log(size / now[chosen])), n = sizes.reduce((best, size, m) => apart(size) < apart(sizes[best]) ? m : best, 0), ratio = data.attention[n] / data.recurrent[n];
    const sentence = language => note[language](sizes[n], numbers[fixed], formatBrief(ratio, 2));
    words.textContent = lab.localize({ en: sentence("en"), zh: sentence("zh") }), words.dataset.value = ratio;
  };
  show(result);
  return show;
}
