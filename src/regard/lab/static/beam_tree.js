// The beam search as a tree: a column for each step, a line from each token to the one it continues, as wide as its probability.
import { clamp, h, s, textWidth, visibleText } from "lab/dom.js";

const ROW = 27, LEFT = 30;

// The places of a hypothesis, [[step, place], …], collected backwards through its parents.
export function pathOf(steps, step, place) {
  const path = [];
  for (let at = step, n = place; at >= 0 && n >= 0; at--) path.unshift([at, n]), n = at ? parentOf(steps, at, n) : -1;
  return path;
}
const parentOf = (steps, step, n) => steps[step - 1].findIndex(held => held.slot === steps[step][n].parent);
// Where a finished hypothesis ends in the tree.
export function endOf(steps, tokens) {
  const step = Math.min(tokens.length, steps.length) - 1, same = n => pathOf(steps, step, n).every(([at, place]) => steps[at][place].token === tokens[at]);
  return [step, steps[step].findIndex((_, n) => same(n))];
}

// `onPick(step, place)` is called by a click on a token. `show(step, place, last)`: the hypothesis that ends there is strong, and what comes after step `last` is not there yet.
export function beamTree(lab, steps, { label, status, onPick }) {
  const names = steps.map(step => step.map(one => visibleText(one.piece))), wide = names.map(list => clamp(textWidth(list, 14), 12, 130)), x = [LEFT];
  const gap = clamp((innerWidth - 760) / steps.length - wide.reduce((sum, width) => sum + width, 0) / steps.length, 38, 90);
  for (const width of wide) x.push(x.at(-1) + width + gap);
  const y = n => 20 + n * ROW, tall = y(Math.max(...steps.map(step => step.length))) - 4, width = x.at(-1) + 10;
  const start = [8, y(0)], from = (step, n) => step < 0 ? start : [x[step] + Math.min(wide[step], textWidth([names[step][n]], 14)) + 6, y(n)];
  const link = (step, n) => { const [a, b] = from(step - 1, step ? parentOf(steps, step, n) : 0), to = x[step] - 5, middle = (a + to) / 2; return `M${a} ${b}C${middle} ${b} ${middle} ${y(n)} ${to} ${y(n)}`; };
  const lines = steps.map((step, at) => step.map((one, n) => s("path", { d: link(at, n), class: `beam-link status-${one.status}`, "stroke-width": 1 + 5 * Math.exp(one.log_prob) })));
  const nodes = steps.map((step, at) => step.map((one, n) => s("g", { class: `beam-node status-${one.status}`, translate: "no", onclick: () => onPick(at, n) },
    s("title", {}, `${(100 * Math.exp(one.log_prob)).toFixed(1)} % · ${status(one.status)}`), s("rect", { x: x[at] - 4, y: y(n) - 11, width: wide[at] + 10, height: 23, rx: 6 }), s("text", { x: x[at], y: y(n) + 5 }, names[at][n]), one.status === "ends" ? s("circle", { cx: from(at, n)[0] + 6, cy: y(n), r: 4 }) : null)));
  const picture = s("svg", { viewBox: `0 0 ${width} ${tall}`, width, height: tall, class: "beam-tree", role: "img", "aria-label": label }, s("circle", { cx: start[0], cy: start[1], r: 4, class: "beam-start" }), lines, nodes);
  const element = h("div", { class: "beam-scroll", tabindex: 0, role: "region", "aria-label": label }, picture);
  function show(step, place, last = step) {
    const path = new Set(pathOf(steps, step, place).map(([at, n]) => `${at}.${n}`));
    steps.forEach((list, at) => list.forEach((_, n) => { for (const node of [lines[at][n], nodes[at][n]]) node.classList.toggle("chosen", path.has(`${at}.${n}`)), node.classList.toggle("later", at > last); }));
    const right = x[step + 1];
    if (right > element.scrollLeft + element.clientWidth || x[step] < element.scrollLeft) element.scrollLeft = right - element.clientWidth + 20;
  }
  return { element, show };
}
