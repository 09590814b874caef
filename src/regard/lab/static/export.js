// Downloads: the view as one HTML page, a figure as PNG or SVG, its numbers as CSV or NPZ.
import { errorOf, stableStringify } from "lab/client.js";
import { cssColour, dark, shader } from "lab/colour.js";
import { s, cssVariable } from "lab/dom.js";

const MAX_REQUESTS = 4000;
export function saveFile(name, parts, type) {
  const address = URL.createObjectURL(parts instanceof Blob ? parts : new Blob([parts].flat(), { type }));
  const link = document.createElement("a");
  link.href = address, link.download = name, link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

// Saves the view: the server writes the modules, the state and the responses to these requests into one page. `shown` requests must be in it, `more` are added while there is room.
// Fields that many requests share, such as a long text, are sent and stored once.
export async function saveView(state, shown, more = []) {
  const bases = new Map(), all = [...new Map([...shown, ...more].map(one => [`${one.path} ${stableStringify(one.body)}`, one])).values()];
  const asks = all.slice(0, MAX_REQUESTS).map(({ path, body: { model, input, ...body } }) => {
    const common = Object.fromEntries(Object.entries({ model, input }).filter(([, value]) => value !== undefined)), key = stableStringify(common);
    if (key === "{}") return { path, body };
    if (!bases.has(key)) bases.set(key, { common, n: bases.size });
    return { path, body, base: bases.get(key).n };
  });
  const response = await fetch("/api/page", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ state, asks, bases: [...bases.values()].map(({ common }) => common), shown: shown.length }) });
  if (!response.ok) throw await errorOf(response);
  const page = await response.blob();
  saveFile(`regard-${state.page}.html`, page);
}

