// Helpers for DOM elements, number formats, token labels and canvases.

const SPACES = { svg: "http://www.w3.org/2000/svg", math: "http://www.w3.org/1998/Math/MathML" };

function maker(space) {
  return (tag, attributes = {}, ...children) => {
    const node = space ? document.createElementNS(space, tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes ?? {})) set(node, name, value);
    node.append(...children.flat(9).filter(child => child !== null && child !== undefined && child !== false));
    return node;
  };
}
function set(node, name, value) {
  if (name.startsWith("aria-") && typeof value === "boolean") value = String(value);
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
  else if (name === "style" && typeof value === "object") for (const [key, held] of Object.entries(value)) node.style.setProperty(key, held);
  else if (name === "value" || name === "checked" || name === "selected") node[name] = value;
  else node.setAttribute(name, value === true ? "" : value);
}
// h("button", {class: "soft", onclick: f}, "words", h(…)): an element; s(…) the same for SVG, m(…) for MathML.
export const h = maker(null), s = maker(SPACES.svg), m = maker(SPACES.math);
// Replaces everything inside a node.
export const fill = (node, ...children) => (node.replaceChildren(...children.flat(9).filter(child => child !== null && child !== undefined && child !== false)), node);
// Text from the user or a model (tokens, names, code), which is not translated.
export const untranslated = (words, attributes = {}) => h("span", { translate: "no", ...attributes }, words);

export const clamp = (x, low, high) => Math.max(low, Math.min(high, x));
export const prefersReducedMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
let last = 0;
export const newId = () => `id${++last}`;

// The shortest decimal that identifies the float32.
export function formatExact(x) {
  if (!Number.isFinite(x)) return x === -Infinity ? "−∞" : x === Infinity ? "∞" : "–";
  for (let digits = 1; digits < 9; digits++) {
    const rounded = Number(x.toPrecision(digits));
    if (Math.fround(rounded) === Math.fround(x)) return sign(rounded);
  }
  return sign(Number(x.toPrecision(9)));
}
// "1.2e-5" as 1.2·10⁻⁵.
export function scientific(words) {
  const [mantissa, power] = String(words).replaceAll("−", "-").split(/e/i);
  if (power === undefined || Number(mantissa) === 0) return power === undefined ? String(words).replace("-", "−") : "0";
  return `${mantissa.replace("-", "−")}·10${[...String(Number(power))].map(digit => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(digit)]).join("")}`;
}
// The numbers of a text in that form.
export const scientificText = words => String(words).replace(/(?<![\w.])[−-]?\d+(?:\.\d+)?e[-+−]?\d+/g, scientific);
// A rounded number, with `digits` decimals.
export function formatBrief(x, digits = 3) {
  if (!Number.isFinite(x)) return formatExact(x);
  if (x === 0) return "0";
  return Math.abs(x) < 1e-3 || Math.abs(x) >= 1e5 ? scientific(x.toExponential(Math.max(0, digits - 2))) : sign(Math.abs(x) >= 100 ? x.toFixed(1) : x.toFixed(digits));
}
// Three significant digits, four from 1000 on: what pages show. `numeral` shows the exact number on hover.
export function formatShort(x, digits = 3) {
  if (!Number.isFinite(x) || x === 0) return formatExact(x);
  const size = Math.abs(x);
  return size < 1e-3 || size >= 1e6 ? scientific(x.toExponential(digits - 2)) : size >= 1000 ? sign(Math.round(x)) : sign(x.toPrecision(digits));
}
export const numeral = (x, attributes = {}) => h("span", { class: "digits", title: formatExact(x), "data-value": x, translate: "no", ...attributes }, formatShort(x));
export const formatPercent = (x, digits = 1) => `${(100 * x).toFixed(digits)} %`;
const sign = x => String(x).replace("-", "−");
export const formatBytes = n => n < 1000 ? `${n} B` : n < 1e6 ? `${(n / 1e3).toFixed(1)} kB` : `${(n / 1e6).toFixed(1)} MB`;

// Token labels: whitespace is made visible; several tokens of one character are numbered, "猫 1/3"; unknown tokens have a mark.
const MAX_NAME = 40;
export const UNKNOWN_MARK = "⁇";
const SIGNS = { "\n": "↵", "\r": "↵", "\t": "⇥" };
export function visibleText(text) {
  const shown = [...String(text)].map(letter => SIGNS[letter] ?? letter).join("");
  return shown.trim() ? shown.trim() : shown.replaceAll(" ", "␣") || "∅";
}
export function tokenNames(tokens) {
  const sizes = new Map(), count = new Map();
  const grouped = token => token.group !== null && token.group !== undefined && token.group >= 0;
  for (const token of tokens) if (grouped(token)) sizes.set(token.group, (sizes.get(token.group) ?? 0) + 1);
  return tokens.map(token => {
    const size = grouped(token) ? sizes.get(token.group) : 1, name = (token.unknown ? UNKNOWN_MARK : "") + truncate(visibleText(token.text), MAX_NAME);
    if (size === 1) return name;
    count.set(token.group, (count.get(token.group) ?? 0) + 1);
    return `${name} ${count.get(token.group)}/${size}`;
  });
}
export const truncate = (word, most = 18) => { const letters = [...word]; return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : word; };

// The `count` largest values: [{index, value}] in descending order; `skip(index)` excludes some.
export function topEntries(values, count, skip = () => false) {
  const found = [];
  for (let index = 0; index < values.length; index++) {
    const value = values[index];
    if (skip(index) || (found.length === count && !(value > found[count - 1].value))) continue;
    let place = found.length;
    while (place && found[place - 1].value < value) place--;
    found.splice(place, 0, { index, value });
    found.length = Math.min(found.length, count);
  }
  return found;
}

// Sizes a canvas to `width` × `height` CSS pixels at the device's pixel ratio; returns its context.
export function scaleCanvas(canvas, width, height, most = 8192) {
  const ratio = Math.max(0.25, Math.min(window.devicePixelRatio || 1, most / Math.max(width, height, 1)));
  canvas.width = Math.max(1, Math.round(width * ratio)), canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.width = `${width}px`, canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return pen;
}
export const fontFamily = () => getComputedStyle(document.documentElement).fontFamily;
export const cssVariable = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const ruler = document.createElement("canvas").getContext("2d");
export function textWidth(words, size) {
  ruler.font = `${size}px ${fontFamily()}`;
  return words.reduce((most, word) => Math.max(most, ruler.measureText(word).width), 0);
}
