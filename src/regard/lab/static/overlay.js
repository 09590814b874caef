// Weights painted over a picture: the picture is grey and dark, and light where the weights are large, in both themes.
import { colourTable, dark } from "lab/colour.js";
import { formatShort, h, s } from "lab/dom.js";

const GROUND = [58, 61, 70]; // of the legend: a middle grey, dimmed
// From a share of the largest weight (0…1) to a colour [red, green, blue].
export function lightTable() {
  const table = colourTable("weights"), reversed = !dark();
  return share => { const n = Math.max(0, Math.min(255, Math.round(255 * share))); return table[reversed ? 255 - n : n]; };
}
// How much of the picture a weight covers: nothing of it at 0.
const cover = share => share <= 0 ? 0 : 0.9 * share ** 0.65;
// A canvas of one pixel per weight, more opaque where the weight is larger. `values` row after row.
export function lightImage(values, rows, columns, most) {
  const canvas = h("canvas", { width: columns, height: rows }), image = new ImageData(columns, rows), light = lightTable();
  for (let n = 0; n < rows * columns; n++) { const share = values[n] / (most || 1); image.data.set([...light(share), 255 * cover(share)], 4 * n); }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}
// A copy of a picture with little colour, and dark: colour on it comes from the weights.
export function dimmedImage(source) {
  const { width, height } = source, canvas = h("canvas", { width, height }), image = source.getContext("2d").getImageData(0, 0, width, height), { data } = image;
  for (let n = 0; n < data.length; n += 4) {
    const grey = 0.3 * data[n] + 0.59 * data[n + 1] + 0.11 * data[n + 2];
    for (let part = 0; part < 3; part++) data[n + part] = 8 + 0.5 * (0.5 * grey + 0.5 * data[n + part]);
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}
export const largest = values => { let most = 0; for (const x of values) if (x > most) most = x; return most; };
// The smallest number of keys that hold half of the weight.
export function keysForHalf(values) {
  const sorted = Float64Array.from(values).sort().reverse(), half = sorted.reduce((sum, x) => sum + x, 0) / 2;
  let sum = 0, count = 0;
  while (count < sorted.length && sum < half) sum += sorted[count++];
  return count;
}
// The legend of an overlay: from 0 to the largest weight shown.
export function lightLegend(lab, most, what) {
  const light = lightTable(), over = (colour, part) => colour.map((x, n) => Math.round(part * x + (1 - part) * GROUND[n])), bar = s("svg", { viewBox: "0 0 120 12", width: 120, height: 12, role: "img", "aria-label": lab.t("legendBar", what, 0, formatShort(most)) });
  for (let n = 0; n < 60; n++) bar.append(s("rect", { x: 2 * n, width: 2.3, height: 12, fill: `rgb(${over(light((n + 0.5) / 60), cover((n + 0.5) / 60)).join(" ")})` }));
  return h("div", { class: "legend light-legend", "data-domain": `0 ${most}` }, h("span", { class: "soft" }, what, " "), h("span", { class: "digits" }, "0"), bar, h("span", { class: "digits", title: String(most) }, formatShort(most)));
}
// A slider of the overlay's strength; `onInput(0…1)`.
export function strengthSlider(label, value, onInput) {
  return h("label", { class: "field inline" }, h("span", {}, label), h("input", { type: "range", min: 0, max: 100, value: Math.round(100 * value), oninput: event => onInput(event.target.value / 100) }));
}
