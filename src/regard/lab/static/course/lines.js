// Curves over an axis, linear or logarithmic; the pointer reads the values at the nearest point.
import { formatBrief, h, s, scientific } from "lab/dom.js";

const COLOURS = ["var(--query)", "var(--key)", "var(--value)", "var(--output)", "var(--accent)", "var(--soft)"];

export function drawLines(host, result, lab, step) {
  const { picture } = step, width = Math.max(280, Math.min(host.clientWidth || 480, 680)), height = Math.round(Math.max(210, Math.min(width * 0.55, 320)));
  return (show => (show(result), show))(now => {
    const xs = now[picture.x], series = picture.ys.map(([name, label], n) => ({ name, label: lab.localize(label), ys: now[name], colour: COLOURS[n % COLOURS.length], dash: n >= COLOURS.length ? "5 4" : null }));
    const box = { left: 58, top: 10, right: 14, bottom: 42 }, w = width - box.left - box.right, tall = height - box.top - box.bottom;
    const across = makeScale(xs, picture.log_x, box.left, box.left + w), up = makeScale(series.flatMap(one => one.ys), picture.log_y, box.top + tall, box.top, !picture.log_y);
    const path = ys => ys.map((value, n) => Number.isFinite(up.at(value)) ? `${n && Number.isFinite(up.at(ys[n - 1])) ? "L" : "M"}${across.at(xs[n]).toFixed(1)} ${up.at(value).toFixed(1)}` : "").join("");
    const marker = picture.marker ? now[picture.marker] : null, few = xs.length <= 30;
    const cursor = s("line", { class: "mark", y1: box.top, y2: box.top + tall, visibility: "hidden" }), readout = h("p", { class: "soft lines-readout", translate: "no" });
    const chart = s("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart course-lines", role: "img", "aria-label": lab.localize(picture.title), style: `max-width:${width}px` },
      s("rect", { x: box.left, y: box.top, width: w, height: tall, class: "frame" }),
      up.ticks.map(tick => [s("line", { x1: box.left, x2: box.left + w, y1: up.at(tick), y2: up.at(tick), class: "rule" }), s("text", { x: box.left - 7, y: up.at(tick) + 4, class: "tick end" }, short(tick))]),
      across.ticks.map(tick => s("text", { x: across.at(tick), y: box.top + tall + 16, class: "tick" }, short(tick))),
      s("text", { x: box.left + w / 2, y: height - 5, class: "axis" }, lab.localize(picture.x_label)),
      s("text", { x: 13, y: box.top + tall / 2, class: "axis", transform: `rotate(-90 13 ${box.top + tall / 2})` }, lab.localize(picture.y_label)),
      Number.isFinite(across.at(marker)) && marker !== null ? s("line", { x1: across.at(marker), x2: across.at(marker), y1: box.top, y2: box.top + tall, class: "course-marker" }) : null,
      series.map(one => [s("path", { d: path(one.ys), class: "curve", style: `stroke:${one.colour};stroke-width:2.2`, "stroke-dasharray": one.dash }),
        few ? one.ys.map((value, n) => Number.isFinite(up.at(value)) ? s("circle", { cx: across.at(xs[n]), cy: up.at(value), r: 3, style: `fill:${one.colour}` }) : null) : null]), cursor);
    const read = n => `${short(xs[n])}:  ${series.map(one => `${one.label} ${formatBrief(one.ys[n])}`).join("   ")}`;
    const nearest = at => xs.reduce((best, value, n) => Math.abs(across.at(value) - at) < Math.abs(across.at(xs[best]) - at) ? n : best, 0);
    chart.addEventListener("pointermove", event => {
      const edge = chart.getBoundingClientRect(), n = nearest((event.clientX - edge.left) * width / edge.width);
      for (const name of ["x1", "x2"]) cursor.setAttribute(name, across.at(xs[n]));
      cursor.setAttribute("visibility", "visible"), readout.textContent = read(n);
    });
    readout.textContent = read(marker === null ? xs.length - 1 : nearest(across.at(marker)));
    host.replaceChildren(h("p", { class: "keys" }, series.map(one => h("span", {}, h("i", { style: { background: one.colour } }), one.label))), chart, readout);
  });
}
const short = x => Math.abs(x) >= 1e5 || (x !== 0 && Math.abs(x) < 1e-3) ? scientific(Number(x.toPrecision(3)).toExponential()) : Number(x.toPrecision(4)).toLocaleString("en").replace("-", "−");

// From a value to a pixel, with ticks that are round numbers.
function makeScale(values, log, from, to, withZero = false) {
  const all = values.filter(x => Number.isFinite(x) && (!log || x > 0)), map = log ? Math.log10 : x => x;
  let low = Math.min(...all), high = Math.max(...all);
  if (!all.length) low = log ? 1 : 0, high = log ? 10 : 1;
  if (withZero && low > 0 && low < high / 2) low = 0;
  if (low === high) log ? (low /= 2, high *= 2) : (low -= 0.5, high += 0.5);
  const room = log || !withZero ? 0 : (high - low) * 0.05, a = map(low) - (withZero && low !== 0 ? room : 0), b = map(high) + room;
  return { at: x => x === null || (log && !(x > 0)) ? NaN : from + (map(x) - a) / (b - a) * (to - from), ticks: log ? powers(low, high) : round(low, high) };
}
function powers(low, high) {
  const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9), every = Math.max(1, Math.ceil((last - first) / 6)), found = [];
  for (let n = first; n <= last; n += every) found.push(10 ** n);
  return found.length > 1 ? found : [low, high];
}
function round(low, high, count = 5) {
  const rough = (high - low) / count, unit = 10 ** Math.floor(Math.log10(rough)), every = [1, 2, 5, 10].find(n => n * unit >= rough) * unit, found = [];
  for (let x = Math.ceil(low / every - 1e-9) * every; x <= high + every / 1e6; x += every) found.push(Number(x.toPrecision(12)));
  return found;
}
