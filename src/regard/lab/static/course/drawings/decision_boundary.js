// Points of two classes, which can be dragged, over the surface of a network: its boundary is where the surface is 0.
import { dark } from "lab/colour.js";
import { h, scaleCanvas, s } from "lab/dom.js";
import { roundTo } from "lab/course/labels.js";

const WORDS = { help: { en: "Drag a point, or focus it and use the arrow keys. Discs belong inside, squares outside; a ringed point is on the wrong side.", zh: "拖动一个点，或选中后用方向键移动。圆点应在里面，方块应在外面；带圈的点分错了。" }, point: { en: "point {n}", zh: "点 {n}" } };
const EXTENT = 3;

export function draw(host, result, lab, step, change) {
  const size = Math.max(260, Math.min(host.clientWidth || 420, 460)), scale = size / (2 * EXTENT), canvas = h("canvas", { "aria-hidden": "true", style: { position: "absolute", inset: 0, "border-radius": "10px" } }), pen = scaleCanvas(canvas, size, size);
  const control = step.controls.find(one => one.name === "points"), x = a => size / 2 + a * scale, y = b => size / 2 - b * scale;
  const frame = s("svg", { viewBox: `0 0 ${size} ${size}`, width: size, height: size, role: "group", "aria-label": lab.localize(step.picture.title), style: "position:absolute;inset:0" });
  const line = s("path", { fill: "none", stroke: "var(--ink)", "stroke-width": 2 });
  const points = step.values.points.map((_, n) => {
    const inside = n < step.values.points.length / 2, wrong = s("circle", { r: 14, fill: "none", stroke: "var(--key)", "stroke-width": 3 }), shape = inside ? s("circle", { r: 8 }) : s("rect", { x: -7.5, y: -7.5, width: 15, height: 15 });
    for (const [key, value] of Object.entries({ fill: inside ? "#1f5fbf" : "#c2610c", stroke: "#ffffff", "stroke-width": 2 })) shape.setAttribute(key, value);
    const node = s("g", { role: "button", tabindex: 0, style: "cursor:grab;touch-action:none", "data-grip": "points", "data-i": n, "aria-label": lab.localize(WORDS.point).replace("{n}", n + 1) }, s("circle", { r: 17, fill: "transparent" }), wrong, shape);
    const move = (a, b) => { change({ points: step.values.points.map((old, row) => row === n ? [roundTo(control, Math.max(-EXTENT, Math.min(EXTENT, a))), roundTo(control, Math.max(-EXTENT, Math.min(EXTENT, b)))] : old) }), place(); };
    node.addEventListener("pointerdown", event => { event.preventDefault(), node.setPointerCapture(event.pointerId), node.focus({ preventScroll: true }); });
    node.addEventListener("pointermove", event => { if (!node.hasPointerCapture(event.pointerId)) return; const edge = frame.getBoundingClientRect(), ratio = size / edge.width; move(((event.clientX - edge.left) * ratio - size / 2) / scale, (size / 2 - (event.clientY - edge.top) * ratio) / scale); });
    node.addEventListener("keydown", event => { const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key], [a, b] = step.values.points[n]; if (by) event.preventDefault(), event.stopPropagation(), move(a + by[0] * control.step, b + by[1] * control.step); });
    return { node, wrong, inside };
  });
  frame.append(line, ...points.map(point => point.node));
  host.append(h("div", { style: { position: "relative", width: `${size}px`, height: `${size}px`, margin: "0 auto" } }, canvas, frame), h("p", { class: "soft" }, lab.localize(WORDS.help)));
  let now = result;
  // the value of the surface at a point, between the grid's own
  function valueAt(a, b) {
    const cells = now.surface.length - 1, u = (a + EXTENT) / (2 * EXTENT) * cells, v = (EXTENT - b) / (2 * EXTENT) * cells, i = Math.min(cells - 1, Math.max(0, Math.floor(v))), j = Math.min(cells - 1, Math.max(0, Math.floor(u))), p = v - i, q = u - j, grid = now.surface;
    return (1 - p) * ((1 - q) * grid[i][j] + q * grid[i][j + 1]) + p * ((1 - q) * grid[i + 1][j] + q * grid[i + 1][j + 1]);
  }
  function place() { points.forEach(({ node }, n) => node.setAttribute("transform", `translate(${x(step.values.points[n][0])} ${y(step.values.points[n][1])})`)); }
  function update(next) {
    now = next;
    const tile = 4, [inside, outside, ground] = dark() ? [[38, 74, 128], [120, 66, 22], [22, 25, 33]] : [[176, 205, 245], [250, 207, 165], [255, 255, 255]];
    for (let py = 0; py < size; py += tile) for (let px = 0; px < size; px += tile) {
      const value = valueAt((px + tile / 2 - size / 2) / scale, (size / 2 - py - tile / 2) / scale), share = Math.min(1, Math.abs(value)), colour = value > 0 ? inside : outside;
      pen.fillStyle = `rgb(${ground.map((part, n) => Math.round(part + share * (colour[n] - part))).join(" ")})`, pen.fillRect(px, py, tile, tile);
    }
    line.setAttribute("d", contour(now.surface, n => n * size / (now.surface.length - 1)));
    points.forEach(({ wrong, inside }, n) => { const [a, b] = step.values.points[n]; wrong.setAttribute("visibility", valueAt(a, b) > 0 === inside ? "hidden" : "visible"); });
    place();
  }
  update(result);
  return update;
}
// The line where the surface is 0, cell by cell.
function contour(grid, at) {
  let d = "";
  for (let i = 0; i < grid.length - 1; i++) for (let j = 0; j < grid.length - 1; j++) {
    const corners = [[i, j], [i, j + 1], [i + 1, j + 1], [i + 1, j]], cuts = [];
    corners.forEach(([a, b], n) => { const [c, e] = corners[(n + 1) % 4], u = grid[a][b], v = grid[c][e]; if (u > 0 !== v > 0) { const t = u / (u - v); cuts.push([at(b + t * (e - b)), at(a + t * (c - a))]); } });
    for (let n = 0; n + 1 < cuts.length; n += 2) d += `M${cuts[n].map(x => x.toFixed(1))}L${cuts[n + 1].map(x => x.toFixed(1))}`;
  }
  return d;
}
