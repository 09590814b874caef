// Convolution, recurrence and attention as graphs: inputs below, outputs above, the number of steps from each input.
//
// Reads tokens, layers, kernel, output, hops, influence, reached, farthest and sequential of the result (rows: convolution,
// recurrence, attention). A click on an output changes the control `output`; a click on an input shows its path.
import { h, fill, s } from "lab/dom.js";

const TEXT = {
  names: [{ en: "Convolution", zh: "卷积" }, { en: "Recurrent network", zh: "RNN" }, { en: "Attention", zh: "注意力" }],
  facts: {
    en: (reached, tokens, steps, sequential) => `reaches ${reached} of ${tokens} inputs · farthest: ${steps} ${steps === 1 ? "step" : "steps"} · one after another: ${sequential}`,
    zh: (reached, tokens, steps, sequential) => `到达 ${tokens} 个输入中的 ${reached} 个 · 最远 ${steps} 步 · 先后进行 ${sequential} 步`,
  },
  output: { en: "output", zh: "输出" }, input: { en: "input", zh: "输入" }, steps: { en: "steps", zh: "步" }, never: { en: "does not reach it", zh: "到不了" }, share: { en: "share", zh: "占比" },
  legend: { en: "In an input: its steps to the output; × does not reach it. Bar: its share of the output when every node averages what enters it.", zh: "输入里的数：到输出的步数；× 表示到不了。下方的条：每个节点都求平均时，它在输出里所占的份额。" },
};
const SIDE = 16, TOP = 26, BAR = 24;

export function draw(host, result, lab, step, change) {
  let from = 0, latest = result;
  const show = now => {
    latest = now, from = Math.min(from, now.tokens - 1);
    const focus = host.contains(document.activeElement) ? document.activeElement.dataset : null;
    const width = Math.max(320, Math.min(760, host.clientWidth || 640));
    fill(host, [0, 1, 2].map(network => panel(network, now, from, lab, pick, width)), h("p", { class: "soft", style: { margin: "4px 0 0" } }, lab.localize(TEXT.legend)));
    if (focus?.pick) host.querySelector(`[data-pick="${focus.pick}"][data-network="${focus.network}"][data-j="${focus.j}"]`)?.focus({ preventScroll: true });
  };
  const pick = (end, token) => end === "output" ? change({ output: token + 1 }) : (from = token, show(latest));
  show(result);
  return show;
}

// Edges as [layer, token, layer, token]; those of recurrence run along a layer and up.
function edges(network, { tokens, layers, kernel }) {
  const all = [], half = Math.floor(kernel / 2);
  for (let layer = 1; layer <= layers; layer++) for (let to = 0; to < tokens; to++) {
    if (network === 1) {
      all.push([layer - 1, to, layer, to]);
      if (to) all.push([layer, to - 1, layer, to]);
    } else for (let at = 0; at < tokens; at++) if (network === 2 || Math.abs(at - to) <= half) all.push([layer - 1, at, layer, to]);
  }
  return all;
}
// The nodes from which the output can be reached, as "layer,token".
function sources(network, now, all) {
  const seen = new Set([`${now.layers},${now.output}`]), open = [[now.layers, now.output]];
  while (open.length) {
    const [layer, token] = open.pop();
    for (const [fromLayer, fromToken, toLayer, toToken] of all) if (toLayer === layer && toToken === token && !seen.has(`${fromLayer},${fromToken}`)) seen.add(`${fromLayer},${fromToken}`), open.push([fromLayer, fromToken]);
  }
  return seen;
}
// A shortest path from an input to the output as a list of nodes; empty if there is none.
function path(network, now, from) {
  if (!Number.isFinite(now.hops[network][from])) return [];
  const { layers, output, kernel } = now, nodes = [[0, from]], half = Math.floor(kernel / 2);
  let at = from;
  if (network === 1) {
    nodes.push([1, at]);
    while (at < output) nodes.push([1, ++at]);
    for (let layer = 2; layer <= layers; layer++) nodes.push([layer, at]);
    return nodes;
  }
  for (let layer = 1; layer <= layers; layer++) {
    at = network === 2 ? output : at + Math.max(-half, Math.min(half, output - at));
    nodes.push([layer, at]);
  }
  return nodes;
}

