// A heat map: rows are queries, columns are keys. A canvas, an ARIA grid for keyboard and screen readers, the legend, the row sum,
// a table of the largest weights, and downloads. The colours ease when the values change.
import { cssColour, dark, hatch, legend, shader } from "lab/colour.js";
import { clamp, formatExact, formatShort, fill, fontFamily, untranslated, h, topEntries, newId, prefersReducedMotion, scaleCanvas, truncate, cssVariable, textWidth } from "lab/dom.js";
import { mapFiles } from "lab/export.js";
import { fileButtons, select } from "lab/controls.js";
import { rankingTable } from "lab/ranking.js";

const CJK = /[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef]|[\ud840-\ud8bf][\udc00-\udfff]/;
const STEPS = [1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1000, 2000, 5000];

// `options`: title, values (row after row), masked (1 = masked) or null, shape [rows, columns], rowNames, columnNames (lists, or functions
// of the index), kind "weights" | "scores", domain, scale "root" | "linear" | "row", selected [i, j], pinned, onCell(i, j), onPin(i or null, j),
// facts(i, j) → [[name, number or words], …], sums, top (rows of the table, 0 for none), orientation, maskedWords, name (of files), largestCell (pixels), digits (of scores, in cells),
// words(i, j) (text instead of a number), rowBoundary, columnBoundary (the first row and column beyond the training length), legend (a node instead of the default), onRegion (a rectangle was drawn), onKey(event) → handled,
// rowToken(i), columnToken(j) → "side:index" for the highlight, aside (the readout is placed elsewhere: `map.readout`).
const EASE = 180;
export function heatMap(lab, options) {
  const map = new HeatMap(lab, options);
  if (options.main !== false) lab.expose({ cell: (i, j) => map.cell(i, j), map: () => map.read() });
  return map;
}

