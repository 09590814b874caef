// Two columns of tokens, with lines from the selected query to its keys. Each line has its weight.
import { clamp, fill, h, topEntries, s, truncate, textWidth } from "lab/dom.js";
import { saveSvg } from "lab/export.js";
import { button } from "lab/controls.js";

const ROW = 24, MOST = 400;

// `options`: queries, keys (names), row(i) → the weights of query i over the keys, masked(i, j), query, onQuery(i), least (smaller weights are not drawn),
// queryBoundary, keyBoundary (the first token beyond the training length).
export function attentionLines(lab, options) {
  const { t } = lab, set = { least: 0.005, numbers: 10, masked: () => false, ...options };
  const picture = h("div", { class: "lines-scroll" }), words = h("p", { class: "soft" }), title = h("h3", {}, set.title ?? t("linesTitle"));
  const svg = () => picture.querySelector("svg");
  const element = h("figure", { class: "lines" },
    h("div", { class: "map-head" }, title,
      h("div", { class: "files" }, button(t("svg"), () => saveSvg(svg(), set.name ?? "lines"), { class: "small", title: t("fileTip", t("svg")) }))),
    words, picture);
  const self = { element, query: set.query ?? 0, choose, update };

  function update(changes) { Object.assign(set, changes); choose(self.query, false); }
  function choose(i, tell = true) {
    self.query = Math.max(0, Math.min(i, set.queries.length - 1));
    draw();
    if (tell) set.onQuery?.(self.query);
  }
  function draw() {
    const { queries, keys } = set, count = Math.min(MOST, Math.max(queries.length, keys.length)), i = self.query;
    const left = Math.min(150, Math.max(46, textWidth(queries.slice(0, MOST).map(name => truncate(name, 14)), 14) + 12)),
      right = Math.min(150, textWidth(keys.slice(0, MOST).map(name => truncate(name, 14)), 14) + 12);
    const GAP = clamp((picture.clientWidth || 480) - left - right - 66, 70, 190), weights = set.row(i),
      best = topEntries(weights, set.numbers, j => set.masked(i, j) || weights[j] < set.least), numbered = new Set(best.map(({ index }) => index));
    const height = count * ROW + 30, width = left + GAP + right + 62, y = n => 26 + (n + 0.5) * ROW;
    const drawn = keys.slice(0, MOST).map((_, j) => j).filter(j => !set.masked(i, j) && weights[j] >= set.least).sort((a, b) => weights[a] - weights[b]);
    const path = j => s("path",
      { d: `M${left + 6} ${y(i)}C${left + GAP / 2} ${y(i)} ${left + GAP / 2} ${y(j)} ${left + GAP - 6} ${y(j)}`, class: "link",
        "stroke-width": Math.max(0.6, 9 * weights[j]), "stroke-opacity": Math.max(0.12, Math.min(1, Math.sqrt(weights[j]))) });
    const focus = self.element.contains(document.activeElement) && document.activeElement.closest(".token");
    const scrolled = picture.scrollTop;
    fill(picture, s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": t("linesHow", queries[i]) },
      s("text", { x: left, y: 14, class: "axis query", "text-anchor": "end" }, t("query")), s("text", { x: left + GAP, y: 14, class: "axis key" }, t("key")),
      drawn.map(path),
      [[set.queryBoundary, 0, left], [set.keyBoundary, left + GAP, left + GAP + right]].map(([n, x1, x2]) => n > 0 && n < MOST && s("line", { x1, x2, y1: y(n) - ROW / 2, y2: y(n) - ROW / 2, class: "boundary" }, s("title", {}, t("beyondTraining")))),
      queries.slice(0, MOST).map((name, n) => token(name, n, left, y(n), n === i)),
      keys.slice(0,
        MOST).map((name, j) => s("text", { x: left + GAP, y: y(j) + 5, class: `token key ${numbered.has(j) ? "lit" : set.masked(i, j) ? "off" : ""}`, translate: "no" },
          truncate(name, 14))),
      best.map(({ index, value }) => index < MOST && s("text", { x: left + GAP + right, y: y(index) + 5, class: "token number" }, value.toFixed(3)))));
    fill(words, t("linesHow", queries[i]));
    if (focus) picture.querySelector('[tabindex="0"]')?.focus({ preventScroll: true });
    picture.scrollTop = scrolled;
  }
  function token(name, n, x, y, here) {
    return s("g",
      { class: `token pick ${here ? "lit" : ""}`, role: "button", tabindex: here ? 0 : -1, "aria-pressed": here, "aria-label": name, translate: "no",
        onclick: () => choose(n), onkeydown: event => {
      const to = { ArrowDown: n + 1, ArrowUp: n - 1, Home: 0, End: set.queries.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault(), choose(to), picture.querySelector('[tabindex="0"]')?.focus();
    } }, s("rect", { x: 0, y: y - ROW / 2, width: x + 4, height: ROW }), s("text", { x, y: y + 5, "text-anchor": "end", class: "query" }, truncate(name, 14)));
  }
  draw();
  let room = 0;
  const observer = new ResizeObserver(() => { if (picture.clientWidth !== room) room = picture.clientWidth, draw(); });
  observer.observe(picture), lab.signal.addEventListener("abort", () => observer.disconnect());
  return self;
}
