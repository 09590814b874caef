// The grey ball: a bag, a ball in the left hand (the query) and one in the right hand (the key it is compared with).
// A ball of the bag is taken into the left hand by dragging it there, by a click, or by Enter; the ball in the left hand
// is made lighter or darker by dragging it up and down, or by the arrow keys.
import { button } from "lab/controls.js";
import { clamp, h, prefersReducedMotion, s } from "lab/dom.js";
import { roundTo } from "lab/course/labels.js";

const WORDS = {
  left: { en: "left hand: query", zh: "左手：查询" }, right: { en: "right hand: key", zh: "右手：键" }, bag: { en: "bag: keys and values", zh: "袋子：键和值" }, answer: { en: "answer: mix of the bag", zh: "答案：整袋的混合" },
  ball: { en: "ball {n}", zh: "{n} 号球" }, difference: { en: "difference", zh: "相差" }, weight: { en: "weight", zh: "权重" }, mostly: { en: "mostly ball {n}", zh: "主要是 {n} 号球" }, memory: { en: "by memory: ball {n}", zh: "凭记忆：{n} 号球" },
  go: { en: "Compare one by one", zh: "一个一个比" }, next: { en: "Compare the next ball", zh: "比下一个" },
  take: { en: "ball {n}: weight {w}. Enter takes it into the left hand", zh: "{n} 号球：权重 {w}。按回车键拿到左手" }, hold: { en: "ball in the left hand: up and down arrows make it lighter or darker", zh: "左手的球：用上下方向键调亮或调暗" },
  help: { en: "Drag a ball of the bag into the left hand, or click it. Drag the ball in the left hand up or down to make it lighter or darker.", zh: "把袋里的球拖到左手，或点一下它。上下拖动左手的球，可以调亮或调暗。" },
};
const seen = rgb => `rgb(${rgb.map(part => Math.round(255 * clamp(part, 0, 1))).join(" ")})`;
const HAND = "M-52 4C-56 40 -34 62 0 62C34 62 56 40 52 4C51 -6 41 -7 40 2C38 26 24 42 0 42C-24 42 -38 26 -40 2C-41 -7 -51 -6 -52 4Z";

