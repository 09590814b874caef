// Graph: nodes and edges with the weights of one layer. A node attends to its incoming neighbours and to itself.
import { chosenModel, fileButtons, headPicker, cautionLine, modelPicker, number, predictionLine, backendLine, select } from "lab/controls.js";
import { clamp, formatExact, fill, untranslated, h, s } from "lab/dom.js";
import { npz, saveFile, saveSvg, svgText } from "lab/export.js";
import { modelInput } from "lab/inputs.js";
import { numbersTable } from "lab/charts.js";

export const name = "graph";
export const text = {
  en: {
    title: "Graph", lead: "In a graph attention network a node attends to its neighbours and to itself. Choose a node: its incoming edges show its weights, which sum to 1.",
    graph: "Graph", openGraph: "Drop or choose a graph (NPZ: x, y, edge_index)", node: "Node", hops: "Neighbourhood", hop1: "1 hop", hop2: "2 hops",
    picture: "Nodes and edges", pictureHelp: "Click a node, or move between nodes with the arrow keys. The width and the number of an edge give its weight; the loop is the weight of the node on itself.",
    counts: (nodes, edges) => `${nodes.toLocaleString("en")} nodes, ${edges.toLocaleString("en")} edges, and a self-loop at every node`,
    looks: n => `Weights of node ${n}`, neighbour: "node", weight: "weight", classOf: "class", self: "self",
    sums: (sum, own) => `The weights sum to ${sum}; the self-loop has ${own}.`, received: x => `All nodes together give this node the weight ${x}.`,
    heads: "Heads at this node", headName: n => `head ${n}`, entropyName: "entropy (nats)", selfName: "self-loop", largestName: "largest",
    says: (label, percent) => `Predicted class: ${label} (${percent} %).`, leftOut: n => `${n} more distant nodes with smaller weights are not drawn.`,
    legend: "node colour: predicted class", none: "No graph model was found.",
  },
  zh: {
    title: "图网络", lead: "在图注意力网络中，节点只关注它的邻居和它自己。选择一个节点：它的入边上标出权重，其和为 1。",
    graph: "图", openGraph: "拖入或选择图文件（NPZ：x、y、edge_index）", node: "节点", hops: "邻域", hop1: "1 跳", hop2: "2 跳",
    picture: "节点与边", pictureHelp: "点击节点，或用方向键在节点间移动。边的粗细和数字表示权重；自环是节点对自己的权重。",
    counts: (nodes, edges) => `${nodes.toLocaleString("en")} 个节点，${edges.toLocaleString("en")} 条边，每个节点另有一个自环`,
    looks: n => `节点 ${n} 的权重`, neighbour: "节点", weight: "权重", classOf: "类别", self: "自身",
    sums: (sum, own) => `权重之和为 ${sum}，其中自环占 ${own}。`, received: x => `所有节点给此节点的权重合计 ${x}。`,
    heads: "此节点的各个头", headName: n => `头 ${n}`, entropyName: "熵（nat）", selfName: "自环", largestName: "最大",
    says: (label, percent) => `预测类别：${label}（${percent} %）。`, leftOut: n => `有 ${n} 个更远、权重更小的节点没有画出。`,
    legend: "节点颜色：预测的类别", none: "没有找到图模型。",
  },
};
// A palette for colour-blind readers (Okabe and Ito); the class is also written as text.
const CLASSES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a7a00", "#6b6b6b"];
const WIDE = 760, TALL = 620, MARGIN = 40;

