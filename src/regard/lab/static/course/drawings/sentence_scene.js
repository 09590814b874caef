// The scene of one query on its way through the formula: every position, size and opacity is a function of the time.
import { s } from "lab/dom.js";

const CELL = { wide: 42, tall: 30 }, ROW = 62, FIRST = 92, BAR = 136, MIDDLE = 20.5;
const AT = { word: 6, x: 126, k: 288, product: 440, score: 606, scaled: 672, bar: 712, v: 930, output: 1130 };
const WIDTH = 1264, AHEAD = 0.32; // what is to come is announced by its heading
export const STAGES = ["vectors", "project", "scores", "scale", "softmax", "sum"];
const LENGTHS = n => [2.2, 3.4, 0.8 + 1.25 * n, 1.7, 3.2, 1.6 + 0.75 * n];
// What a narrow screen shows of each stage: the left edge of its window.
const WINDOWS = [112, 112, 280, 560, 572, 920];

export function makeTimeline(count) {
  let at = 0;
  const stages = LENGTHS(count).map((seconds, n) => ({ name: STAGES[n], from: at, to: at += seconds }));
  return { stages, total: at + 0.8 };
}
const ease = t => t <= 0 ? 0 : t >= 1 ? 1 : t * t * (3 - 2 * t);
const mix = (a, b, t) => a + (b - a) * t;
const digits = x => Number(x.toFixed(Math.abs(x) < 10 ? 2 : 1)).toString().replace("-", "−");

// Attributes are written only where they change, so that a frame costs little.
function put(node, name, value) {
  node.kept ??= {};
  if (node.kept[name] !== value) node.kept[name] = value, node.setAttribute(name, value);
}
const fade = (node, opacity) => { put(node, "opacity", opacity.toFixed(3)), put(node, "visibility", opacity > 0.004 ? "visible" : "hidden"); };
const move = (node, x, y, size = 1) => put(node, "transform", `translate(${x.toFixed(2)} ${y.toFixed(2)})${size === 1 ? "" : ` scale(${size.toFixed(3)})`}`);

// A vector as a row of cells whose shade is the size of the number.
function makeVector(values, role, most, name, row) {
  const cells = values.map((x, c) => {
    const node = s("g", { class: "scene-cell" }, s("rect", { width: CELL.wide - 2, height: CELL.tall, rx: 5, style: `fill:var(--${role});fill-opacity:${(0.1 + 0.55 * Math.min(1, Math.abs(x) / most)).toFixed(2)}` }),
      s("text", { x: CELL.wide / 2 - 1, y: MIDDLE, translate: "no", "data-name": name ?? null, "data-i": name ? row ?? c : null, "data-j": name && row !== undefined ? c : null, "data-value": name ? x : null }, digits(x)));
    node.setAttribute("transform", `translate(${c * CELL.wide} 0)`);
    return node;
  });
  return { node: s("g", { class: `scene-vector scene-${role}` }, cells), cells };
}
const number = (className, x, y, attributes = {}, words = "") => s("text", { class: className, x, y, translate: "no", ...attributes }, words);

