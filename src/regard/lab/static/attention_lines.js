// Two columns of tokens: queries on the left, keys on the right (or the other way round), a line for each weight. All lines are faint; those of the token under the pointer, else of the
// selected query, are strong and have their weights. Lines ease to their new place.
import { clamp, fill, formatExact, h, topEntries, s, truncate, textWidth } from "lab/dom.js";
import { saveSvg } from "lab/export.js";
import { button } from "lab/controls.js";

const MOST = 400, MAX_FAINT = 900, FAINT = 0.03;

// `options`: queries, keys (names), row(i) → the weights of query i over the keys, masked(i, j), query, onQuery(i), least (smaller weights are not drawn), notes(i) (words beside a query, noteValue(i) their number),
// queryBoundary, keyBoundary (the first token beyond the training length), queryToken(i), keyToken(j) → "side:index" for the highlight, title, words(query) (a line above the picture), queryWords, keyWords (heads of the columns), keysLeft.
export function attentionLines(lab, options) {
  const { t } = lab, set = { least: 0.005, numbers: 10, masked: () => false, notes: () => "", ...options };
  // the strong lines stay in the page while the rest is built again, so that they ease
  const heads = s("g", {}), faintLinks = s("g", { class: "all-links" }), strongLinks = s("g", { class: "strong-links" }), tokens = s("g", {}), tree = s("svg", { role: "group" }, heads, faintLinks, strongLinks, tokens);
  const picture = h("div", { class: "lines-scroll" }, tree), words = h("p", { class: "soft" });
  const element = h("figure", { class: "lines" },
    h("div", { class: "map-head" }, h("h3", {}, set.title ?? t("linesTitle")),
      h("div", { class: "files" }, button(t("svg"), () => saveSvg(tree, set.name ?? "lines"), { class: "small", title: t("fileTip", t("svg")) }))), picture, words);
  const self = { element, query: set.query ?? 0, choose, update };
  let focus = null, room = 0, parts = null; // focus: {side, n} under the pointer

  function update(changes) { Object.assign(set, changes), build(), choose(self.query, false); }
  function choose(i, tell = true) {
    self.query = clamp(i, 0, Math.max(0, set.queries.length - 1));
    draw();
    if (tell) set.onQuery?.(self.query);
  }
  const weight = (i, j) => set.masked(i, j) ? 0 : set.row(i)[j];
  // Everything that does not depend on the focus: the labels, and all lines faintly.
  function build() {
    const queries = set.queries.slice(0, MOST), keys = set.keys.slice(0, MOST), count = Math.max(queries.length, keys.length), row = count <= 10 ? 34 : count <= 16 ? 30 : count <= 32 ? 25 : 21;
    const flip = Boolean(set.keysLeft), note = Math.ceil(textWidth(queries.map((_, i) => set.notes(i)), 12)), beside = [note ? note + 12 : 0, 46], size = names => Math.min(150, textWidth(names.map(name => truncate(name, 14)), 14) + 14);
    const outer = flip ? beside.toReversed() : beside, left = outer[0] + Math.max(46, size(flip ? keys : queries)), right = Math.max(46, size(flip ? queries : keys)), gap = clamp((picture.clientWidth || 420) - left - right - outer[1], 70, 300), width = left + gap + right + outer[1], y = n => 26 + (n + 0.5) * row;
    const ends = flip ? [left + gap - 6, left + 4] : [left + 4, left + gap - 6], path = (i, j) => `M${ends[0]} ${y(i)}C${left + gap / 2} ${y(i)} ${left + gap / 2} ${y(j)} ${ends[1]} ${y(j)}`;
    const pairs = [];
    queries.forEach((_, i) => { const weights = set.row(i); keys.forEach((_, j) => { if (weights[j] >= FAINT && !set.masked(i, j)) pairs.push([i, j, weights[j]]); }); });
    const faint = pairs.sort((a, b) => b[2] - a[2]).slice(0, MAX_FAINT).map(([i, j, w]) => s("path", { d: path(i, j), class: "link", "stroke-width": Math.max(0.6, 5 * w), "stroke-opacity": Math.min(0.9, 0.12 + w) }));
    while (strongLinks.childElementCount > count) strongLinks.lastChild.remove();
    while (strongLinks.childElementCount < count) strongLinks.append(s("path", { class: "link", d: path(0, 0), "stroke-width": 0, "stroke-opacity": 0 }));
    const numbers = Array.from({ length: count }, (_, n) => s("text", { x: flip ? 0 : left + gap + right, y: y(n) + 5, class: "token number" }));
    const label = (side, name, n) => token(side, name, n, { first: (side === "query") !== flip, left, right, gap, outer, row, y: y(n) });
    const labels = { query: queries.map((name, n) => label("query", name, n)), key: keys.map((name, n) => label("key", name, n)) };
    const boundary = [[flip ? set.keyBoundary : set.queryBoundary, 0, left], [flip ? set.queryBoundary : set.keyBoundary, left + gap, left + gap + right]].map(([n, x1, x2]) => n > 0 && n < MOST && s("line", { x1, x2, y1: y(n) - row / 2, y2: y(n) - row / 2, class: "boundary" }, s("title", {}, t("beyondTraining"))));
    const scrolled = picture.scrollTop, focused = picture.contains(document.activeElement) && document.activeElement.closest(".pick"), height = count * row + 30;
    for (const [name, value] of Object.entries({ viewBox: `0 0 ${width} ${height}`, width, height })) tree.setAttribute(name, value);
    const columnHead = (side, words) => { const first = (side === "query") !== flip; return s("text", { x: first ? left : left + gap, y: 14, class: `axis ${side}`, "text-anchor": first ? "end" : null }, words); };
    fill(heads, columnHead("query", set.queryWords ?? t("query")), columnHead("key", set.keyWords ?? t("key")), s("text", { x: left + gap / 2, y: 14, class: "axis middle" }, flip ? ["← ", t("looksAt")] : [t("looksAt"), " →"]));
    fill(faintLinks, faint), fill(tokens, boundary, labels.query, labels.key, numbers);
    parts = { strong: [...strongLinks.children], numbers, labels, path };
    picture.scrollTop = scrolled;
    if (focused) labels.query[self.query]?.focus({ preventScroll: true });
  }
  function draw() {
    const side = focus?.side ?? "query", n = focus?.n ?? self.query, fromQuery = side === "query", other = Math.min(MOST, (fromQuery ? set.keys : set.queries).length);
    if (!parts || !set.queries.length) return;
    const weights = Float32Array.from({ length: other }, (_, k) => fromQuery ? weight(n, k) : weight(k, n)), best = topEntries(weights, set.numbers, k => weights[k] < set.least), numbered = new Set(best.map(({ index }) => index));
    parts.strong.forEach((line, k) => {
      const w = k < other && weights[k] >= set.least ? weights[k] : 0;
      if (k < other) line.setAttribute("d", fromQuery ? parts.path(n, k) : parts.path(k, n));
      line.setAttribute("stroke-width", w ? Math.max(0.8, 9 * w) : 0), line.setAttribute("stroke-opacity", w ? clamp(Math.sqrt(w), 0.15, 1) : 0);
    });
    tree.classList.toggle("reverse", !fromQuery);
    tree.setAttribute("aria-label", set.words?.(n) ?? t("linesHow", set.queries[self.query]));
    parts.labels.query.forEach((node, i) => {
      const here = i === self.query;
      node.classList.toggle("lit", fromQuery ? i === n : numbered.has(i)), node.setAttribute("aria-pressed", here), node.setAttribute("tabindex", here ? 0 : -1);
    });
    parts.labels.key.forEach((node, j) => { node.classList.toggle("lit", fromQuery ? numbered.has(j) : j === n), node.classList.toggle("off", fromQuery && set.masked(n, j)); });
    // weights stand beside the keys that the lines lead to
    parts.numbers.forEach((node, k) => {
      const shown = fromQuery && numbered.has(k);
      node.setAttribute("visibility", shown ? "visible" : "hidden"), fill(node, shown ? [weights[k].toFixed(3), s("title", { translate: "no" }, formatExact(weights[k]))] : "");
    });
    fill(words, set.words?.(self.query) ?? t("linesHow", set.queries[self.query]));
  }
  function point(side, n) {
    focus = side ? { side, n } : null, draw();
    lab.highlight(side ? (side === "query" ? set.queryToken : set.keyToken)?.(n) ?? null : null);
  }
  function token(side, name, n, { first, left, right, gap, outer, row, y }) {
    const query = side === "query", x = first ? left : left + gap, box = first ? { x: outer[0] - 4, width: left - outer[0] + 8 } : { x: left + gap - 4, width: right + 4 };
    const own = query ? { role: "button", tabindex: -1, "aria-label": name, onclick: () => choose(n), onkeydown: event => step(event, n) } : {};
    return s("g", { class: query ? "token pick" : "token key", translate: "no", ...own, onpointerenter: () => point(side, n), onpointerleave: () => point(null) },
      s("rect", { ...box, y: y - row / 2, height: row }), query && set.notes(n) ? s("text", { x: first ? 2 : left + gap + right + 4, y: y + 4, class: "note-text", "data-value": set.noteValue?.(n) }, set.notes(n)) : null,
      s("text", { x, y: y + 5, "text-anchor": first ? "end" : null }, truncate(name, 14)));
  }
  function step(event, n) {
    const to = { ArrowDown: n + 1, ArrowUp: n - 1, Home: 0, End: set.queries.length - 1 }[event.key];
    if (event.key === "Enter" || event.key === " ") return event.preventDefault(), choose(n);
    if (to === undefined) return;
    event.preventDefault(), choose(to), parts.labels.query[self.query]?.focus();
  }
  lab.onHighlight(lit => {
    parts?.labels.query.forEach((node, n) => node.classList.toggle("hover", lit !== null && set.queryToken?.(n) === lit));
    parts?.labels.key.forEach((node, n) => node.classList.toggle("hover", lit !== null && set.keyToken?.(n) === lit));
  });
  build(), draw();
  const observer = new ResizeObserver(() => { if (picture.clientWidth !== room) room = picture.clientWidth, build(), draw(); });
  observer.observe(picture), lab.signal.addEventListener("abort", () => observer.disconnect());
  return self;
}
