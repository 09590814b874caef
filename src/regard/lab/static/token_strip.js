// A text whose tokens are buttons, coloured by value. Tokens with the mark of unknown ones say so.
import { cssColour, textColourOn, shader } from "lab/colour.js";
import { formatExact, fill, untranslated, h, UNKNOWN_MARK } from "lab/dom.js";

// `options`: names, values (one per token) or null, masked(n), selected, onPick(n), kind, domain, scale, label, digits (whether or how numbers are shown), special(n),
// columns (arranges the tokens in a grid without names; the first `first` tokens are above it), boundary (the first token beyond the training length).
export function tokenStrip(lab, options) {
  const set = { kind: "weights", domain: [0, 1], scale: "root", masked: () => false, special: () => false, digits: true, boundary: null, ...options };
  const element = h("div", { class: set.columns ? "strip grid" : "strip", role: "group", "aria-label": set.label, style: set.columns ? { "grid-template-columns": `repeat(${set.columns}, minmax(14px, 46px))` } : {} });
  function update(changes) {
    Object.assign(set, changes);
    const focused = [...element.children].indexOf(document.activeElement), shade = shader(set.kind, set.domain, set.scale);
    fill(element, set.names.map((name, n) => {
      const value = set.values?.[n], off = set.masked(n), coloured = set.values && !off;
      const ground = coloured ? shade(value) : null, unknown = name.startsWith(UNKNOWN_MARK), beyond = set.boundary !== null && n >= set.boundary;
      const facts = [coloured ? formatExact(value) : off ? lab.t("masked") : null, unknown ? lab.t("unknownToken") : null, beyond ? lab.t("beyondTraining") : null].filter(Boolean).join(" · ");
      return h("button",
        { type: "button", class: `token ${off ? "hatched" : ""} ${set.special(n) ? "special" : ""} ${n < (set.first ?? 0) ? "above" : ""} ${unknown ? "unknown" : ""} ${beyond ? "beyond" : ""} ${n === set.boundary ? "boundary" : ""}`, "aria-pressed": n === set.selected,
          "data-value": coloured ? value : null,
        title: set.columns ? `${name}: ${coloured ? formatExact(value) : "–"}` : facts || null, "aria-label": set.columns ? `${name} ${coloured ? formatExact(value) : "–"}` : null, style: ground ? { background: cssColour(ground), color: textColourOn(ground) } : {},
          onclick: () => set.onPick?.(n), onkeydown: step },
        set.columns && n >= (set.first ?? 0) ? null : untranslated(name), set.digits && set.values ? h("span", { class: "digits" }, off ? "–" : digits(value)) : null);
    }));
    if (focused >= 0) element.children[focused]?.focus();
  }
  function digits(value) { return typeof set.digits === "function" ? set.digits(value) : set.kind === "weights" ? (value >= 0.9995 ? "1" : value.toFixed(3).replace(/^0/,
    "")) : Number(value.toPrecision(3)).toString().replace("-",
    "−"); }
  function step(event) {
    const all = [...element.children], here = all.indexOf(event.target), below = set.columns ?? 1;
    const to = { ArrowRight: all[here + 1], ArrowLeft: all[here - 1], Home: all[0], End: all.at(-1),
      ...(set.columns ? { ArrowDown: all[here + below], ArrowUp: all[here - below] } : {}) }[event.key];
    if (to) event.preventDefault(), to.focus();
  }
  update({});
  return { element, update };
}
