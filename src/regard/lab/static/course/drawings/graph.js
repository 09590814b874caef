// A graph of six people: shade is the state of a node, width the weight along an edge. Two clicks add or remove an edge.
//
// Reads weights and state of the result; changes the control `edges`.
import { fill, h, s } from "lab/dom.js";

const NODES = [{ en: "Ann", zh: "安" }, { en: "Bo", zh: "博" }, { en: "Chen", zh: "陈" }, { en: "Dan", zh: "丹" }, { en: "Eve", zh: "夏" }, { en: "Fei", zh: "飞" }];
const PLACES = [[50, 120], [140, 60], [230, 120], [320, 60], [410, 120], [230, 220]];
const TEXT = { hint: { en: "Click two people to connect them or to cut their edge.", zh: "依次点击两个人，连上或断开他们之间的边。" } };

export function draw(host, result, lab, step, change) {
  let latest = result, first = null;
  const name = n => lab.localize(NODES[n]);
  function click(n) {
    if (first === null || first === n) { first = first === n ? null : n; return show(); }
    const [i, j] = [first, n], edges = step.values.edges.map(row => [...row]), joined = edges[i][j] || edges[j][i];
    edges[i][j] = edges[j][i] = typeof edges[i][j] === "boolean" ? !joined : Number(!joined);
    first = null, change({ edges });
  }
  function show() {
    const { weights, state } = latest, most = Math.max(1e-9, ...state.map(Math.abs));
    const edges = weights.flatMap((row, i) => row.map((weight, j) => j < i && (weight > 0 || weights[j][i] > 0) ? s("line", { x1: PLACES[i][0], y1: PLACES[i][1], x2: PLACES[j][0], y2: PLACES[j][1], style: `stroke:var(--accent);opacity:.65;stroke-linecap:round;stroke-width:${(1 + 9 * Math.max(weight, weights[j][i])).toFixed(2)}` }, s("title", {}, `${name(i)} ← ${name(j)}: ${weight.toFixed(2)}, ${name(j)} ← ${name(i)}: ${weights[j][i].toFixed(2)}`)) : null));
    fill(host, s("svg", { viewBox: "0 0 460 270", class: "chart", role: "group", "aria-label": lab.localize(step.picture.title), style: "width:100%;max-width:460px" }, edges,
      PLACES.map(([x, y], n) => s("g", { tabindex: 0, role: "button", "aria-pressed": String(n === first), "aria-label": `${name(n)} ${state[n].toFixed(3)}`, "data-node": n, style: "cursor:pointer", onclick: () => click(n), onkeydown: event => { if (event.key === "Enter" || event.key === " ") event.preventDefault(), click(n); } },
        s("circle", { cx: x, cy: y, r: 24, style: `fill:color-mix(in srgb, var(--value) ${Math.round(85 * Math.abs(state[n]) / most)}%, var(--paper));stroke:var(${n === first ? "--accent" : "--soft"});stroke-width:${n === first ? 4 : 1.5}` }),
        s("text", { x, y: y + 4, "text-anchor": "middle", class: "digits", style: "font-size:12px;fill:var(--ink)", "data-name": "state", "data-i": n, "data-value": state[n] }, state[n].toFixed(2)), s("text", { x, y: n === 5 ? y + 42 : y - 31, "text-anchor": "middle", style: "font-size:13px;font-weight:600;fill:var(--ink)" }, name(n))))),
    h("p", { class: "soft" }, lab.localize(TEXT.hint)));
  }
  show();
  return now => { latest = now, show(); };
}
