// A picture of 8 × 8 pixels in 4 × 4 patches: the chosen patch and, as lines, the weights it gives to the others.
//
// Reads pixels (±1) and weights (one for each patch) of the result; a click on a patch changes the control `patch`.
import { h, fill, s } from "lab/dom.js";
import { weightColour } from "lab/colour.js";

const TEXT = {
  patch: { en: "patch", zh: "图块" }, weight: { en: "weight", zh: "权重" },
  hint: { en: "Click a patch: lines and colours show its weights.", zh: "点一个图块：线条和颜色表示它的权重。" },
};
const SIZE = 40, EDGE = 8 * SIZE;
const centre = n => [(n % 4) * 2 * SIZE + SIZE, Math.floor(n / 4) * 2 * SIZE + SIZE];

export function draw(host, result, lab, step, change) {
  const t = key => lab.localize(TEXT[key]);
  const show = now => {
    const chosen = step.values.patch - 1, [x, y] = centre(chosen), focused = document.activeElement?.dataset?.patch;
    const go = n => change({ patch: n + 1 });
    const pixel = (value, i, j) => s("rect", { x: j * SIZE + 1, y: i * SIZE + 1, width: SIZE - 2, height: SIZE - 2, rx: 3, style: { fill: value > 0 ? "var(--ink)" : "var(--wash)" } });
    const patch = (weight, n) => {
      const [cx, cy] = centre(n), label = `${t("patch")} ${n + 1}, ${t("weight")} ${weight.toFixed(3)}`;
      return s("g", { role: "button", tabindex: n === chosen ? 0 : -1, "aria-label": label, "aria-pressed": n === chosen, "data-patch": n, "data-name": "weights", "data-i": n, "data-value": weight, style: { cursor: "pointer" }, onclick: () => go(n), onkeydown: event => key(event, n) },
        s("title", {}, label),
        s("rect", { x: cx - SIZE + 2, y: cy - SIZE + 2, width: 2 * SIZE - 4, height: 2 * SIZE - 4, rx: 8, style: { fill: weight > 0.02 && n !== chosen ? weightColour(weight) : "transparent", "fill-opacity": 0.45, stroke: n === chosen ? "var(--accent)" : "var(--faint)", "stroke-width": n === chosen ? 5 : 1.5 } }),
        weight >= 0.02 ? s("g", { style: { "pointer-events": "none" } }, s("rect", { x: cx - 19, y: cy - 11, width: 38, height: 22, rx: 6, style: { fill: "var(--paper)", stroke: "var(--line)" } }),
          s("text", { translate: "no", x: cx, y: cy + 5, style: { "text-anchor": "middle", "font-size": "13px", "font-weight": 650, fill: "var(--ink)" } }, weight.toFixed(2))) : null);
    };
    const key = (event, n) => {
      const to = { ArrowRight: n + 1, ArrowLeft: n - 1, ArrowDown: n + 4, ArrowUp: n - 4 }[event.key];
      if (to === undefined || to < 0 || to > 15) return;
      event.preventDefault(), go(to), host.querySelector(`[data-patch="${to}"]`)?.focus({ preventScroll: true });
    };
    const line = (weight, n) => n === chosen || weight < 0.02 ? null : s("line", { x1: x, y1: y, x2: centre(n)[0], y2: centre(n)[1], style: { stroke: "var(--accent)", "stroke-width": 2 + 14 * weight, "stroke-opacity": 0.75, "stroke-linecap": "round", "pointer-events": "none" } });
    fill(host, s("svg", { viewBox: `-3 -3 ${EDGE + 6} ${EDGE + 6}`, role: "group", "aria-label": lab.localize(step.picture.title), style: { display: "block", width: "100%", "max-width": "420px", "margin-inline": "auto" } },
      now.pixels.map((row, i) => row.map((value, j) => pixel(value, i, j))), now.weights.map(line), now.weights.map(patch)), h("p", { class: "soft", style: { "text-align": "center", margin: "6px 0 0" } }, t("hint")));
    if (focused !== undefined) host.querySelector(`[data-patch="${chosen}"]`)?.focus({ preventScroll: true });
  };
  show(result);
  return show;
}