export async function show(root, lab) {
  const { t } = lab, model = chosenModel(lab, ["graph"]);
  if (!model) return void root.append(h("p", { class: "note" }, t("noModels")));
  const { element, input } = modelInput(lab, root, model, changes => lab.set({ ...changes, node: null }, { show: true }));
  root.append(h("div", { class: "input" }, h("div", { class: "row" }, modelPicker(lab, { modalities: ["graph"], onChange: name => lab.set({ model: name, example: null, upload: null, molecule: null, node: null, attention: null, head: null }, { show: true }) }), model.task === "graphs" ? null : element)), model.task === "graphs" ? element : "");
  if (!input) return void root.append(h("p", { class: "note" }, t("noGraphFile")));
  const asked = { model: model.name, input }, graph = await lab.request("graph/run", asked);
  const attention = clamp(Number(lab.state.attention ?? 0), 0, graph.attentions.length - 1), head = clamp(Number(lab.state.head ?? 0), 0, graph.attentions[attention].heads - 1);
  const hops = Number(lab.state.hops ?? 1), place = h("div", { class: "columns wide-left" }), whole = graph.places !== null;
  let node = clamp(Number(lab.state.node ?? 0), 0, graph.count - 1);
  root.append(
    h("div", { class: "row pickers" }, headPicker(lab, graph.attentions, attention, head, (a, b) => lab.set({ attention: a, head: b }, { show: true })),
      number(t("node"), node, { min: 0, max: graph.count - 1 }, value => choose(value)),
      whole ? null : select(t("hops"), [[1, t("hop1")], [2, t("hop2")]], hops, value => lab.set({ hops: value }, { show: true }))),
    graph.prediction ? predictionLine(lab, graph.prediction) ?? h("p", { translate: "no" }, graph.prediction.text ?? "") : "",
    h("p", { class: "soft" }, t("counts", graph.count, graph.edges)), place, cautionLine(lab), backendLine(lab, graph));

  const ask = lab.latestRequest();
  async function choose(next, focus = false) {
    node = clamp(next, 0, graph.count - 1);
    lab.set({ node });
    const box = root.querySelector(".pickers input[type=number]");
    if (box) box.value = node;
    const found = await lab.attempt(() => ask("graph/around", { ...asked, attention: graph.attentions[attention].name, head, node, hops }), place);
    if (!found) return;
    draw(found);
    lab.announce(`${t("node")} ${node}`);
    if (focus) place.querySelector('.nodes [tabindex="0"]')?.focus();
  }
  const classOf = n => graph.class ? graph.labels?.[graph.class.data[n]] ?? String(graph.class.data[n]) : "";
  const colourOf = n => graph.class ? CLASSES[graph.class.data[n] % CLASSES.length] : "var(--soft)";

  function draw(found) {
    const shown = Array.from(found.shown.data), row = new Map(shown.map((n, k) => [n, k])), places = whole ? graph.places.data : found.places.data;
    const x = n => WIDE / 2 + places[2 * row.get(n)] * (WIDE / 2 - MARGIN), y = n => TALL / 2 + places[2 * row.get(n) + 1] * (TALL / 2 - MARGIN);
    const count = found.weight.data.length, sources = found.edges.data.subarray(0, count), targets = found.edges.data.subarray(count);
    const quiet = [], loud = [], numbers = [], own = new Map(Array.from(found.sources.data, (n, k) => [n, found.weights.data[head * found.sources.data.length + k]]));
    for (let e = 0; e < count; e++) {
      const from = sources[e], to = targets[e], weight = found.weight.data[e];
      if (to !== node) { if (from < to || !own.has(from)) if (from !== to) quiet.push(s("line", { x1: x(from), y1: y(from), x2: x(to), y2: y(to), class: "edge" })); continue; }
      const wide = Math.max(0.8, 14 * weight), data = { class: "edge in", "stroke-width": wide, "data-from": from, "data-weight": weight };
      if (from === to) {
        loud.push(s("path", { ...data, d: `M${x(node) - 7} ${y(node) - 9}c-26 -44 40 -44 14 0`, fill: "none" }));
        numbers.push(s("text", { x: x(node), y: y(node) - 46, class: "edge-number" }, weight.toFixed(3)));
      } else {
        loud.push(s("line", { ...data, x1: x(from), y1: y(from), x2: x(to), y2: y(to) }));
        numbers.push(s("text", { x: x(from) * 0.72 + x(to) * 0.28, y: y(from) * 0.72 + y(to) * 0.28 + 4, class: "edge-number" }, weight.toFixed(3)));
      }
    }
    // With many neighbours only the largest weights are labelled.
    const least = [...own.values()].sort((a, b) => b - a)[Math.min(14, own.size - 1)] ?? 0;
    const kept = numbers.filter(one => Number(one.textContent) >= Math.min(least, 0.999));
    const dot = n => s("g", { class: `node ${n === node ? "lit" : ""} ${own.has(n) ? "near" : ""}`, role: "button", tabindex: n === node ? 0 : -1, "aria-pressed": n === node, "aria-label": `${t("node")} ${found.names[row.get(n)]} ${classOf(n)} ${own.has(n) ? formatExact(own.get(n)) : ""}`, translate: "no",
      onclick: () => choose(n, true), onkeydown: event => step(event, shown) },
      s("circle", { cx: x(n), cy: y(n), r: n === node ? 15 : own.has(n) ? 12 : 9, fill: colourOf(n) }), s("text", { x: x(n), y: y(n) + 4, class: "node-name" }, found.names[row.get(n)]));
    const svg = s("svg", { viewBox: `0 0 ${WIDE} ${TALL}`, class: "graph", role: "group", "aria-label": t("picture") }, s("g", {}, quiet), s("g", {}, loud), s("g", { class: "nodes" }, shown.filter(n => n !== node).concat(node).map(dot)), s("g", {}, kept));
    const labels = graph.labels && graph.class && h("p", { class: "keys" }, t("legend"), graph.labels.map((label, n) => h("span", { translate: "no" }, h("i", { class: "dot-key", style: { background: CLASSES[n % CLASSES.length] } }), label)));
    const k = found.sources.data.length, list = Array.from(found.sources.data, (n, m) => [(found.names[row.get(n)] ?? String(n)) + (n === node ? ` (${t("self")})` : ""), classOf(n), found.weights.data[head * k + m]]);
    fill(place,
      h("figure", { class: "card" }, h("div", { class: "map-head" }, h("h3", {}, t("picture")), fileButtons(lab, () => filesOf(svg, found))), svg, labels, h("p", { class: "soft help" }, t("pictureHelp")), found.left_out > 0 ? h("p", { class: "soft" }, t("leftOut", found.left_out)) : null),
      h("div", { class: "card" }, h("h3", {}, t("node"), " ", h("span", { translate: "no" }, node)),
        graph.class ? h("p", {}, t("says", classOf(node), (100 * graph.probability.data[node]).toFixed(1))) : null,
        numbersTable(lab, { caption: t("looks", node), columns: [t("neighbour"), t("classOf"), t("weight")], rows: list, onRow: m => choose(found.sources.data[m]) }),
        h("p", { class: "soft row-sum" }, t("sums", found.sums.data[head].toFixed(6), found.self.data[head].toFixed(4)), " ", t("received", found.received.toFixed(3))),
        numbersTable(lab, { caption: t("heads"), columns: [t("head"), t("entropyName"), t("selfName"), t("largestName")], rows: Array.from(found.sums.data, (_, n) => [t("headName", n), found.entropy.data[n], found.self.data[n], Math.max(...found.weights.data.subarray(n * k, (n + 1) * k))]), onRow: n => lab.set({ head: n, node }, { show: true }) })));
    lab.expose({ read: () => ({ node, head, sources: Array.from(found.sources.data), weights: Array.from(found.weights.data.subarray(head * k, (head + 1) * k)), sum: found.sums.data[head], count: graph.count, drawn: svg.querySelectorAll(".node").length }) });
  }
  function step(event, shown) {
    const at = shown.indexOf(node), to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: shown.length - 1 }[event.key];
    if (to === undefined || shown[to] === undefined) return;
    event.preventDefault(), choose(shown[to], true);
  }
  function filesOf(svg, found) {
    const rows = Array.from(found.weight.data, (weight, e) => `${found.edges.data[e]},${found.edges.data[found.weight.data.length + e]},${formatExact(weight)}`);
    return {
      svg: () => saveSvg(svg, "graph"),
      png: () => picture(svg, blob => saveFile("graph.png", blob)),
      csv: () => saveFile("graph.csv", ["source,target,weight\n", rows.join("\n"), "\n"], "text/csv"),
      npz: () => saveFile("graph.npz", npz({ edges: found.edges, weight: found.weight })),
    };
  }
  await choose(node);
}

// An SVG as a PNG of twice its size.
function picture(svg, done) {
  const image = new Image(), canvas = h("canvas", { width: 2 * WIDE, height: 2 * TALL });
  image.onload = () => { canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height), canvas.toBlob(done); };
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText(svg))}`;
}