function panel(network, now, from, lab, pick, width) {
  const { tokens, layers, output } = now, hops = now.hops[network], shares = now.influence[network], t = key => lab.localize(TEXT[key]);
  const gap = layers > 3 ? 40 : 50, height = TOP + layers * gap + 18 + BAR + 20, top = Math.max(...now.influence.flat());
  const apart = (width - 2 * SIDE) / Math.max(1, tokens - 1), radius = Math.min(12, 0.44 * apart), x = token => SIDE + token * apart, y = layer => TOP + (layers - layer) * gap;
  const all = edges(network, now), seen = sources(network, now, all), route = path(network, now, from), on = new Set(route.slice(1).map((node, n) => `${route[n]}>${node}`));
  const style = edge => {
    const [a, p, b, q] = edge;
    if (on.has(`${a},${p}>${b},${q}`)) return { stroke: "var(--accent)", "stroke-width": 3.5 };
    return seen.has(`${b},${q}`) && seen.has(`${a},${p}`) ? { stroke: "var(--query)", "stroke-width": 1.3, "stroke-opacity": network === 2 ? 0.45 : 0.75 } : { stroke: "var(--line)", "stroke-width": 1 };
  };
  const order = edge => { const width = style(edge)["stroke-width"]; return width; };
  const line = edge => s("line", { x1: x(edge[1]), y1: y(edge[0]), x2: x(edge[3]), y2: y(edge[2]), style: style(edge) });
  const act = (end, token) => ({ role: "button", tabindex: 0, "data-pick": end, "data-network": network, style: { cursor: "pointer" }, onclick: () => pick(end, token),
    onkeydown: event => { if (event.key === "Enter" || event.key === " ") event.preventDefault(), pick(end, token); } });
  const node = (layer, token) => {
    const reached = seen.has(`${layer},${token}`), place = { transform: `translate(${x(token)} ${y(layer)})` };
    if (layer && layer < layers) return s("circle", { cx: x(token), cy: y(layer), r: 5, style: { fill: reached ? "var(--query)" : "var(--line)" } });
    const last = layer === layers, chosen = last ? token === output : token === from, finite = Number.isFinite(hops[token]);
    const colour = last ? "var(--output)" : "var(--key)", filled = last ? chosen : finite;
    const label = last ? `${t("output")} ${token + 1}` : `${t("input")} ${token + 1}: ${finite ? `${hops[token]} ${t("steps")}, ${t("share")} ${shares[token].toPrecision(2)}` : t("never")}`;
    return s("g", { ...place, ...act(last ? "output" : "input", token), "aria-label": label, "aria-pressed": chosen, "data-name": last ? null : "hops", "data-i": network, "data-j": token, "data-value": last ? null : hops[token] },
      s("title", {}, label), s("circle", { r: Math.min(17, apart / 2), style: { fill: "transparent" } }),
      s("circle", { r: radius, style: { fill: filled ? `color-mix(in srgb, ${colour} ${last ? 100 : 22}%, var(--paper))` : "var(--paper)", stroke: chosen ? "var(--accent)" : filled ? colour : "var(--faint)", "stroke-width": chosen ? 3 : 1.5 } }),
      s("text", { translate: "no", y: 4.5, style: { "text-anchor": "middle", "font-size": `${Math.min(12.5, radius + 1.5)}px`, "font-weight": 600, fill: last ? (chosen ? "var(--paper)" : "var(--soft)") : finite ? "var(--ink)" : "var(--faint)" } }, last ? token + 1 : finite ? hops[token] : "×"));
  };
  const floor = y(0) + 20 + BAR, bars = shares.map((share, token) => [s("rect", { x: x(token) - 0.7 * radius, y: floor - BAR * share / top, width: 1.4 * radius, height: BAR * share / top, rx: 2, style: { fill: "var(--key)", "fill-opacity": 0.75 }, "data-name": "influence", "data-i": network, "data-j": token, "data-value": share }),
    s("text", { translate: "no", x: x(token), y: floor + 13, style: { "text-anchor": "middle", "font-size": apart < 30 ? "8.5px" : "10.5px", fill: "var(--soft)" } }, share === 0 ? "0" : share < 0.0095 ? "<.01" : share.toFixed(2).replace("0.", "."))]);
  return h("section", { "data-network": network, style: { "margin-bottom": "14px" } },
    h("p", { style: { margin: "0 0 2px" } }, h("b", {}, lab.localize(TEXT.names[network])), " ", h("span", { class: "soft", style: { "font-size": "13.5px" } }, lab.localize({ en: TEXT.facts.en(now.reached[network], tokens, now.farthest[network], now.sequential[network]), zh: TEXT.facts.zh(now.reached[network], tokens, now.farthest[network], now.sequential[network]) }))),
    s("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": lab.localize(TEXT.names[network]), style: { display: "block", width: "100%", height: "auto", "max-width": "760px" } },
      [...all].sort((a, b) => order(a) - order(b)).map(line), Array.from({ length: layers + 1 }, (_, layer) => Array.from({ length: tokens }, (_, token) => node(layer, token))),
      s("line", { x1: 2, x2: width - 2, y1: floor, y2: floor, style: { stroke: "var(--line)" } }), bars));
}
