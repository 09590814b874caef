// Weights painted over a picture: dark where they are small, bright where they are large, in both themes.
import { colourTable, dark } from "lab/colour.js";
import { formatShort, h, s } from "lab/dom.js";

// From a share of the largest weight (0…1) to a colour [red, green, blue].
export function lightTable() {
  const table = colourTable("weights"), reversed = !dark();
  return share => { const n = Math.max(0, Math.min(255, Math.round(255 * share))); return table[reversed ? 255 - n : n]; };
}
// A canvas of one pixel per weight, more opaque where the weight is larger. `values` row after row.
export function lightImage(values, rows, columns, most) {
  const canvas = h("canvas", { width: columns, height: rows }), image = new ImageData(columns, rows), light = lightTable();
  for (let n = 0; n < rows * columns; n++) { const share = values[n] / (most || 1); image.data.set([...light(share), 255 * (0.7 + 0.3 * share)], 4 * n); }
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
  const light = lightTable(), bar = s("svg", { viewBox: "0 0 120 12", width: 120, height: 12, role: "img", "aria-label": lab.t("legendBar", what, 0, formatShort(most)) });
  for (let n = 0; n < 60; n++) bar.append(s("rect", { x: 2 * n, width: 2.3, height: 12, fill: `rgb(${light((n + 0.5) / 60).join(" ")})` }));
  return h("div", { class: "legend light-legend", "data-domain": `0 ${most}` }, h("span", { class: "soft" }, what, " "), h("span", { class: "digits" }, "0"), bar, h("span", { class: "digits", title: String(most) }, formatShort(most)));
}
// A slider of the overlay's strength; `onInput(0…1)`.
export function strengthSlider(label, value, onInput) {
  return h("label", { class: "field inline" }, h("span", {}, label), h("input", { type: "range", min: 0, max: 100, value: Math.round(100 * value), oninput: event => onInput(event.target.value / 100) }));
}
