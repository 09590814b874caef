// Inputs below, outputs above: lines from every input to the selected output, with its scores and weights.
//
// Reads scores, weights, v and output of the result and the control `inputs`. Clicking an output selects it.
import { fill, h, s } from "lab/dom.js";

const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const TEXT = { hint: { en: "Click an output b, or use ← and →. Below it: score α and weight α̂ for each input.", zh: "点击一个输出 b，或用 ← → 选择。下方是它对每个输入的分数 α 与权重 α̂。" } };
const number = x => x.toFixed(2).replace("-", "−"), vector = row => `(${row.map(number).join(", ")})`;
const WIDTH = 520, HEIGHT = 290, TOP = 42, BOTTOM = 232;

export function draw(host, result, lab, step) {
  let latest = result, selected = 0;
  const select = n => { selected = n, show(), host.querySelector(`[data-output="${n}"]`).focus({ preventScroll: true }); };
  function show() {
    const { weights, scores, output } = latest, count = weights.length, x = n => (n + 0.5) * WIDTH / count;
    const box = (n, y, name, row, colour, strong) => [s("rect", { x: x(n) - 56, y: y - 24, width: 112, height: 48, rx: 9, style: `fill:var(--paper);stroke:var(${colour});stroke-width:${strong ? 3 : 1.2}` }),
      s("text", { x: x(n), y: y - 5, "text-anchor": "middle", style: `font-size:15px;font-weight:650;fill:var(${colour})` }, `${name}${SUPERSCRIPTS[n + 1]}`), s("text", { x: x(n), y: y + 14, "text-anchor": "middle", class: "digits", style: "font-size:11.5px;fill:var(--ink)" }, vector(row))];
    const curve = (from, to) => `M${x(from)} ${BOTTOM - 24}C${x(from)} ${BOTTOM - 95},${x(to)} ${TOP + 95},${x(to)} ${TOP + 24}`;
    const line = (i, j) => s("path", { d: curve(j, i), "data-name": "weights", "data-i": i, "data-j": j, "data-value": weights[i][j], style: `fill:none;stroke:var(${i === selected ? "--accent" : "--faint"});stroke-width:${(0.5 + 14 * weights[i][j] * (i === selected ? 1 : 0.5)).toFixed(2)};opacity:${i === selected ? 0.75 : 0.16};stroke-linecap:round` });
    const others = weights.flatMap((row, i) => i === selected ? [] : row.map((_, j) => line(i, j)));
    fill(host, s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "group", "aria-label": lab.localize(step.picture.title), style: `width:100%;max-width:${WIDTH + 60}px` }, others, weights[selected].map((_, j) => line(selected, j)),
      step.values.inputs.map((row, n) => [box(n, BOTTOM, "a", row, "--soft", false), s("text", { x: x(n), y: BOTTOM + 46, "text-anchor": "middle", class: "digits", style: "font-size:12.5px;fill:var(--accent)" }, `α ${number(scores[selected][n])} → α̂ ${number(weights[selected][n])}`)]),
      output.map((row, n) => s("g", { tabindex: n === selected ? 0 : -1, role: "button", "aria-pressed": String(n === selected), "aria-label": `b${SUPERSCRIPTS[n + 1]} = ${vector(row)}`, "data-output": n, style: "cursor:pointer", onclick: () => select(n),
        onkeydown: event => { const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key]; if (by) event.preventDefault(), select((n + by + count) % count); } }, box(n, TOP, "b", row, "--output", n === selected)))),
    h("p", { class: "soft" }, lab.localize(TEXT.hint)));
  }
  show();
  return now => { latest = now, show(); };
}