class HeatMap {
  constructor(lab, options) {
    this.lab = lab;
    this.set = { kind: "weights", scale: options.kind === "scores" ? "linear" : "root", sums: options.kind !== "scores", top: 8, masked: null, name: "map",
      ...options };
    this.zoom = 1, this.pinned = options.pinned ?? null;
    [this.row, this.column] = options.selected ?? [0, 0];
    this.build();
    this.update({});
    this.observer = new ResizeObserver(() => this.fit());
    this.observer.observe(this.scroll);
    lab.signal.addEventListener("abort", () => this.observer.disconnect());
  }
  build() {
    const { lab } = this, { t } = lab, id = newId();
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.active = h("div", { role: "gridcell", id, translate: "no" });
    this.line = h("div", { role: "row" }, this.active);
    this.grid = h("div",
      { role: "grid", tabindex: 0, class: "map-grid", "aria-activedescendant": id, "aria-readonly": "true", onkeydown: event => this.press(event),
        onfocus: () => this.paint(), onblur: () => this.paint() },
      this.canvas, h("div", { class: "unseen" }, this.line));
    this.canvas.addEventListener("pointermove", event => this.point(event, false));
    this.canvas.addEventListener("pointerleave", () => lab.highlight(null));
    lab.onHighlight(token => { const before = this.lit; this.lit = token; if (this.litLines(before) || this.litLines(token)) this.paint(); });
    this.canvas.addEventListener("click", event => { if (!this.dragged) this.point(event, true); });
    if (this.set.onRegion) this.watchDrag();
    this.scroll = h("div", { class: "map-scroll" }, this.grid);
    this.caption = h("div", { class: "map-caption" });
    this.sum = h("span", { class: "row-sum" });
    this.readout = h("div", { class: "readout" });
    const tools = h("div", { class: "tools" },
      h("button", { type: "button", class: "small", title: t("smaller"), "aria-label": t("smaller"), onclick: () => this.enlarge(1 / 1.5) }, "−"),
      h("button", { type: "button", class: "small", title: t("larger"), "aria-label": t("larger"), onclick: () => this.enlarge(1.5) }, "+"),
      fileButtons(lab, () => mapFiles(this)));
    this.title = h("h3", {});
    this.element = h("figure", { class: "map" }, h("div", { class: "map-head" }, this.title, tools),
      this.set.aside ? this.scroll : h("div", { class: "map-body" }, this.scroll, this.readout), this.caption, h("p", { class: "soft help" }, t("cellHelp")));
  }
  // Changes some options; the others stay.
  update(changes) {
    const before = this.image, { rows, columns } = this;
    Object.assign(this.set, changes);
    const { shape, title, kind, values } = this.set, { t } = this.lab;
    if (before && changes.values && shape[0] === rows && shape[1] === columns && !prefersReducedMotion()) this.ease(before);
    [this.rows, this.columns] = shape;
    this.row = clamp(this.row, 0, Math.max(0, this.rows - 1)), this.column = clamp(this.column, 0, Math.max(0, this.columns - 1));
    this.domain = this.set.domain ?? (kind === "weights" ? [0, 1] : zeroCentred(values));
    this.image = null;
    this.grid.setAttribute("aria-label", t("gridLabel", title, this.rows, this.columns));
    this.grid.setAttribute("aria-rowcount", this.rows), this.grid.setAttribute("aria-colcount", this.columns);
    this.title.textContent = title;
    this.showCaption();
    this.fit();
    this.show(false);
  }
  // Draws the image that was shown before under the new one until that is opaque.
  ease(before) {
    const started = performance.now(), frame = now => {
      if (this.before !== before || this.lab.signal.aborted) return;
      this.shown = Math.min(1, Math.max(0, now - started) / EASE);
      if (this.shown === 1) this.before = null;
      this.paint();
      if (this.before) requestAnimationFrame(frame);
    };
    this.before = before, this.shown = 0, requestAnimationFrame(frame);
  }
  // The rows and columns of the highlighted token.
  litLines(token) {
    const { rowToken, columnToken } = this.set, of = (name, count) => name && token !== null && token !== undefined ? Array.from({ length: count }, (_, n) => n).filter(n => name(n) === token) : [];
    const found = { rows: of(rowToken, this.rows), columns: of(columnToken, this.columns) };
    return found.rows.length + found.columns.length ? found : null;
  }
  showCaption() {
    const { kind, sums, orientation, masked } = this.set, { t } = this.lab, what = this.set.what ?? t(kind === "weights" ? "weight" : "score");
    const choice = kind === "weights" && select(t("scale"), ["root", "linear", "log", "row"].map(name => [name, t(`scale_${name}`)]), this.set.scale,
      scale => { this.set.scale = scale, this.image = null, this.showCaption(), this.paint(); }, { title: t("scaleTip") });
    fill(this.caption, this.set.legend ?? legend(this.lab, { kind, domain: this.domain, scale: this.set.scale, what, masked: masked !== null }),
      this.set.legend ? null : choice,
      h("p", { class: "orientation" }, orientation ?? t(kind === "weights" ? "orientation" : "orientationScores"), " ", sums ? this.sum : null));
  }
  names(axis, n) {
    const held = this.set[axis === "row" ? "rowNames" : "columnNames"];
    return typeof held === "function" ? held(n) : held?.[n] ?? String(n);
  }
  value(i, j) { return this.set.values[i * this.columns + j]; }
  hidden(i, j) { return this.set.masked !== null && this.set.masked[i * this.columns + j] === 1; }
  rowSum(i) { let sum = 0; for (let j = 0; j < this.columns; j++) if (!this.hidden(i, j)) sum += this.value(i, j); return sum; }
  cell(i, j) { return { value: this.value(i, j), masked: this.hidden(i, j), row: this.names("row", i), column: this.names("column", j), rowSum: this.rowSum(i) }; }
  read() { return { rows: this.rows, columns: this.columns, row: this.row, column: this.column, pinned: this.pinned, domain: this.domain, scale: this.set.scale,
    painted: this.painted, cellWidth: this.box?.w, rowBoundary: this.set.rowBoundary ?? null, columnBoundary: this.set.columnBoundary ?? null }; }

