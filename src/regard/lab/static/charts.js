// Tables of numbers, scatter plots and line charts.
import { formatExact, formatShort, h, newId, s, scientific } from "lab/dom.js";

// A table: `columns` [text, …], `rows` [[cell, …], …]; numbers are exact, or `short` and exact on hover; texts of a model are not translated.
export function numbersTable(lab, { caption, columns, rows, onRow, folded = false, quiet = false, short = false }) {
  const cell = value => typeof value === "number" ? h("td", { class: "number", "data-value": value, ...(short ? { title: formatExact(value) } : {}) }, short ? formatShort(value) : formatExact(value)) : h("td", { translate: typeof value === "string" ? "no" : null }, value);
  const table = h("table", { class: "numbers" }, caption && !folded && !quiet ? h("caption", {}, caption) : null,
    h("thead", {}, h("tr", {}, columns.map(words => words === "" ? h("td", {}) : h("th", { scope: "col" }, words)))),
    h("tbody", {}, rows.map((row, n) => h("tr", onRow ? { onclick: () => onRow(n), class: "pick" } : {}, row.map(cell)))));
  const box = h("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": caption }, table);
  return folded ? h("details", { class: "fold" }, h("summary", {}, caption), box) : box;
}

// A scatter plot: `points` [{x, y, label, colour?}], labelled axes, `onPick(n)`. Each point is a button named by its values.
export function dots(lab, { title, xWords, yWords, points, xTicks, yTicks, yDomain, xDomain, onPick, here, width = 460, height = 220 }) {
  const box = { left: 52, top: 14, right: 14, bottom: 40 }, w = width - box.left - box.right, tall = height - box.top - box.bottom;
  const [y0, y1] = yDomain ?? span(points.map(point => point.y)), [x0, x1] = xDomain ?? span(points.map(point => point.x));
  const x = value => box.left + w * (value - x0) / (x1 - x0 || 1), y = value => box.top + tall * (1 - (value - y0) / (y1 - y0 || 1));
  const shown = s("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "group", "aria-label": title },
    axes({ box, w, tall, x, y, xTicks: xTicks ?? ticks(x0, x1), yTicks: yTicks ?? ticks(y0, y1), xWords, yWords, height }),
    points.map((point, n) => s("circle",
      { cx: x(point.x), cy: y(point.y), r: n === here ? 6 : 4.2, class: `dot ${n === here ? "here" : ""} ${point.kind ?? ""}`, role: "button",
        tabindex: n === (here ?? 0) ? 0 : -1, "aria-label": point.label, "aria-pressed": n === here,
      onclick: () => onPick?.(n), onkeydown: event => key(event, n) }, s("title", { translate: "no" }, point.label))));
  function key(event, n) {
    const to = { ArrowRight: n + 1, ArrowLeft: n - 1, Home: 0, End: points.length - 1 }[event.key], all = [...shown.querySelectorAll(".dot")];
    if (event.key === "Enter" || event.key === " ") event.preventDefault(), onPick?.(n);
    else if (to !== undefined && all[to]) event.preventDefault(), all[n].setAttribute("tabindex", -1), all[to].setAttribute("tabindex", 0), all[to].focus();
  }
  return h("figure", { class: "chart-box" }, h("h3", {}, title), shown);
}

