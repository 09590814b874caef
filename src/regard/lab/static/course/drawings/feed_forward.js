// Six neurons and who reads whom, beside the families of networks, one inside the other.
import { s } from "lab/dom.js";

const FAMILIES = [
  { en: "recurrent: a path returns", zh: "循环网络：路径绕回来" }, { en: "feed-forward network: no path returns", zh: "前馈网络：没有回路" }, { en: "MLP: layers, fully connected", zh: "多层感知机：逐层全连接" },
];
const ALL = { en: "networks of neurons", zh: "神经元的网络" }, NAMES = ["x1", "x2", "h1", "h2", "y1", "y2"];

export function draw(host, result, lab, step) {
  const narrow = host.clientWidth < 540, width = narrow ? 360 : 720, height = narrow ? 516 : 270, wires = s("g"), cells = s("g"), boxes = s("g", { transform: narrow ? "translate(0 250)" : "translate(370 0)" });
  const at = n => [60 + Math.floor(n / 2) * 115, 70 + (n % 2) * 120];
  host.append(s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": lab.localize(step.picture.title), style: `max-width:${width}px` },
    s("defs", {}, s("marker", { id: "reads", viewBox: "0 0 10 10", refX: 9, refY: 5, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse" }, s("path", { d: "M0 0L10 5L0 10Z", fill: "context-stroke" }))), wires, cells, boxes));
  const update = now => {
    const lines = [];
    now.reads.forEach((row, to) => row.forEach((on, from) => { if (on) lines.push(wire(at(from), at(to), from === to, Boolean(now.loops[to] && now.loops[from]), from, to)); }));
    wires.replaceChildren(...lines);
    cells.replaceChildren(...NAMES.map((name, n) => s("g", { transform: `translate(${at(n)})` }, s("circle", { r: 21, fill: "var(--paper)", stroke: now.loops[n] ? "var(--key)" : "var(--ink)", "stroke-width": now.loops[n] ? 3 : 1.5, "data-loop": Boolean(now.loops[n]), "data-i": n }), s("text", { y: 5, "text-anchor": "middle", fill: "var(--ink)", "font-size": 14, translate: "no" }, name))));
    const frame = (x, y, w, h, words, on, family) => [s("rect", { x, y, width: w, height: h, rx: 14, fill: on ? "var(--accent-wash)" : "none", stroke: on ? "var(--accent)" : "var(--faint)", "stroke-width": on ? 2.5 : 1.2, "data-family": family, "data-on": on }), s("text", { x: x + w / 2, y: y + 23, "text-anchor": "middle", fill: on ? "var(--accent)" : "var(--soft)", "font-size": 13, "font-weight": on ? 650 : 400 }, words)];
    boxes.replaceChildren(...[frame(4, 8, 342, 250, now.family === 0 ? lab.localize(FAMILIES[0]) : lab.localize(ALL), now.family === 0, 0), frame(22, 52, 306, 188, lab.localize(FAMILIES[1]), now.family === 1, 1), frame(42, 104, 266, 116, lab.localize(FAMILIES[2]), now.family === 2, 2)].flat());
  };
  update(result);
  return update;
}
// An arrow from one neuron to another; arrows back and within a layer are curved, to itself a loop.
function wire([x1, y1], [x2, y2], own, loop, from, to) {
  const long = Math.hypot(x2 - x1, y2 - y1) || 1, ux = (x2 - x1) / long, uy = (y2 - y1) / long, bend = x2 > x1 ? 0 : 52, start = [x1 + 22 * ux, y1 + 22 * uy], end = [x2 - 24 * ux, y2 - 24 * uy];
  const d = own ? `M${x1 - 12} ${y1 - 18}C${x1 - 34} ${y1 - 58} ${x1 + 34} ${y1 - 58} ${x1 + 13} ${y1 - 20}` : `M${start}Q${(x1 + x2) / 2 - uy * bend} ${(y1 + y2) / 2 + ux * bend} ${end}`;
  return s("path", { d, fill: "none", stroke: loop ? "var(--key)" : "var(--query)", "stroke-width": loop ? 2.6 : 1.8, "marker-end": "url(#reads)", "data-name": "reads", "data-i": to, "data-j": from });
}