  // Cell sizes: square unless the map is far from square; the map fits the width of its box and can be enlarged.
  fit() {
    const room = this.scroll.clientWidth - 2;
    if (room < 50 || !this.rows || !this.columns) return;
    const box = { w: 1, h: 1 }, most = (this.set.largestCell ?? clamp(400 / Math.max(this.rows, this.columns), 36, 72)) * this.zoom;
    for (let pass = 0; pass < 2; pass++) {
      this.label(box);
      const w = (room - box.left - box.right) / this.columns * this.zoom, tall = (this.set.height ?? Math.max(320, innerHeight * 0.62)) / this.rows * this.zoom;
      const side = clamp(Math.min(w, tall), 0.5, most);
      box.w = box.h = side >= 4 ? Math.floor(side) : side;
      if (side < 16 && w > 2 * side && this.rows > 2 * this.columns) box.w = Math.min(w, Math.max(side, 16), most);
      if (side < 16 && tall > 2 * side && this.columns > 2 * this.rows) box.h = Math.min(tall, Math.max(side, 16), most);
    }
    this.label(box);
    this.box = box, this.paint();
  }
  label(box) {
    const part = (axis, count, cell, room) => {
      const size = clamp(Math.floor(cell * 0.6), 11, 14), least = Math.ceil(size * room / cell), step = STEPS.find(n => n >= least) ?? least, shown = [];
      for (let n = 0; n < count; n += step) shown.push({ n, word: truncate(this.names(axis, n), 16) });
      const width = textWidth(shown.map(label => label.word), size);
      return { shown, size, step, flat: width <= cell * step - 4, width };
    };
    box.side = part("row", this.rows, box.h, 1.25), box.head = part("column", this.columns, box.w, 1.4);
    const letters = box.head.shown.filter(label => CJK.test(label.word)),
      slanted = textWidth(box.head.shown.filter(label => !CJK.test(label.word)).map(label => label.word), box.head.size);
    const stacked = Math.max(0, ...letters.map(label => [...label.word].length)) * (box.head.size + 1);
    box.left = Math.ceil(box.side.width) + 12;
    box.top = box.head.flat ? box.head.size + 12 : Math.ceil(Math.max(stacked, slanted * 0.72 + box.head.size)) + 8;
    box.right = box.head.flat ? 6 : Math.ceil(slanted * 0.72) + 6;
  }
  enlarge(by) { this.zoom = clamp(this.zoom * by, 1, 40), this.fit(), this.bring(); }
  tint() {
    if (this.image) return this.image;
    const { values, kind, scale } = this.set, canvas = document.createElement("canvas"), { rows, columns } = this;
    canvas.width = columns, canvas.height = rows;
    const image = new ImageData(columns, rows), pixels = image.data;
    let shade = shader(kind, this.domain, scale);
    for (let i = 0, n = 0; i < rows; i++) {
      if (scale === "row") { let most = 0; for (let j = 0; j < columns; j++) most = Math.max(most, values[i * columns + j]); shade = shader(kind, [0, most || 1],
        "linear"); }
      for (let j = 0; j < columns; j++, n += 4) {
        if (this.hidden(i, j)) continue; // stays transparent: the hatch shows through
        const [red, green, blue] = shade(values[i * columns + j]);
        pixels[n] = red, pixels[n + 1] = green, pixels[n + 2] = blue, pixels[n + 3] = 255;
      }
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
    this.inked = shade;
    return this.image = canvas;
  }
  paint() {
    const { box } = this;
    if (!box) return;
    const started = performance.now(), width = box.columns = this.columns * box.w, height = this.rows * box.h;
    const pen = scaleCanvas(this.canvas, Math.ceil(box.left + width + box.right), Math.ceil(box.top + height + 2));
    this.draw(pen, box, width, height);
    this.painted = performance.now() - started;
  }
  // Draws on any context, so that a downloaded file equals the page.
  draw(pen, box, width, height) {
    pen.save();
    pen.translate(box.left, box.top);
    pen.fillStyle = hatch(pen), pen.fillRect(0, 0, width, height);
    pen.imageSmoothingEnabled = Math.min(box.w, box.h) < 1;
    if (this.before) pen.drawImage(this.before, 0, 0, this.columns, this.rows, 0, 0, width, height), pen.globalAlpha = this.shown;
    pen.drawImage(this.tint(), 0, 0, this.columns, this.rows, 0, 0, width, height), pen.globalAlpha = 1;
    if (Math.min(box.w, box.h) >= 8) this.rules(pen, box, width, height);
    if (box.w >= 30 && box.h >= 16 && !this.set.words) this.numbers(pen, box);
    pen.strokeStyle = cssVariable("--line"), pen.lineWidth = 1, pen.strokeRect(-0.5, -0.5, width + 1, height + 1);
    this.boundaries(pen, box, width, height);
    this.cursor(pen, box, width, height);
    const lit = this.litLines(this.lit);
    pen.strokeStyle = cssVariable("--accent"), pen.lineWidth = 1.5;
    lit?.rows.forEach(n => pen.strokeRect(-1, n * box.h, width + 2, box.h)), lit?.columns.forEach(n => pen.strokeRect(n * box.w, -1, box.w, height + 2));
    pen.restore();
    this.write(pen, box);
  }
  rules(pen, box, width, height) {
    pen.strokeStyle = dark() ? "rgb(16 18 26 / 0.7)" : "rgb(255 255 255 / 0.75)", pen.lineWidth = 1;
    pen.beginPath();
    for (let n = 1; n < this.columns; n++) pen.moveTo(n * box.w - 0.5, 0), pen.lineTo(n * box.w - 0.5, height);
    for (let n = 1; n < this.rows; n++) pen.moveTo(0, n * box.h - 0.5), pen.lineTo(width, n * box.h - 0.5);
    pen.stroke();
  }
  // Dashed lines where the longest training input ends.
  boundaries(pen, box, width, height) {
    const { rowBoundary: row, columnBoundary: column } = this.set, x = column * box.w, y = row * box.h; // may lie inside a pooled cell
    pen.save(), pen.strokeStyle = cssVariable("--accent"), pen.lineWidth = 2, pen.setLineDash?.([7, 4]), pen.beginPath();
    if (row > 0 && row < this.rows) pen.moveTo(0, y), pen.lineTo(width, y);
    if (column > 0 && column < this.columns) pen.moveTo(x, 0), pen.lineTo(x, height);
    pen.stroke(), pen.restore();
  }
  numbers(pen, box) {
    const shade = shader(this.set.kind, this.domain, this.set.scale);
    pen.font = `11px ${fontFamily()}`, pen.textAlign = "center", pen.textBaseline = "middle";
    for (let i = 0; i < this.rows; i++) for (let j = 0; j < this.columns; j++) {
      const value = this.value(i, j);
      if (this.hidden(i, j) || (this.set.kind === "weights" && value < 0.005)) continue;
      const [red, green, blue] = this.set.scale === "row" ? [128, 128, 128] : shade(value);
      pen.fillStyle = red * 0.3 + green * 0.59 + blue * 0.11 > 140 ? "#14161f" : "#fff";
      pen.fillText(this.set.kind === "weights" ? value.toFixed(2).replace(/^0/, "") : value.toFixed(this.set.digits ?? 1).replace(/^-(0\.?0*)$/, "$1").replace("-", "−"), (j + 0.5) * box.w,
        (i + 0.5) * box.h + 0.5);
    }
  }
  cursor(pen, box, width, height) {
    const held = this.pinned !== null, x = this.column * box.w, y = this.row * box.h, line = held ? cssVariable("--accent") : cssVariable("--soft");
    pen.strokeStyle = line, pen.lineWidth = 1, pen.globalAlpha = 0.7;
    pen.strokeRect(-0.5, y - 0.5, width + 1, box.h + 1), pen.strokeRect(x - 0.5, -0.5, box.w + 1, height + 1);
    pen.globalAlpha = 1, pen.lineWidth = 2.5, pen.strokeStyle = held || document.activeElement === this.grid ? cssVariable("--accent") : cssVariable("--ink");
    pen.strokeRect(x - 1, y - 1, Math.max(box.w + 2, 5), Math.max(box.h + 2, 5));
  }
  write(pen, box) {
    const near = (axis, label, step) => Math.abs(label.n - this[axis]) < step;
    pen.fillStyle = cssVariable("--soft");
    for (const label of box.side.shown) if (!near("row", label, box.side.step)) this.writeRow(pen, box, label);
    for (const label of box.head.shown) if (!near("column", label, box.head.step)) this.writeColumn(pen, box, label);
    pen.fillStyle = cssVariable("--query"), this.writeRow(pen, box, { n: this.row, word: truncate(this.names("row", this.row), 16) }, true);
    pen.fillStyle = cssVariable("--key"), this.writeColumn(pen, box, { n: this.column, word: truncate(this.names("column", this.column), 16) }, true);
  }
  writeRow(pen, box, label, strong = false) {
    pen.font = `${strong ? "bold " : ""}${box.side.size}px ${fontFamily()}`, pen.textAlign = "right", pen.textBaseline = "middle";
    pen.fillText(label.word, box.left - 7, box.top + (label.n + 0.5) * box.h + 0.5, box.left - 8);
  }
  writeColumn(pen, box, label, strong = false) {
    const x = box.left + (label.n + 0.5) * box.w, { size } = box.head, letters = [...label.word];
    pen.font = `${strong ? "bold " : ""}${size}px ${fontFamily()}`, pen.textAlign = "center", pen.textBaseline = "alphabetic";
    if (box.head.flat) return pen.fillText(label.word, x, box.top - 6);
    if (CJK.test(label.word)) return letters.forEach((letter, n) => pen.fillText(letter, x, box.top - 6 - (letters.length - 1 - n) * (size + 1)));
    pen.save();
    pen.translate(x + size * 0.3, box.top - 5), pen.rotate(-Math.PI / 4), pen.textAlign = "left", pen.fillText(label.word, 0, 0);
    pen.restore();
  }

  // Pointer and keyboard.
  point(event, click) {
    const edge = this.canvas.getBoundingClientRect(), { box } = this;
    if (!box) return;
    const j = Math.floor((event.clientX - edge.left - box.left) / box.w), i = Math.floor((event.clientY - edge.top - box.top) / box.h);
    const { rowToken, columnToken } = this.set;
    if (!click && j < this.columns && i < this.rows) this.lab.highlight((j >= 0 ? columnToken?.(j) : i >= 0 ? rowToken?.(i) : null) ?? null);
    if (!click && (i < 0 || j < 0 || i >= this.rows || j >= this.columns)) return;
    const row = clamp(i, 0, this.rows - 1), column = clamp(j, 0, this.columns - 1);
    if (click) return this.pin(this.pinned === row && column === this.column ? null : row, column);
    this.select(this.pinned ?? row, column);
  }
  // A rectangle drawn with the pointer: `onRegion([first row, last row], [first column, last column])`.
  watchDrag() {
    const at = event => { const edge = this.canvas.getBoundingClientRect(),
      { box } = this; return [clamp(Math.floor((event.clientY - edge.top - box.top) / box.h), 0, this.rows - 1),
        clamp(Math.floor((event.clientX - edge.left - box.left) / box.w), 0, this.columns - 1)]; };
    let from = null, start = null;
    this.canvas.addEventListener("pointerdown", event => { from = at(event), start = [event.clientX, event.clientY], this.dragged = false; });
    this.canvas.addEventListener("pointermove", event => {
      if (!from || Math.hypot(event.clientX - start[0], event.clientY - start[1]) < 8) return;
      const to = at(event), { box } = this, pen = (this.paint(), this.canvas.getContext("2d")), [top, bottom] = [from[0], to[0]].sort((a, b) => a - b),
        [left, right] = [from[1], to[1]].sort((a, b) => a - b);
      this.dragged = true, pen.strokeStyle = cssVariable("--accent"), pen.lineWidth = 2,
        pen.strokeRect(box.left + left * box.w, box.top + top * box.h, (right - left + 1) * box.w, (bottom - top + 1) * box.h);
    });
    addEventListener("pointerup", event => {
      if (from && this.dragged) { const to = at(event); this.set.onRegion([from[0], to[0]].sort((a, b) => a - b), [from[1], to[1]].sort((a, b) => a - b)); }
      from = null;
    }, { signal: this.lab.signal });
  }
  select(i, j, spoken = false) {
    if (i === this.row && j === this.column && !spoken) return;
    const row = this.row;
    this.row = clamp(i, 0, this.rows - 1), this.column = clamp(j, 0, this.columns - 1);
    this.paint(), this.show(spoken);
    this.set.onCell?.(this.row, this.column, row !== this.row);
  }
  pin(i, j = this.column) {
    this.pinned = i;
    this.select(i ?? this.row, j, true);
    this.set.onPin?.(i, this.column);
  }
  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (this.set.onKey?.(event)) return event.preventDefault();
    const { row, column } = this,
      moves = { ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1], ArrowUp: [row - 1, column], ArrowDown: [row + 1, column], Home: [row, 0],
        End: [row, this.columns - 1], PageUp: [row - 10, column], PageDown: [row + 10, column] };
    if (event.key === "Enter" || event.key === " ") this.pin(this.pinned === null ? row : null);
    else if (event.key === "Escape" && this.pinned !== null) this.pin(null);
    else if (moves[event.key]) { if (this.pinned !== null) this.pinned = clamp(moves[event.key][0], 0, this.rows - 1); this.select(...moves[event.key], true),
      this.bring(); }
    else return;
    event.preventDefault(), event.stopPropagation();
  }
  bring() {
    const { box, scroll } = this, x = box.left + this.column * box.w, y = box.top + this.row * box.h;
    if (x < scroll.scrollLeft + box.left || x + box.w > scroll.scrollLeft + scroll.clientWidth) scroll.scrollLeft = x - scroll.clientWidth / 2;
    if (y < scroll.scrollTop + box.top || y + box.h > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = y - scroll.clientHeight / 2;
  }

  // The numbers of the selected cell, and the largest weights of its row as a table.
  show(spoken) {
    const { lab, row, column } = this, { t } = lab, { kind, sums, facts, top } = this.set;
    if (!this.rows || !this.columns) return;
    const hidden = this.hidden(row, column), from = this.names("row", row), to = this.names("column", column);
    const words = this.set.words ? this.set.words(row,
      column) : hidden ? this.set.maskedWords ?? t("maskedCell") : `${this.set.what ?? t(kind === "weights" ? "weight" : "score")} ${formatExact(this.value(row, column))}`;
    this.line.setAttribute("aria-rowindex", row + 1), this.active.setAttribute("aria-colindex", column + 1);
    this.active.textContent = `${from} → ${to}: ${words}`;
    if (sums) this.sum.textContent = t("rowSum", this.rowSum(row).toFixed(3)), this.sum.title = formatExact(this.rowSum(row));
    if (spoken) lab.announce(`${from} → ${to}: ${words}`);
    const list = [...(this.set.words ? [] : [[this.set.what ?? t(kind === "weights" ? "weight" : "score"), hidden ? t("masked") : this.value(row, column)]]),
      ...(facts?.(row, column) ?? [])];
    fill(this.readout,
      h("p", { class: "pair" }, untranslated(from, { class: "query" }), h("span", { class: "at" }, this.set.rowNumber?.(row) ?? row), h("span", { class: "to" }, "→"),
        untranslated(to, { class: "key" }), h("span", { class: "at" }, this.set.columnNumber?.(column) ?? column),
        this.pinned !== null && h("span", { class: "chip" }, t("pin"))),
      this.set.words ? h("p", {}, words) : null,
      h("dl", {}, list.map(([name, value]) => [h("dt", {}, name), typeof value === "number" ? h("dd", { translate: "no", title: formatExact(value), "data-value": value }, formatShort(value)) : h("dd", { translate: "no" }, value)])),
      top ? this.ranking(top) : null);
  }
  ranking(count) {
    const { t } = this.lab, row = this.set.values.subarray(this.row * this.columns, (this.row + 1) * this.columns),
      found = topEntries(row, count, j => this.hidden(this.row, j));
    if (!found.length) return h("p", { class: "soft" }, t("noneAllowed"));
    const shade = shader(this.set.kind, this.domain, this.set.scale === "row" ? "linear" : this.set.scale);
    return rankingTable(t("topKeys"), found.map(({ index, value }) => ({ name: this.names("column", index), at: this.set.columnNumber?.(index) ?? index, value, colour: cssColour(shade(value)), here: index === this.column })));
  }
}

export function zeroCentred(values) {
  let most = 0;
  for (const x of values) if (Number.isFinite(x)) most = Math.max(most, Math.abs(x));
  const nice = most ? Number(most.toPrecision(2)) : 1, wideEnough = nice >= most ? nice : Number((most * 1.05).toPrecision(2));
  return [-wideEnough, wideEnough];
}