// The four files of a map.
export function mapFiles(map) {
  const { name } = map.set;
  return {
    png: () => mapPng(map).toBlob(blob => saveFile(`${name}.png`, blob)),
    svg: () => saveFile(`${name}.svg`, mapSvg(map), "image/svg+xml"),
    csv: () => saveFile(`${name}.csv`, mapCsv(map), "text/csv"),
    npz: () => saveFile(`${name}.npz`, npz(mapArrays(map)), "application/zip"),
  };
}
const quoted = words => `"${String(words).replaceAll('"', '""')}"`;
function mapCsv(map) {
  const names = axis => Array.from({ length: axis === "row" ? map.rows : map.columns }, (_, n) => quoted(map.names(axis, n)));
  const rows = names("row").map((name, i) => [name, ...Array.from({ length: map.columns }, (_, j) => map.hidden(i, j) ? "" : map.value(i, j))].join(","));
  return `\ufeff${[["", ...names("column")].join(","), ...rows].join("\r\n")}\r\n`;
}
function mapArrays(map) {
  const held = { values: { data: Float32Array.from(map.set.values), shape: [map.rows, map.columns] } };
  if (map.set.masked) held.masked = { data: Uint8Array.from(map.set.masked), shape: [map.rows, map.columns] };
  return held;
}
function mapPng(map) {
  const canvas = document.createElement("canvas"), pen = canvas.getContext("2d"), { box } = map, bar = 44;
  const width = Math.ceil(box.left + map.columns * box.w + box.right), height = Math.ceil(box.top + map.rows * box.h) + 2,
    scale = Math.min(2, 8192 / Math.max(width, height));
  canvas.width = Math.max(width, 320) * scale, canvas.height = (height + bar) * scale;
  pen.scale(scale, scale), pen.fillStyle = cssVariable("--paper"), pen.fillRect(0, 0, canvas.width, canvas.height);
  map.draw(pen, box, map.columns * box.w, map.rows * box.h);
  const shade = shader(map.set.kind, [0, 1], "linear");
  for (let n = 0; n < 200; n++) pen.fillStyle = cssColour(shade(n / 199)), pen.fillRect(12 + n, height + 10, 1.5, 10);
  pen.fillStyle = cssVariable("--soft"), pen.font = "11px sans-serif", pen.textAlign = "left", pen.textBaseline = "alphabetic";
  pen.fillText(`${map.domain[0]} … ${map.domain[1]} · ${map.set.scale === "root" ? "√" : map.set.scale} · ${map.set.title}`, 12, height + 36);
  return canvas;
}
// Small maps become rectangles, large ones an embedded image; labels are text in both.
function mapSvg(map) {
  const { box } = map, width = box.left + map.columns * box.w + box.right, height = box.top + map.rows * box.h + 26,
    shade = shader(map.set.kind, map.domain, map.set.scale === "row" ? "linear" : map.set.scale);
  const few = map.rows * map.columns <= 10000 && map.set.scale !== "row", x = j => box.left + j * box.w, y = i => box.top + i * box.h;
  const node = s("svg",
    { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${width} ${height}`, width, height, "font-family": "sans-serif", "font-size": 12, fill: cssVariable("--ink") },
    s("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse" }, s("rect", { width: 6, height: 6, fill: dark() ? "#1d2029" : "#eeeff3" }),
      s("path", { d: "M-1 7L7 -1", stroke: "#b9bdca" })),
    s("rect", { width, height, fill: cssVariable("--paper") }),
      s("rect", { x: box.left, y: box.top, width: map.columns * box.w, height: map.rows * box.h, fill: "url(#hatch)" }));
  if (few) for (let i = 0; i < map.rows; i++) for (let j = 0; j < map.columns; j++) if (!map.hidden(i, j)) node.append(s("rect",
    { x: x(j), y: y(i), width: box.w, height: box.h, fill: cssColour(shade(map.value(i, j))) }, s("title", {}, String(map.value(i, j)))));
  if (!few) node.append(s("image",
    { x: box.left, y: box.top, width: map.columns * box.w, height: map.rows * box.h, href: map.tint().toDataURL(), preserveAspectRatio: "none",
      style: "image-rendering:pixelated" }));
  for (const { n, word } of box.side.shown) node.append(s("text", { x: box.left - 6, y: y(n) + box.h / 2 + 4, "text-anchor": "end" }, word));
  for (const { n, word } of box.head.shown) node.append(s("text",
    { transform: `translate(${x(n) + box.w / 2 + 4} ${box.top - 5}) rotate(${box.head.flat ? 0 : -45})`, "text-anchor": box.head.flat ? "middle" : "start" }, word));
  node.append(s("text", { x: 6, y: height - 8, "font-size": 11 },
    `${map.set.title} · ${map.domain[0]} … ${map.domain[1]} · ${map.set.scale === "root" ? "√" : map.set.scale}`));
  return new XMLSerializer().serializeToString(node);
}
// An SVG of the page with its computed styles inlined.
const KEPT = ["fill", "stroke", "stroke-width", "stroke-opacity", "font-size", "font-weight", "font-family", "text-anchor", "opacity", "visibility"];
export function svgText(node) {
  const copy = node.cloneNode(true), from = [node, ...node.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((one, n) => { const look = getComputedStyle(one); for (const name of KEPT) to[n].style.setProperty(name, look.getPropertyValue(name)); });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg"), copy.style.background = cssVariable("--paper");
  return new XMLSerializer().serializeToString(copy);
}
export const saveSvg = (node, name) => saveFile(`${name}.svg`, svgText(node), "image/svg+xml");

// NPZ: a zip without compression of NPY files. `arrays`: {name: {data, shape}}.
export function npz(arrays) {
  const files = Object.entries(arrays).map(([name, array]) => ({ name: new TextEncoder().encode(`${name}.npy`), bytes: npy(array) })), parts = [], central = [];
  let at = 0;
  for (const { name, bytes } of files) {
    const sum = crc(bytes),
      common = (pen, n) => { pen.setUint16(n, 20, true), pen.setUint32(n + 6, 0x00210000, true), pen.setUint32(n + 10, sum, true),
        pen.setUint32(n + 14, bytes.length, true), pen.setUint32(n + 18, bytes.length, true), pen.setUint16(n + 22, name.length, true); };
    const local = new DataView(new ArrayBuffer(30)), entry = new DataView(new ArrayBuffer(46));
    local.setUint32(0, 0x04034b50, true), common(local, 4);
    entry.setUint32(0, 0x02014b50, true), entry.setUint16(4, 20, true), common(entry, 6), entry.setUint32(42, at, true);
    parts.push(local.buffer, name, bytes), central.push(entry.buffer, name);
    at += 30 + name.length + bytes.length;
  }
  const size = central.reduce((sum, part) => sum + part.byteLength, 0), end = new DataView(new ArrayBuffer(22));
  end.setUint32(0, 0x06054b50, true), end.setUint16(8, files.length, true), end.setUint16(10, files.length, true), end.setUint32(12, size, true),
    end.setUint32(16, at, true);
  return new Blob([...parts, ...central, end.buffer], { type: "application/zip" });
}
const KINDS = { Float32Array: "<f4", Uint8Array: "|u1", Int32Array: "<i4", Float64Array: "<f8" };
function npy({ data, shape }) {
  const words = `{'descr': '${KINDS[data.constructor.name]}', 'fortran_order': False, 'shape': (${shape.join(", ")}${shape.length === 1 ? "," : ""}), }`;
  const length = Math.ceil((10 + words.length + 1) / 64) * 64, whole = new Uint8Array(length + data.byteLength);
  whole.set([0x93, 78, 85, 77, 80, 89, 1, 0, (length - 10) & 255, (length - 10) >> 8]);
  whole.set(new TextEncoder().encode(words.padEnd(length - 11) + "\n"), 10);
  whole.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), length);
  return whole;
}
const CRC = Uint32Array.from({ length: 256 }, (_, n) => { for (let k = 0; k < 8; k++) n = n & 1 ? 0xedb88320 ^ n >>> 1 : n >>> 1; return n; });
function crc(bytes) {
  let sum = 0xffffffff;
  for (const byte of bytes) sum = CRC[(sum ^ byte) & 255] ^ sum >>> 8;
  return (sum ^ 0xffffffff) >>> 0;
}

// A table as an SVG: cells as rectangles and text, with the colours of the page.
export function tablePicture(table, stem) {
  const edge = table.getBoundingClientRect(),
    node = s("svg",
      { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${edge.width} ${edge.height}`, width: edge.width, height: edge.height, "font-family": "sans-serif" },
      s("rect", { width: edge.width, height: edge.height, fill: cssVariable("--paper") }));
  for (const cell of table.querySelectorAll("th,td")) {
    const box = cell.getBoundingClientRect(), look = getComputedStyle(cell), x = box.left - edge.left, y = box.top - edge.top;
    node.append(s("rect", { x, y, width: box.width, height: box.height, fill: look.backgroundColor === "rgba(0, 0, 0, 0)" ? "none" : look.backgroundColor }),
      s("text", { x: x + 4, y: y + box.height / 2 + 4, fill: look.color, "font-size": look.fontSize, opacity: look.opacity }, cell.textContent.trim()));
  }
  const text = () => new XMLSerializer().serializeToString(node);
  return { svg: () => saveFile(`${stem}.svg`, text(), "image/svg+xml"), png: () => pngOf(text(), edge.width, edge.height, blob => saveFile(`${stem}.png`, blob)) };
}
function pngOf(svg, width, height, then) {
  const picture = new Image(), canvas = document.createElement("canvas");
  canvas.width = 2 * width, canvas.height = 2 * height;
  picture.onload = () => { canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height); canvas.toBlob(then); };
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
}
