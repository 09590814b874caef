// A text whose tokens are buttons, coloured by value. Tokens with the mark of unknown ones say so. Dragging over tokens, or Shift with the arrow keys, selects a range.
import { cssColour, textColourOn, shader } from "lab/colour.js";
import { formatExact, fill, untranslated, h, UNKNOWN_MARK } from "lab/dom.js";

// `options`: names, values (one per token) or null, masked(n), selected, onPick(n), kind, domain, scale, label, digits (whether or how numbers are shown), special(n),
// columns (arranges the tokens in a grid without names; the first `first` tokens are above it), boundary (the first token beyond the training length),
// onRange([first, last]) (a range was brushed), range ([first, last] or null: the others are faded), token(n) → "side:index" for the highlight.
export function tokenStrip(lab, options) {
  const set = { kind: "weights", domain: [0, 1], scale: "root", masked: () => false, special: () => false, digits: true, boundary: null, range: null, ...options };
  const element = h("div", { class: set.columns ? "strip grid" : "strip", role: "group", "aria-label": set.label, style: set.columns ? { "grid-template-columns": `repeat(${set.columns}, minmax(14px, 46px))` } : {} });
  let from = null, dragged = false;
  function update(changes) {
    Object.assign(set, changes);
    const shade = shader(set.kind, set.domain, set.scale), nodes = [...element.children];
    if (nodes.length !== set.names.length) { const focused = nodes.indexOf(document.activeElement); fill(element, set.names.map((_, n) => make(n))); if (focused >= 0) element.children[focused]?.focus(); }
    set.names.forEach((name, n) => paint(element.children[n], name, n, shade));
  }
  const make = n => h("button", { type: "button", onclick: () => { if (!dragged) set.onPick?.(n); }, onkeydown: step, onpointerenter: () => lab.highlight(set.token?.(n) ?? null), onpointerleave: () => lab.highlight(null) });
  function paint(node, name, n, shade) {
    const value = set.values?.[n], off = set.masked(n), coloured = set.values && !off, ground = coloured ? shade(value) : null, unknown = name.startsWith(UNKNOWN_MARK), beyond = set.boundary !== null && n >= set.boundary, outside = set.range !== null && (n < set.range[0] || n > set.range[1]);
    const facts = [coloured ? formatExact(value) : off ? lab.t("masked") : null, unknown ? lab.t("unknownToken") : null, beyond ? lab.t("beyondTraining") : null].filter(Boolean).join(" · "), title = set.columns ? `${name}: ${coloured ? formatExact(value) : "–"}` : facts;
    node.className = ["token", off && "hatched", set.special(n) && "special", n < (set.first ?? 0) && "above", unknown && "unknown", beyond && "beyond", n === set.boundary && "boundary", outside && "outside"].filter(Boolean).join(" ");
    node.setAttribute("aria-pressed", n === set.selected);
    for (const [key, held] of [["data-value", coloured ? value : null], ["title", title || null], ["aria-label", set.columns ? `${name} ${coloured ? formatExact(value) : "–"}` : null]]) held === null ? node.removeAttribute(key) : node.setAttribute(key, held);
    node.style.background = ground ? cssColour(ground) : "", node.style.color = ground ? textColourOn(ground) : "";
    fill(node, set.columns && n >= (set.first ?? 0) ? null : untranslated(name), set.digits && set.values ? h("span", { class: "digits" }, off ? "–" : digits(value)) : null);
  }
  function digits(value) { return typeof set.digits === "function" ? set.digits(value) : set.kind === "weights" ? (value >= 0.9995 ? "1" : value.toFixed(3).replace(/^0/,
    "")) : Number(value.toPrecision(3)).toString().replace("-",
    "−"); }
  function step(event) {
    const all = [...element.children], here = all.indexOf(event.currentTarget), below = set.columns ?? 1;
    const to = { ArrowRight: all[here + 1], ArrowLeft: all[here - 1], Home: all[0], End: all.at(-1),
      ...(set.columns ? { ArrowDown: all[here + below], ArrowUp: all[here - below] } : {}) }[event.key];
    if (event.key === "Escape" && set.range) return event.preventDefault(), from = null, set.onRange?.(null);
    if (!to) return;
    event.preventDefault(), to.focus();
    if (!set.onRange || !event.shiftKey) return void (from = null);
    from ??= here;
    brush(all.indexOf(to));
  }
  const brush = to => set.onRange([Math.min(from, to), Math.max(from, to)]);
  // A range that is drawn with the pointer; a touch scrolls instead.
  if (options.onRange) {
    const under = event => [...element.children].indexOf(document.elementFromPoint(event.clientX, event.clientY)?.closest(".token"));
    element.addEventListener("pointerdown", event => { dragged = false, from = event.pointerType === "touch" || event.button ? null : under(event); if (from < 0) from = null; });
    element.addEventListener("pointermove", event => {
      if (from === null || !(event.buttons & 1)) return;
      const to = under(event);
      if (to < 0 || (to === from && !dragged)) return;
      dragged = true, event.preventDefault(), set.range = [Math.min(from, to), Math.max(from, to)], update({});
    });
    addEventListener("pointerup", () => { if (dragged && from !== null && set.range) set.onRange(set.range); from = null; setTimeout(() => { dragged = false; }); }, { signal: lab.signal });
  }
  lab.onHighlight(lit => [...element.children].forEach((node, n) => node.classList.toggle("hover", lit !== null && set.token?.(n) === lit)));
  update({});
  return { element, update };
}
