// Colour maps: one table of 256 entries per kind, shared by all maps, strips, thumbnails and legends.
import { h, s } from "lab/dom.js";

const WEIGHTS = ["#fdfae7", "#e5f3c9", "#b8e1ba", "#79c9bd", "#3fa9c0", "#2b80b6", "#2a58a1", "#26357d", "#14184a"];
const SCORES = {
  light: ["#7f3b08", "#b35806", "#e08214", "#fdb863", "#fee0b6", "#f7f7f7", "#d1e5f0", "#92c5de", "#4393c3", "#2166ac", "#053061"],
  dark: ["#ffd9a0", "#fdb863", "#e08214", "#a5540a", "#5c3410", "#23262f", "#173a59", "#21619c", "#4393c3", "#92c5de", "#d8ecf7"],
};
// The dark theme reverses the colours: small values are dark, large values are bright.
export const dark = () => document.documentElement.dataset.theme === "dark";

const parse = hex => [1, 3, 5].map(n => parseInt(hex.slice(n, n + 2), 16));
function interpolate(colours) {
  const stops = colours.map(parse);
  return Array.from({ length: 256 }, (_, n) => {
    const place = n / 255 * (stops.length - 1), low = Math.min(Math.floor(place), stops.length - 2);
    return stops[low].map((value, part) => Math.round(value + (stops[low + 1][part] - value) * (place - low)));
  });
}
const tables = new Map();
export function colourTable(kind) {
  const name = kind + dark();
  if (!tables.has(name)) tables.set(name, interpolate(kind === "weights" ? (dark() ? [...WEIGHTS].reverse() : WEIGHTS) : SCORES[dark() ? "dark" : "light"]));
  return tables.get(name);
}
export const cssColour = ([red, green, blue]) => `rgb(${red} ${green} ${blue})`;

// Transforms of a value in 0…1 before the table lookup. "row" divides by the maximum of the row first.
const TRANSFORMS = { linear: x => x, root: x => Math.sqrt(Math.max(0, x)), row: x => x, log: x => x <= 1e-4 ? 0 : 1 + Math.log10(x) / 4 };
const TICKS = { linear: [0, 0.25, 0.5, 0.75, 1], root: [0, 0.01, 0.1, 0.25, 0.5, 1], row: [0, 0.25, 0.5, 0.75, 1], log: [1e-4, 1e-3, 0.01, 0.1, 1] };

// Returns a function from a value to its table entry.
export function shader(kind, domain, scale = "linear") {
  const [low, high] = domain, colours = colourTable(kind), transform = TRANSFORMS[scale] ?? TRANSFORMS.linear, span = high - low || 1;
  return x => colours[Math.max(0, Math.min(255, Math.round(255 * transform((x - low) / span))))];
}
// The colour of one weight (0…1, √) and of one signed number within ±most.
export const weightColour = (x, scale = "root") => cssColour(shader("weights", [0, 1], scale)(x));
export const signedColour = (x, most) => cssColour(shader("scores", [-most, most])(x));
// Dark or light text, whichever has more contrast on the background.
export function textColourOn([red, green, blue]) {
  const channel = x => (x /= 255) <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
  const light = 0.2126 * channel(red) + 0.7152 * channel(green) + 0.0722 * channel(blue);
  return light > 0.179 ? "#000000" : "#ffffff"; // the larger contrast of the two, at least 4.58
}
export const signedTextColour = (x, most) => textColourOn(shader("scores", [-most, most])(x));

// The hatch pattern marks masked cells; it is never a colour of the tables.
export function hatch(context) {
  const tile = document.createElement("canvas"), pen = tile.getContext("2d");
  tile.width = tile.height = 6;
  pen.fillStyle = dark() ? "#1d2029" : "#eeeff3", pen.fillRect(0, 0, 6, 6);
  pen.strokeStyle = dark() ? "#4b5163" : "#b9bdca", pen.lineWidth = 1;
  pen.beginPath();
  for (const x of [-6, 0, 6]) pen.moveTo(x - 1, 7), pen.lineTo(x + 7, -1);
  pen.stroke();
  return context.createPattern(tile, "repeat");
}

// The legend of a map: the bar drawn from the same table, its domain, its transform, the hatch.
export function legend(lab, { kind, domain, scale, masked = true, what }) {
  const shade = shader(kind, [0, 1], "linear"), [low, high] = domain, transform = TRANSFORMS[scale] ?? TRANSFORMS.linear;
  const bar = s("svg", { viewBox: "0 0 240 30", width: 240, height: 30, role: "img", "aria-label": lab.t("legendBar", what, low, high) });
  for (let n = 0; n < 64; n++) bar.append(s("rect", { x: 10 + n * 220 / 64, y: 1, width: 220 / 64 + 0.4, height: 11, fill: cssColour(shade((n + 0.5) / 64)) }));
  for (const tick of TICKS[scale] ?? TICKS.linear) {
    const x = 10 + 220 * transform(tick), value = low + tick * (high - low);
    bar.append(s("rect", { x: x - 0.5, y: 12, width: 1, height: 4, class: "tick" }),
      s("text", { x, y: 26, class: "tick" },
        tick > 0 && tick < 5e-3 ? `10⁻${"⁰¹²³⁴⁵⁶"[Math.round(-Math.log10(tick))]}` : Number(value.toPrecision(3)).toString().replace("-", "−")));
  }
  return h("div", { class: "legend", "data-domain": `${low} ${high}`, "data-scale": scale },
    bar, h("span", { class: "soft" }, lab.t("legendWords", what, low, high, lab.t(`scale_${scale}`))),
    masked && h("span", { class: "swatch" }, h("span", { class: "hatched" }), lab.t("maskedSwatch")));
}
