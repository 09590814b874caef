// Vectors of two dimensions as arrows; those that a control holds are dragged by their tips, or moved by arrow keys.
import { h, s } from "lab/dom.js";
import { readLabels, roleColour, roundTo } from "lab/course/labels.js";

export function drawPlane(host, result, lab, step, change) {
  const { picture } = step, size = Math.max(240, Math.min(host.clientWidth || 360, 420)), { extent } = picture, scale = size / (2 * extent);
  const x = value => size / 2 + value * scale, y = value => size / 2 - value * scale;
  const read = (name, now) => { const held = step.controls.some(control => control.name === name) ? step.values[name] : now[name]; return Array.isArray(held[0]) ? held : [held]; };
  const names = Object.fromEntries(picture.labels ?? []), arrows = [];
  const plane = s("svg", { viewBox: `0 0 ${size} ${size}`, class: "plane", role: "group", "aria-label": lab.localize(picture.title), style: `max-width:${size}px` }, grid(extent, x, y, size));
  for (const [name, role] of picture.vectors) {
    const control = step.controls.find(one => one.name === name), labels = names[name] ? readLabels(lab, names[name], result) : [], title = control && !labels.length ? { words: lab.localize(control.label) } : null;
    read(name, result).forEach((_, row) => {
      const label = labels[row] ?? title ?? { words: name, own: true };
      const arrow = { name, row, control, line: s("line", { class: "arrow-line" }), head: s("path", { class: "arrow-head" }), text: s("text", { class: "arrow-name", translate: label.own ? "no" : null }, label.words) };
      if (control) arrow.grip = s("circle", { r: 14, class: "grip", tabindex: 0, role: "button", "aria-label": lab.t("arrowHelp", label.words), "data-grip": name, "data-i": row });
      arrow.node = s("g", { class: `arrow ${control ? "movable" : ""}`, style: `--role:${roleColour(role)}` }, arrow.line, arrow.head, arrow.text, arrow.grip ?? null);
      if (control) makeMovable(arrow);
      arrows.push(arrow), plane.append(arrow.node);
    });
  }
  function move(arrow, point) {
    const held = step.values[arrow.name], next = point.map(value => roundTo(arrow.control, Math.max(-extent, Math.min(extent, value))));
    change({ [arrow.name]: Array.isArray(held[0]) ? held.map((old, row) => row === arrow.row ? next : old) : next });
    place();
  }
  function makeMovable(arrow) {
    const { grip } = arrow;
    const at = event => { const edge = plane.getBoundingClientRect(), ratio = size / edge.width; return [((event.clientX - edge.left) * ratio - size / 2) / scale, (size / 2 - (event.clientY - edge.top) * ratio) / scale]; };
    grip.addEventListener("pointerdown", event => { event.preventDefault(), grip.setPointerCapture(event.pointerId), grip.focus({ preventScroll: true }), grip.classList.add("held"); });
    grip.addEventListener("pointermove", event => { if (grip.hasPointerCapture(event.pointerId)) move(arrow, at(event)); });
    for (const end of ["pointerup", "pointercancel"]) grip.addEventListener(end, () => grip.classList.remove("held"));
    grip.addEventListener("keydown", event => {
      const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
      if (!by) return;
      event.preventDefault(), event.stopPropagation();
      const held = read(arrow.name, last)[arrow.row], far = (event.shiftKey ? 10 : 1) * arrow.control.step;
      move(arrow, [held[0] + by[0] * far, held[1] + by[1] * far]);
    });
  }
  let last = result;
  function place() {
    const taken = [];
    for (const arrow of arrows) {
      const [a, b] = read(arrow.name, last)[arrow.row], tip = [x(a), y(b)], angle = Math.atan2(tip[1] - size / 2, tip[0] - size / 2), long = Math.hypot(tip[0] - size / 2, tip[1] - size / 2);
      const short = Math.max(0, long - 9);
      set(arrow.line, { x1: size / 2, y1: size / 2, x2: size / 2 + short * Math.cos(angle), y2: size / 2 + short * Math.sin(angle) });
      set(arrow.head, { d: "M0 0L-13 5.5L-10 0L-13 -5.5Z", transform: `translate(${tip}) rotate(${angle * 180 / Math.PI})` });
      if (arrow.grip) set(arrow.grip, { cx: tip[0], cy: tip[1] }), arrow.grip.dataset.value = `${a},${b}`;
      labelAt(arrow.text, tip, angle, size, taken);
    }
  }
  host.append(plane, arrows.some(arrow => arrow.control) ? h("p", { class: "soft plane-help" }, lab.t("dragHelp")) : null);
  place();
  return now => { last = now, place(); };
}
const set = (node, attributes) => { for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value); };

// A label beyond the tip, moved down until it covers no other.
function labelAt(text, tip, angle, size, taken) {
  const wide = text.getComputedTextLength?.() || 40, right = Math.cos(angle) >= -0.2;
  let left = right ? tip[0] + 11 : tip[0] - 11 - wide, base = tip[1] + (Math.sin(angle) > 0 ? 15 : -7);
  left = Math.max(3, Math.min(size - wide - 3, left));
  for (let tries = 0; tries < 8 && taken.some(other => left < other.left + other.wide + 4 && other.left < left + wide + 4 && Math.abs(base - other.base) < 15); tries++) base += 16;
  base = Math.max(13, Math.min(size - 5, base));
  taken.push({ left, wide, base });
  set(text, { x: left, y: base });
}
function grid(extent, x, y, size) {
  const every = extent > 6 ? 2 : 1, lines = [];
  for (let n = -Math.floor(extent / every) * every; n <= extent; n += every)
    lines.push(s("path", { d: `M${x(n)} 0V${size}M0 ${y(n)}H${size}`, class: n ? "plane-grid" : "plane-axis" }),
      n ? [s("text", { x: x(n), y: size / 2 + 13, class: "plane-tick" }, String(n).replace("-", "−")), s("text", { x: size / 2 - 5, y: y(n) + 4, class: "plane-tick end" }, String(n).replace("-", "−"))] : []);
  return lines.flat();
}