export function makeScene(result, { width, label, onWord, still = null }) {
  const { words, x, k, v, q, products, scores, scaled, exponentials, weights, parts, output, row: query } = result, n = words.length, d = q.length;
  const { stages, total } = makeTimeline(n), narrow = width < 820, WORDS = narrow ? 86 : 110, wide = narrow ? 440 : WIDTH, tall = FIRST + n * ROW - 14;
  const most = Math.max(1, ...[x, k, v, [q]].flat(2).map(Math.abs)), y = j => FIRST + j * ROW, vector = (values, role, name, row) => makeVector(values, role, most, name, row);
  const svg = s("svg", { viewBox: `0 0 ${wide} ${tall}`, class: "scene", role: "group", "aria-label": label, style: `max-width:${narrow ? 560 : 1340}px` });
  const world = s("g", {}), clip = `clip${Math.random().toString(16).slice(2)}`;
  svg.append(s("clipPath", { id: clip }, s("rect", { x: WORDS, y: 0, width: wide - WORDS, height: tall })), s("g", { "clip-path": `url(#${clip})` }, world));

  const heads = [[AT.x, "x", "ink"], [AT.k, "k = x W", "key", "k"], [AT.product, "q · k", "ink"], [AT.scaled - 20, `÷ √${d}`, "ink"], [AT.bar, "softmax", "ink"], [AT.v, "v = x W", "value", "v"], [AT.output, "Σ w · v", "output"]]
    .map(([at, words, role, sub]) => s("text", { x: at, y: 66, class: "scene-head", translate: "no", style: `fill:var(--${role})` }, words, sub ? s("tspan", { dy: 4, "font-size": 11 }, sub) : null));
  const grounds = words.map((_, j) => s("rect", { x: 0, y: y(j) - 10, width: WIDTH, height: ROW - 11, rx: 10, class: "scene-row" }));
  const chips = words.map((word, j) => s("g", { class: `scene-word ${j === query ? "chosen" : ""}`, transform: `translate(${AT.word} ${y(j)})`, role: onWord ? "button" : null, tabindex: onWord ? 0 : null, "aria-label": word, translate: "no", "aria-pressed": onWord ? j === query : null,
    onclick: onWord ? () => onWord(j) : null, onkeydown: onWord ? event => { if (event.key === "Enter" || event.key === " ") event.preventDefault(), onWord(j); } : null },
    s("rect", { width: WORDS - 18, height: CELL.tall, rx: 12 }), s("text", { x: (WORDS - 18) / 2, y: MIDDLE, translate: "no" }, [...word].length > 9 ? `${[...word].slice(0, 8).join("")}…` : word)));
  const xs = x.map((row, j) => vector(row, "soft", "x", j)), ks = k.map((row, j) => vector(row, "key", "k", j)), vs = v.map((row, j) => vector(row, "value", "v", j)), qHome = vector(q, "query", "q"), qMoving = vector(q, "query");
  const qName = s("text", { x: AT.k - 12, y: 31, class: "scene-name", translate: "no", "text-anchor": "end", style: "fill:var(--query)" }, "q = x W", s("tspan", { dy: 4, "font-size": 11 }, "q"));
  const terms = products.map(row => row.map((value, c) => { const one = makeVector([value], "output", Math.max(1, ...products.flat().map(Math.abs)), null); return { node: one.node, c }; }));
  const sums = scores.map((value, j) => number("scene-score", AT.score, y(j) + MIDDLE, { "data-name": "scores", "data-i": j, "data-value": value }, digits(value)));
  const small = scaled.map((value, j) => number("scene-score", AT.scaled, y(j) + MIDDLE, { "data-name": "scaled", "data-i": j, "data-value": value }, digits(value)));
  const bars = weights.map((_, j) => s("rect", { x: AT.bar, y: y(j) + 1, height: CELL.tall - 2, rx: 5, class: "scene-bar" })), powers = exponentials.map((value, j) => number("scene-power", 0, y(j) + MIDDLE, {}, digits(value)));
  const shares = weights.map((value, j) => number("scene-weight", 0, y(j) + MIDDLE, { "data-name": "weights", "data-i": j, "data-value": value }, value.toFixed(3)));
  const flows = weights.map(() => s("path", { class: "scene-flow" })), streams = weights.map(() => s("path", { class: "scene-flow output", pathLength: 1, "stroke-dasharray": "1 1" })), copies = parts.map(row => makeVector(row, "output", most)), centre = FIRST + (n - 1) * ROW / 2;
  const running = parts.reduce((list, row) => [...list, row.map((value, c) => value + (list.at(-1)?.[c] ?? 0))], []), total_ = vector(output, "output", "output"), resultWord = s("text", { x: AT.output + d * CELL.wide / 2, y: centre + CELL.tall + 24, class: "scene-result", translate: "no" }, words[query]);
  const topExp = Math.max(...exponentials);
  world.append(...heads, ...xs.map(one => one.node), ...flows, ...streams, ...ks.map(one => one.node), ...vs.map(one => one.node), qName, qHome.node, ...terms.flat().map(one => one.node), ...sums, ...small, ...bars, ...powers, ...shares, ...copies.map(one => one.node), resultWord, total_.node, qMoving.node);
  svg.prepend(...grounds), svg.append(...chips);

  const within = (n, a, b, time) => ease((time - mix(stages[n].from, stages[n].to, a)) / Math.max(1e-6, mix(stages[n].from, stages[n].to, b) - mix(stages[n].from, stages[n].to, a)));
  function render(time) {
    const on = n => (a, b) => within(n, a, b, time), [vectors, project, score, scale, soft, sum] = STAGES.map((_, n) => on(n));
    moveCamera(time);
    chips.forEach((chip, j) => fade(chip, vectors(j / n * 0.4, j / n * 0.4 + 0.2)));
    grounds.forEach((ground, j) => put(ground, "class", j === query && time > stages[1].from ? "scene-row chosen" : "scene-row"));
    xs.forEach(({ node }, j) => { const t = vectors(0.4 + j / n * 0.35, 0.65 + j / n * 0.35); fade(node, t * (time > stages[1].to ? 0.55 : 1)), move(node, mix(AT.word + 30, AT.x, t), y(j)); });
    showProjection(project), showScores(score, scale(0.2, 0.8)), showScaled(scale), showSoftmax(soft), showSum(sum);
    [vectors(0.4, 0.6), project(0.35, 0.5), score(0, 0.1), scale(0, 0.3), soft(0, 0.15), project(0.65, 0.8)].forEach((t, n) => fade(heads[n], mix(AHEAD, 1, t)));
  }
  function moveCamera(time) {
    if (!narrow) return;
    const to = stages.findIndex(stage => time < stage.to), now = to < 0 ? stages.length - 1 : to;
    const t = still === null ? ease((time - stages[now].from) / 0.7) : 1, left = mix(WINDOWS[Math.max(0, now - 1)], WINDOWS[now], now ? t : 1);
    move(world, WORDS - left, 0);
  }
  function showProjection(project) {
    const q = project(0.02, 0.3);
    fade(qHome.node, q), move(qHome.node, mix(AT.x, AT.k, q), mix(y(query), 10, q)), fade(qName, project(0.2, 0.35));
    ks.forEach(({ node }, j) => { const t = project(0.34 + j / n * 0.12, 0.52 + j / n * 0.12); fade(node, t), move(node, mix(AT.x, AT.k, t), y(j)); });
    vs.forEach(({ node }, j) => { const t = project(0.66 + j / n * 0.12, 0.86 + j / n * 0.12); fade(node, t), move(node, mix(AT.x, AT.v, t), y(j)); });
  }
  function showScores(score, scaling) {
    const span = 1 / n;
    let moving = 0, at = { x: AT.k, y: 10 };
    terms.forEach((row, j) => {
      const a = j * span, slide = score(a, a + span * 0.25), merge = score(a + span * 0.72, a + span * 0.95);
      if (slide > 0) at = { x: AT.k, y: mix(j ? y(j - 1) - 24 : 10, y(j) - 24, slide) }, moving = 1;
      row.forEach(({ node, c }) => {
        const pop = score(a + span * (0.26 + 0.12 * c), a + span * (0.4 + 0.12 * c)), rest = AT.product + c * CELL.wide;
        fade(node, pop * mix(1, 0.6, merge)), move(node, mix(AT.k + c * CELL.wide, rest, pop), y(j), mix(0.6, 1, pop));
      });
      fade(sums[j], merge * mix(1, 0.5, scaling)), put(sums[j], "x", mix(AT.product + 60, AT.score, merge).toFixed(1));
    });
    const gone = score(0.97, 1);
    fade(qMoving.node, moving * (1 - gone)), move(qMoving.node, at.x, at.y);
  }
  function showScaled(scale) {
    small.forEach((node, j) => { const t = scale(0.15 + j / n * 0.3, 0.55 + j / n * 0.3); fade(node, t), put(node, "x", mix(AT.score, AT.scaled, t).toFixed(1)); });
  }
  function showSoftmax(soft) {
    weights.forEach((weight, j) => {
      const grow = soft(0.05 + j / n * 0.2, 0.3 + j / n * 0.2), norm = soft(0.62, 0.86), long = BAR * mix(exponentials[j] / topExp * grow, weight, norm);
      put(bars[j], "width", Math.max(0.01, long).toFixed(2)), fade(bars[j], grow > 0 ? 1 : 0);
      put(powers[j], "x", (AT.bar + long + 7).toFixed(1)), fade(powers[j], grow * (1 - soft(0.6, 0.7)));
      put(shares[j], "x", (AT.bar + long + 7).toFixed(1)), fade(shares[j], soft(0.68, 0.86));
    });
  }
  function showSum(sum) {
    const draw = sum(0, 0.2), span = 0.7 / n, end = AT.v + d * CELL.wide, fall = j => sum(0.2 + j * span, 0.2 + (j + 0.95) * span);
    weights.forEach((weight, j) => {
      const from = AT.bar + BAR * weight + 50, level = y(j) + CELL.tall / 2, t = fall(j), bend = [end + 2, level, end + 45, level, AT.output - 48, centre + CELL.tall / 2, AT.output - 4, centre + CELL.tall / 2];
      put(flows[j], "d", `M${from.toFixed(1)} ${level}H${mix(from, AT.v - 4, draw).toFixed(1)}`), put(flows[j], "stroke-width", (1 + 17 * weight).toFixed(2)), fade(flows[j], draw);
      put(streams[j], "d", `M${bend[0]} ${bend[1]}C${bend.slice(2).join(" ")}`), put(streams[j], "stroke-width", (1 + 17 * weight).toFixed(2)), put(streams[j], "stroke-dashoffset", (1 - t).toFixed(3)), fade(streams[j], t > 0 ? 1 : 0);
      if (draw > 0) fade(vs[j].node, mix(1, 0.3 + 0.7 * weight / Math.max(...weights), draw));
      fade(copies[j].node, t > 0 && t < 1 ? Math.min(1, 4 * t, 4 * (1 - t)) : 0), move(copies[j].node, mix(AT.v, AT.output, t), mix(y(j), centre, t));
    });
    const arrived = weights.findIndex((_, j) => fall(j) < 1), count = arrived < 0 ? n : arrived, shown = count ? running[count - 1] : null;
    fade(total_.node, shown ? 1 : 0), move(total_.node, AT.output, centre), fade(resultWord, sum(0.92, 1)), fade(heads[6], mix(AHEAD, 1, sum(0.1, 0.25)));
    if (shown && total_.count !== count) total_.count = count, total_.cells.forEach((cell, c) => { cell.lastChild.textContent = digits(shown[c]); });
  }
  render(still ?? 0);
  return { svg, show: render, stages, total };
}
