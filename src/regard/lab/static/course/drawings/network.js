// A network of three layers: each connection is as thick as what it carries, each neuron shows its value.
import { signedColour, signedTextColour } from "lab/colour.js";
import { s } from "lab/dom.js";

const LAYERS = [{ en: "input layer", zh: "输入层" }, { en: "hidden layer", zh: "隐藏层" }, { en: "output layer", zh: "输出层" }];
const LETTERS = ["x", "h", "y"], NAMES = ["inputs", "hidden", "output"];

export function draw(host, result, lab, step) {
  const width = 620, height = 320, x = layer => 80 + layer * 230, y = (layer, n, values) => 36 + (height - 60) * (n + 0.5) / values[layer].length;
  const wires = s("g"), cells = s("g");
  const picture = s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": lab.localize(step.picture.title), style: `max-width:${width}px` },
    LAYERS.map((words, n) => s("text", { x: x(n), y: 18, "text-anchor": "middle", fill: "var(--soft)", "font-size": 13 }, lab.localize(words))), wires, cells);
  host.append(picture);
  const update = now => {
    const values = NAMES.map(name => now[name]), carried = [now.hidden_carried, now.output_carried], most = Math.max(0.1, ...carried.flat(2).map(Math.abs)), top = Math.max(0.1, ...values.flat().map(Math.abs));
    wires.replaceChildren(...carried.flatMap((matrix, layer) => matrix.flatMap((row, to) => row.map((load, from) =>
      s("line", { x1: x(layer) + 24, y1: y(layer, from, values), x2: x(layer + 1) - 24, y2: y(layer + 1, to, values), stroke: load < 0 ? "#c2610c" : "var(--query)", "stroke-width": 0.6 + 7 * Math.abs(load) / most, opacity: load === 0 ? 0.25 : 0.75,
        "stroke-dasharray": load === 0 ? "3 4" : null, "data-name": `${NAMES[layer + 1]}_carried`, "data-i": to, "data-j": from, "data-value": load },
        s("title", {}, `${LETTERS[layer]}${from + 1} → ${LETTERS[layer + 1]}${to + 1}: ${load.toFixed(2)}`))))));
    cells.replaceChildren(...values.flatMap((layer, n) => layer.map((value, place) => {
      const shut = n === 1 && value === 0;
      return s("g", { transform: `translate(${x(n)} ${y(n, place, values)})` },
        s("circle", { r: 24, fill: shut ? "var(--wash)" : signedColour(value, top), stroke: shut ? "var(--faint)" : "var(--ink)", "stroke-width": 1.2, "stroke-dasharray": shut ? "4 3" : null }),
        s("text", { y: 5, "text-anchor": "middle", "font-size": 13, fill: shut ? "var(--soft)" : signedTextColour(value, top), "data-name": NAMES[n], "data-i": place, "data-value": value }, value.toFixed(2).replace("-", "−")),
        s("text", { x: n === 2 ? 40 : -40, y: 5, "text-anchor": "middle", "font-size": 13, fill: "var(--soft)", translate: "no" }, n === 1 ? "" : `${LETTERS[n]}${place + 1}`));
    })));
  };
  update(result);
  return update;
}
