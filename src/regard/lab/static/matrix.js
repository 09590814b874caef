// A matrix as a small picture: one coloured cell per number, on a zero-centred scale. The number under the pointer is its tooltip.
import { cssColour, dark, shader } from "lab/colour.js";
import { formatExact, h, scaleCanvas } from "lab/dom.js";

export const largest = values => { let most = 0; for (const x of values) if (Number.isFinite(x)) most = Math.max(most, Math.abs(x)); return most || 1; };

// `options`: data, shape [rows, columns], width and height in pixels, most (the end of the colour scale), name(i, j) → what a cell is, label (for readers), kind, marked (a row to frame).
export function matrix(options) {
  const set = { kind: "scores", ...options }, canvas = h("canvas", { role: "img", "aria-label": set.label, class: "matrix", translate: set.plain ? "no" : null });
  function update(changes = {}) {
    Object.assign(set, changes);
    const [rows, columns] = set.shape, { width, height, data, kind } = set, most = set.most ?? largest(data), shade = shader(kind, kind === "weights" ? [0, 1] : [-most, most], kind === "weights" ? "root" : "linear");
    const image = new ImageData(columns, rows), source = document.createElement("canvas"), pen = scaleCanvas(canvas, width, height);
    for (let n = 0; n < rows * columns; n++) { const [red, green, blue] = shade(data[n]); image.data.set([red, green, blue, 255], 4 * n); }
    source.width = columns, source.height = rows, source.getContext("2d").putImageData(image, 0, 0);
    pen.imageSmoothingEnabled = columns > 2 * width || rows > 2 * height, pen.drawImage(source, 0, 0, width, height);
    if (set.marked !== undefined && set.marked !== null) pen.strokeStyle = set.colour ?? (dark() ? "#fff" : "#000"), pen.lineWidth = 2, pen.strokeRect(1, set.marked * height / rows, width - 2, Math.max(2, height / rows));
  }
  canvas.addEventListener("pointermove", event => {
    const [rows, columns] = set.shape, i = Math.min(rows - 1, Math.floor(event.offsetY / set.height * rows)), j = Math.min(columns - 1, Math.floor(event.offsetX / set.width * columns));
    if (i >= 0 && j >= 0) canvas.title = `${set.name?.(i, j) ?? `[${i}, ${j}]`} = ${formatExact(set.data[i * columns + j])}`;
  });
  update();
  return { element: canvas, update };
}
export const signedCell = (value, most) => { const ground = shader("scores", [-most, most])(value); return { ground, css: cssColour(ground) }; };
