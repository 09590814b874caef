// Wheel and pinch zoom, dragging, and rectangles on a heat map whose region is fetched: the picture moves at once, the region is fetched when the hand rests.
import { clamp, cssVariable, h, scaleCanvas } from "lab/dom.js";
import { hatch } from "lab/colour.js";

const REST = 160, LEAST = 16;
// `view()` → {rows: [a, b], keys: [c, d]} as shown, `sizes()` → [queries, keys], `look(rows, keys)` fetches a region and returns a promise.
export function panZoom(lab, map, { view, sizes, look }) {
  const { canvas } = map, front = h("canvas", { class: "map-front", "aria-hidden": "true" }), pointers = new Map();
  let next = null, start = null, rectangle = null;
  map.grid.append(front), canvas.style.touchAction = "none", front.hidden = true;
  const plot = () => ({ left: map.box.left, top: map.box.top, width: map.columns * map.box.w, height: map.rows * map.box.h });
  const share = event => { const edge = canvas.getBoundingClientRect(), box = plot(); return [clamp((event.clientX - edge.left - box.left) / box.width, 0, 1), clamp((event.clientY - edge.top - box.top) / box.height, 0, 1)]; };
  const inside = ([a, b], size) => { const length = clamp(b - a, Math.min(LEAST, size), size), first = clamp(a, 0, size - length); return [first, first + length]; };
  const bounded = ({ rows, keys }) => { const [queries, count] = sizes(); return { rows: inside(rows, queries), keys: inside(keys, count) }; };
  // A span around a point that stays where it is: `at` is its share of the span.
  const scaled = ([a, b], at, by, size) => { const length = clamp((b - a) * by, Math.min(LEAST, size), size), first = a + at * (b - a) - at * length; return [first, first + length]; };
  const zoomed = (from, [x, y], by) => { const [queries, count] = sizes(); return { rows: scaled(from.rows, y, by, queries), keys: scaled(from.keys, x, by, count) }; };
  function preview(region) {
    next = bounded(region);
    const box = plot(), pen = scaleCanvas(front, box.width, box.height), now = view(), part = ([a, b], [c, d], count) => [(a - c) / (d - c) * count, (b - a) / (d - c) * count];
    Object.assign(front.style, { left: `${canvas.offsetLeft + box.left}px`, top: `${canvas.offsetTop + box.top}px` }), front.hidden = false;
    const [x, w] = part(next.keys, now.keys, map.columns), [y, tall] = part(next.rows, now.rows, map.rows);
    pen.fillStyle = hatch(pen), pen.fillRect(0, 0, box.width, box.height), pen.imageSmoothingEnabled = false;
    pen.drawImage(map.tint(), x, y, w, tall, 0, 0, box.width, box.height);
    settleSoon();
  }
  const settleSoon = lab.debounce(() => settle(), REST);
  async function settle() {
    if (!next || pointers.size) return;
    const { rows, keys } = next;
    next = null;
    await look(rows, keys);
    if (!next) front.hidden = true;
  }
  function drawRectangle(to) {
    const box = plot(), pen = scaleCanvas(front, box.width, box.height), [x0, y0] = rectangle, [x1, y1] = to;
    Object.assign(front.style, { left: `${canvas.offsetLeft + box.left}px`, top: `${canvas.offsetTop + box.top}px` }), front.hidden = false;
    pen.clearRect(0, 0, box.width, box.height), pen.strokeStyle = cssVariable("--accent"), pen.lineWidth = 2, pen.strokeRect(x0 * box.width, y0 * box.height, (x1 - x0) * box.width, (y1 - y0) * box.height);
  }
  canvas.addEventListener("wheel", event => { event.preventDefault(), preview(zoomed(next ?? view(), share(event), Math.exp(clamp(event.deltaY, -240, 240) * 0.0024))); }, { passive: false });
  canvas.addEventListener("dblclick", event => preview(zoomed(next ?? view(), share(event), 0.5)));
  canvas.addEventListener("pointerdown", event => {
    if (event.button) return;
    pointers.set(event.pointerId, event), map.dragged = false, start = { view: next ?? view(), events: [...pointers.values()] }, rectangle = event.shiftKey ? share(event) : null;
    try { canvas.setPointerCapture(event.pointerId); } catch { /* the pointer is gone */ }
  });
  canvas.addEventListener("pointermove", event => {
    if (!pointers.has(event.pointerId)) return;
    pointers.set(event.pointerId, event);
    const [a, b] = [...pointers.values()], [from, other] = start.events, box = plot();
    if (!map.dragged && !b && Math.hypot(a.clientX - from.clientX, a.clientY - from.clientY) < 5) return;
    map.dragged = true;
    if (rectangle) return drawRectangle(share(event));
    if (b && other) {
      const far = (one, two) => Math.max(20, Math.hypot(one.clientX - two.clientX, one.clientY - two.clientY)), middle = { clientX: (from.clientX + other.clientX) / 2, clientY: (from.clientY + other.clientY) / 2 };
      return preview(zoomed(start.view, share(middle), far(from, other) / far(a, b)));
    }
    const move = ([first, last], by) => [first - by * (last - first), last - by * (last - first)];
    preview({ rows: move(start.view.rows, (a.clientY - from.clientY) / box.height), keys: move(start.view.keys, (a.clientX - from.clientX) / box.width) });
  });
  const leave = event => {
    if (!pointers.delete(event.pointerId)) return;
    start = pointers.size ? { view: next ?? view(), events: [...pointers.values()] } : null;
    if (rectangle && map.dragged && event.type === "pointerup") {
      const [x0, y0] = rectangle, [x1, y1] = share(event), now = view(), cut = ([a, b], from, to) => [a + Math.min(from, to) * (b - a), a + Math.max(from, to) * (b - a)];
      preview({ rows: cut(now.rows, y0, y1), keys: cut(now.keys, x0, x1) });
    }
    rectangle = null;
    if (next) settleSoon.cancel(), settle();
  };
  for (const type of ["pointerup", "pointercancel"]) canvas.addEventListener(type, leave);
}