// A line chart: `series` [{name, xs, ys, colour, strong}]; pointer and arrow keys select the nearest x: `onPlace(index)`.
export function curves(lab, { title, xWords, yWords, series, yDomain, xDomain, place, onPlace, onPick, width = 900, height = 190 }) {
  const box = { left: 62, top: 12, right: 24, bottom: 40 }, w = width - box.left - box.right, tall = height - box.top - box.bottom, id = newId();
  const [x0, x1] = xDomain ?? span(series.flatMap(one => [one.xs[0], one.xs[one.xs.length - 1]])), [y0, y1] = yDomain ?? span(series.flatMap(one => extremes(one.ys)));
  const x = value => box.left + w * (value - x0) / (x1 - x0 || 1), y = value => box.top + tall * (1 - (value - y0) / (y1 - y0 || 1));
  const mark = s("line", { y1: box.top, y2: box.top + tall, class: "mark", visibility: "hidden" });
  const shown = s("svg",
    { viewBox: `0 0 ${width} ${height}`, class: "chart", role: onPlace ? "slider" : "img", tabindex: onPlace ? 0 : null, "aria-label": title,
      "aria-valuemin": onPlace && x0, "aria-valuemax": onPlace && x1, "aria-valuenow": onPlace && (place ?? x0), id },
    axes({ box, w, tall, x, y, xTicks: ticks(x0, x1), yTicks: ticks(y0, y1), xWords, yWords, height }),
    series.map(one => s("path", { d: path(one, x, y, w), class: `curve ${one.strong === false ? "weak" : ""}`, style: one.colour ? `stroke:${one.colour}` : null })),
    series.map(one => one.xs.length > 40 ? null : Array.from(one.xs,
      (value, n) => s("circle", { cx: x(value), cy: y(one.ys[n]), r: 2.6, class: "place", style: one.colour ? `fill:${one.colour}` : null }))),
      mark);
  let here = place ?? x0;
  function go(value) {
    here = Math.round(Math.max(x0, Math.min(x1, value)));
    mark.setAttribute("x1", x(here)), mark.setAttribute("x2", x(here)), mark.setAttribute("visibility", "visible"), shown.setAttribute("aria-valuenow", here);
    onPlace?.(here);
  }
  if (onPlace) {
    const under = event => { const edge = shown.getBoundingClientRect(); return x0 + ((event.clientX - edge.left) * width / edge.width - box.left) / w * (x1 - x0); };
    shown.addEventListener("pointermove", event => go(under(event)));
    shown.addEventListener("click", event => (go(under(event)), onPick?.(here)));
    shown.addEventListener("keydown", event => {
      const step = Math.max(1, Math.round((x1 - x0) / 100)),
        to = { ArrowRight: here + 1, ArrowLeft: here - 1, PageUp: here + step, PageDown: here - step, Home: x0, End: x1 }[event.key];
      if (to !== undefined) event.preventDefault(), go(to);
      if (event.key === "Enter") onPick?.(here);
    });
  }
  const names = series.length > 1 ? h("p", { class: "keys" },
    series.map(one => h("span", {}, h("i", { style: { background: one.colour ?? "var(--accent)" } }), one.name))) : null;
  return h("figure", { class: "chart-box" }, h("h3", {}, title), names, shown);
}
// Where several values fall on one pixel, the line spans their minimum and maximum.
function path({ xs, ys }, x, y, w) {
  if (xs.length <= 2 * w) return Array.from(xs, (value, n) => `${n ? "L" : "M"}${x(value).toFixed(1)} ${y(ys[n]).toFixed(1)}`).join("");
  let d = "", last = -1, low = Infinity, high = -Infinity;
  for (let n = 0; n <= xs.length; n++) {
    const pixel = n < xs.length ? Math.round(x(xs[n])) : -2;
    if (pixel !== last && last >= 0) d += `${d ? "L" : "M"}${last} ${y(high).toFixed(1)}L${last} ${y(low).toFixed(1)}`, low = Infinity, high = -Infinity;
    last = pixel;
    if (n < xs.length) low = Math.min(low, ys[n]), high = Math.max(high, ys[n]);
  }
  return d;
}
function axes({ box, w, tall, x, y, xTicks, yTicks, xWords, yWords, height }) {
  return [s("rect", { x: box.left, y: box.top, width: w, height: tall, class: "frame" }),
    yTicks.map(tick => [s("line", { x1: box.left, x2: box.left + w, y1: y(tick), y2: y(tick), class: "rule" }),
      s("text", { x: box.left - 7, y: y(tick) + 4, class: "tick end" }, label(tick))]),
    xTicks.map(tick => s("text", { x: x(tick), y: box.top + tall + 16, class: "tick" }, label(tick))),
    s("text", { x: box.left + w / 2, y: height - 4, class: "axis" }, xWords),
      s("text", { x: 12, y: box.top + tall / 2, class: "axis", transform: `rotate(-90 12 ${box.top + tall / 2})` }, yWords)];
}
const label = x => Math.abs(x) >= 1e5 || (x !== 0 && Math.abs(x) < 1e-3) ? scientific(Number(x.toPrecision(3)).toExponential()) : Number(x.toPrecision(4)).toString().replace("-", "−");
function extremes(values) { let low = Infinity, high = -Infinity; for (const x of values) if (Number.isFinite(x)) low = Math.min(low, x),
  high = Math.max(high, x); return [low, high]; }
function span(values) { const [low, high] = extremes(values); return high > low ? [Math.min(0, low), high] : [Math.min(0, low), (high || 0) + 1]; }
function ticks(low, high, count = 5) {
  const rough = (high - low) / count || 1, unit = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].find(n => n * unit >= rough) * unit, found = [];
  for (let x = Math.ceil(low / step) * step; x <= high + step / 1e6; x += step) found.push(Number(x.toPrecision(12)));
  return found;
}
