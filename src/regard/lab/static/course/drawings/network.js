// A network of three layers: each connection is as thick as what it carries, each neuron shows its value.
import { signedColour, signedTextColour } from "lab/colour.js";
import { s } from "lab/dom.js";

const LAYERS = [{ en: "input layer", zh: "输入层" }, { en: "hidden layer", zh: "隐藏层" }, { en: "output layer", zh: "输出层" }];
const LETTERS = ["x", "h", "y"];

export function draw(host, result, lab, step) {
  const width = 620, height = 320, x = layer => 80 + layer * 230, y = (layer, n, now) => 36 + (height - 60) * (n + 0.5) / now.values[layer].length;
  const wires = s("g"), cells = s("g");
  const picture = s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": lab.localize(step.picture.title), style: `max-width:${width}px` },
    LAYERS.map((words, n) => s("text", { x: x(n), y: 18, "text-anchor": "middle", fill: "var(--soft)", "font-size": 13 }, lab.localize(words))), wires, cells);
  host.append(picture);
  const update = now => {
    const most = Math.max(0.1, ...now.carried.flat(2).map(Math.abs)), top = Math.max(0.1, ...now.values.flat().map(Math.abs));
    wires.replaceChildren(...now.carried.flatMap((matrix, layer) => matrix.flatMap((row, to) => row.map((load, from) =>
      s("line", { x1: x(layer) + 24, y1: y(layer, from, now), x2: x(layer + 1) - 24, y2: y(layer + 1, to, now), stroke: load < 0 ? "#c2610c" : "var(--query)", "stroke-width": 0.6 + 7 * Math.abs(load) / most, opacity: load === 0 ? 0.25 : 0.75,
        "stroke-dasharray": load === 0 ? "3 4" : null, "data-name": "carried", "data-layer": layer, "data-i": to, "data-j": from, "data-value": load },
        s("title", {}, `${LETTERS[layer]}${from + 1} → ${LETTERS[layer + 1]}${to + 1}: ${load.toFixed(2)}`))))));
    cells.replaceChildren(...now.values.flatMap((layer, n) => layer.map((value, place) => {
      const shut = n === 1 && value === 0;
      return s("g", { transform: `translate(${x(n)} ${y(n, place, now)})` },
        s("circle", { r: 24, fill: shut ? "var(--wash)" : signedColour(value, top), stroke: shut ? "var(--faint)" : "var(--ink)", "stroke-width": 1.2, "stroke-dasharray": shut ? "4 3" : null }),
        s("text", { y: 5, "text-anchor": "middle", "font-size": 13, fill: shut ? "var(--soft)" : signedTextColour(value, top), "data-name": LETTERS[n], "data-i": place, "data-value": value }, value.toFixed(2).replace("-", "−")),
        s("text", { x: n === 2 ? 40 : -40, y: 5, "text-anchor": "middle", "font-size": 13, fill: "var(--soft)", translate: "no" }, n === 1 ? "" : `${LETTERS[n]}${place + 1}`));
    })));
  };
  update(result);
  return update;
}