export function draw(host, result, lab, step, change) {
  const say = (name, fields = {}) => Object.entries(fields).reduce((words, [key, value]) => words.replace(`{${key}}`, value), lab.localize(WORDS[name]));
  const narrow = host.clientWidth < 540, [width, height] = narrow ? [400, 664] : [760, 372], left = [82, 104], right = narrow ? [300, 104] : [278, 104], answer = narrow ? [82, 616] : [82, 288], bag = narrow ? [200, 386] : [570, 190];
  const places = result.keys.map((_, n) => [bag[0] + (n % 3 - 1) * 92, bag[1] + (Math.floor(n / 3) - 1) * 84]), control = step.controls.find(one => one.name === "hand");
  const text = (x, y, attributes = {}, words = "") => s("text", { x, y, "text-anchor": "middle", fill: "var(--ink)", "font-size": 14, ...attributes }, words);
  const sphere = (r, attributes) => s("circle", { r, stroke: "var(--soft)", "stroke-width": 1, ...attributes });
  let now = result, compared = result.pick - 1, clock = 0;

  const ballInLeft = sphere(38, { class: "left-ball" }), ballInRight = sphere(38, {}), mix = sphere(38, {});
  const holder = s("g", { transform: `translate(${left})`, role: "slider", tabindex: 0, class: "movable", style: "cursor:ns-resize;touch-action:none", "data-grip": "hand", "aria-label": say("hold"), "aria-valuemin": control.low, "aria-valuemax": control.high }, s("path", { d: HAND, fill: "var(--query)", opacity: 0.35 }), ballInLeft);
  const whiteness = text(left[0], left[1] + 84, { "font-size": 13, fill: "var(--soft)", "data-name": "hand" }), rightName = text(right[0], right[1] + 84, { "font-size": 13, fill: "var(--soft)" });
  const middle = (left[0] + right[0]) / 2, difference = text(middle, left[1] - 2, { "font-size": 20, "font-weight": 650, "data-name": "difference" }), weight = text(middle, left[1] + 46, { "font-size": 20, "font-weight": 650, fill: "var(--accent)", "data-name": "weight" });
  const chosen = text(answer[0] + 54, answer[1] - 2, { "text-anchor": "start", "font-weight": 650, "data-name": "pick" }), memory = text(answer[0] + 54, answer[1] + 20, { "text-anchor": "start", fill: "var(--soft)", "font-size": 13, "data-name": "memory_pick" });

  const balls = places.map((place, n) => {
    const ring = s("circle", { r: 29, fill: "none", stroke: "var(--accent)" }), ball = sphere(24, { stroke: "none" }), mark = s("circle", { r: 26, fill: "none", stroke: "#ffb3ad", "stroke-width": 3, "stroke-dasharray": "6 4" }), share = text(0, 45, { fill: "#ffffff", "font-size": 12, "data-name": "weights", "data-i": n }), label = text(0, 5, { fill: "#30333d", "font-size": 13, "pointer-events": "none" }, String(n + 1));
    const node = s("g", { transform: `translate(${place})`, role: "button", tabindex: n ? -1 : 0, class: "bag-ball", style: "cursor:grab;touch-action:none", "data-ball": n + 1 }, ring, ball, mark, label, share);
    node.addEventListener("pointerenter", () => { if (!clock) compare(n); });
    node.addEventListener("focus", () => { if (!clock) compare(n); });
    return { node, ring, ball, mark, share, place };
  });
  const picture = s("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": lab.localize(step.picture.title), style: `max-width:${width}px` },
    text(left[0], 30, { fill: "var(--query)", "font-weight": 650 }, say("left")), text(right[0], 30, { fill: "var(--key)", "font-weight": 650 }, say("right")), text(bag[0], narrow ? 232 : 34, { fill: "var(--value)", "font-weight": 650 }, say("bag")), text(answer[0] - 38, answer[1] - 56, { fill: "var(--output)", "font-weight": 650, "text-anchor": "start" }, say("answer")),
    holder, s("g", { transform: `translate(${right})` }, s("path", { d: HAND, fill: "var(--key)", opacity: 0.35, transform: "scale(-1 1)" }), ballInRight), whiteness, rightName,
    text(middle, left[1] - 24, { "font-size": 12, fill: "var(--soft)" }, say("difference")), difference, text(middle, left[1] + 24, { "font-size": 12, fill: "var(--soft)" }, say("weight")), weight,
    s("path", { d: sack(bag), fill: "#4d5468", stroke: "var(--line)" }), balls.map(ball => ball.node), s("g", { transform: `translate(${answer})` }, mix), chosen, memory);
  const go = button(say(prefersReducedMotion() ? "next" : "go"), () => prefersReducedMotion() ? compare((compared + 1) % balls.length) : walk());
  host.append(picture, h("p", { class: "row" }, go), h("p", { class: "soft" }, say("help")));

  function compare(n) {
    compared = n;
    const key = now.keys[n], gap = now.differences.at(-1)[n];
    ballInRight.setAttribute("fill", seen(key)), rightName.textContent = say("ball", { n: n + 1 });
    difference.textContent = gap.toFixed(3), difference.dataset.value = gap, weight.textContent = now.weights[n].toFixed(3), weight.dataset.value = now.weights[n];
    balls.forEach(({ mark }, i) => mark.setAttribute("visibility", i === n ? "visible" : "hidden"));
  }
  function walk() {
    clearInterval(clock);
    let n = -1;
    const stop = () => { clearInterval(clock), clock = 0; };
    clock = setInterval(() => { if (++n < balls.length) compare(n); else stop(), compare(now.pick - 1); }, 650);
    lab.signal.addEventListener("abort", stop, { once: true });
  }
  function take(n) { compare(n), change({ hand: roundTo(control, now.paint[n]) }); }
  balls.forEach(({ node, place }, n) => {
    let from = null;
    const at = event => { const edge = picture.getBoundingClientRect(), ratio = width / edge.width; return [(event.clientX - edge.left) * ratio, (event.clientY - edge.top) * ratio]; };
    node.addEventListener("pointerdown", event => { event.preventDefault(), node.setPointerCapture(event.pointerId), node.focus({ preventScroll: true }), from = { at: at(event), moved: false }; });
    node.addEventListener("pointermove", event => {
      if (!from) return;
      const [x, y] = at(event), by = [x - from.at[0], y - from.at[1]];
      from.moved ||= Math.hypot(...by) > 5;
      node.setAttribute("transform", `translate(${place[0] + by[0]} ${place[1] + by[1]})`);
    });
    const drop = taken => event => {
      if (!from) return;
      const [x, y] = at(event), inHand = Math.hypot(x - left[0], y - left[1]) < 80;
      node.setAttribute("transform", `translate(${place})`);
      if (taken && (inHand || !from.moved)) take(n);
      from = null;
    };
    node.addEventListener("pointerup", drop(true)), node.addEventListener("pointercancel", drop(false));
    node.addEventListener("keydown", event => {
      const to = n + ({ ArrowRight: 1, ArrowLeft: -1, ArrowDown: 3, ArrowUp: -3 }[event.key] ?? NaN);
      if (event.key === "Enter" || event.key === " ") event.preventDefault(), event.stopPropagation(), take(n);
      else if (balls[to]) event.preventDefault(), event.stopPropagation(), node.setAttribute("tabindex", -1), balls[to].node.setAttribute("tabindex", 0), balls[to].node.focus();
    });
  });
  const hold = x => change({ hand: roundTo(control, x) });
  let held = null;
  holder.addEventListener("pointerdown", event => { event.preventDefault(), holder.setPointerCapture(event.pointerId), holder.focus({ preventScroll: true }), held = { y: event.clientY, value: step.values.hand }; });
  holder.addEventListener("pointermove", event => { if (held) hold(held.value + (held.y - event.clientY) / 250); });
  for (const end of ["pointerup", "pointercancel"]) holder.addEventListener(end, () => { held = null; });
  holder.addEventListener("keydown", event => {
    const by = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1 }[event.key];
    if (by) event.preventDefault(), event.stopPropagation(), hold(step.values.hand + by * (event.shiftKey ? 10 : 1) * control.step);
  });

  function update(next) {
    now = next;
    ballInLeft.setAttribute("fill", seen(now.query)), holder.setAttribute("aria-valuenow", step.values.hand), whiteness.textContent = step.values.hand.toFixed(3), whiteness.dataset.value = step.values.hand;
    balls.forEach(({ node, ball, ring, share }, n) => {
      const w = now.weights[n];
      ball.setAttribute("fill", seen(now.keys[n])), ring.setAttribute("stroke-width", 1 + 9 * w), ring.setAttribute("opacity", w < 0.005 ? 0 : 0.35 + 0.65 * w);
      share.textContent = w.toFixed(2), share.dataset.value = w, node.setAttribute("aria-label", say("take", { n: n + 1, w: w.toFixed(2) }));
    });
    mix.setAttribute("fill", seen(now.output));
    chosen.textContent = `${say("mostly", { n: now.pick })} (${now.peak.toFixed(2)})`, chosen.dataset.value = now.pick;
    memory.textContent = `${say("memory", { n: now.memory_pick })} (${now.memory_peak.toFixed(2)})`, memory.dataset.value = now.memory_pick;
    compare(compared);
  }
  update(result);
  return update;
}
// A sack around the nine balls: tied above, round below.
function sack([x, y]) {
  const top = y - 136, wide = 168, low = y + 150;
  return `M${x - 70} ${top}C${x - 30} ${top + 14} ${x + 30} ${top + 14} ${x + 70} ${top}C${x + 66} ${top + 16} ${x + 96} ${top + 18} ${x + wide - 14} ${top + 48}C${x + wide + 14} ${y} ${x + wide + 10} ${low - 20} ${x + wide - 40} ${low}C${x + 60} ${low + 14} ${x - 60} ${low + 14} ${x - wide + 40} ${low}C${x - wide - 10} ${low - 20} ${x - wide - 14} ${y} ${x - wide + 14} ${top + 48}C${x - 96} ${top + 18} ${x - 66} ${top + 16} ${x - 70} ${top}Z`;
}
