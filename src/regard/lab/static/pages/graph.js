// Graph: nodes and edges with the weights of one layer. A node attends to its incoming neighbours and to itself.
import { weightColour } from "lab/colour.js";
import { bar, chosenModel, fileButtons, headPicker, cautionLine, modelPicker, number, predictionLine, backendLine } from "lab/controls.js";
import { clamp, formatExact, formatPercent, formatShort, numeral, fill, untranslated, h, s } from "lab/dom.js";
import { npz, saveFile, saveSvg, svgText } from "lab/export.js";
import { modelInput } from "lab/inputs.js";
import { numbersTable } from "lab/charts.js";
import { labelPlacer, spreadNodes } from "lab/graph_layout.js";
import { fold, stage } from "lab/stage.js";

export const name = "graph";
export const text = {
  en: {
    title: "Graph", lead: "In a graph attention network a node attends to its neighbours and to itself. Move over a node: the edges into it show its weights by width and colour, and they sum to 1. Click to keep a node, drag nodes to arrange them. The small pictures show the chosen node in every head.",
    look: (node, share, other, even, layer, head) => `in layer ${layer}, head ${head}, node ${node} gives ${share} of its weight to node ${other}; ${even} would be even.`,
    film: "This node in every head", filmHead: (layer, head, most) => `layer ${layer}, head ${head}, largest weight ${most}`, layerShort: n => `layer ${n}`, more: "More about this graph: counts, downloads", sumShown: sum => `The drawn edges into it sum to ${sum}.`,
    graph: "Graph", node: "Node", hops: "Neighbourhood", hop1: "1 hop", hop2: "2 hops",
    picture: "Nodes and edges", pictureHelp: "Move over a node, drag it, click it, or use the arrow keys. The loop is the weight of the node on itself.",
    counts: (nodes, edges) => `${nodes.toLocaleString("en")} nodes, ${edges.toLocaleString("en")} edges, and a self-loop at every node`,
    looks: n => `Weights of node ${n}`, neighbour: "node", weight: "weight", classOf: "class", self: "self",
    sums: (sum, own) => `The weights sum to ${sum}; the self-loop has ${own}.`, received: x => `All nodes together give this node the weight ${x}.`,
    heads: "Heads at this node", headName: n => `head ${n}`, entropyName: "entropy (nats)", selfName: "self-loop", largestName: "largest",
    says: (label, percent) => `Predicted class: ${label} (${percent} %).`, leftOut: n => `${n} more distant nodes with smaller weights are not drawn.`,
    legend: "node colour: predicted class", none: "No graph model was found.",
  },
  zh: {
    title: "图网络", lead: "在图注意力网络中，节点只关注它的邻居和它自己。把鼠标移到节点上：它的入边用粗细和颜色表示权重，其和为 1。点击固定一个节点，拖动可重新摆放。小图是所选节点在各个头里的样子。",
    look: (node, share, other, even, layer, head) => `在第 ${layer} 层的头 ${head} 里，节点 ${node} 把 ${share} 的权重给了节点 ${other}；平均分配则是 ${even}。`,
    film: "此节点在各个头里", filmHead: (layer, head, most) => `第 ${layer} 层，头 ${head}，最大权重 ${most}`, layerShort: n => `第 ${n} 层`, more: "更多：节点数与边数、下载", sumShown: sum => `图中画出的入边权重之和为 ${sum}。`,
    graph: "图", node: "节点", hops: "邻域", hop1: "1 跳", hop2: "2 跳",
    picture: "节点与边", pictureHelp: "移到节点上查看，可拖动或点击，也可用方向键。自环是节点对自己的权重。",
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
const DESKTOP = [820, 560], PHONE = [460, 500], MARGIN = 40, NEIGHBOURS = 25;

export async function show(root, lab) {
  const { t } = lab, model = chosenModel(lab, ["graph"]);
  if (!model) return void root.append(h("p", { class: "note" }, t("noModels")));
  const { element, input } = modelInput(lab, root, model, changes => lab.set({ ...changes, node: null }, { show: true }));
  lab.bar(modelPicker(lab, { modalities: ["graph"], onChange: name => lab.set({ model: name, example: null, upload: null, molecule: null, node: null, attention: null, head: null, hops: null }, { show: true }) }), element ?? "");
  if (!input) return void root.append(h("p", { class: "note" }, t("noGraphFile")));
  const asked = { model: model.name, input }, graph = await lab.request("graph/run", asked), { attentions } = graph, whole = graph.places !== null, hops = whole ? undefined : Number(lab.state.hops ?? 2);
  let attention = clamp(Number(lab.state.attention ?? 0), 0, attentions.length - 1), head = clamp(Number(lab.state.head ?? 0), 0, attentions[attention].heads - 1), node = clamp(Number(lab.state.node ?? graph.start), 0, graph.count - 1), hovered = null, found = null;
  const [wide, tall] = root.clientWidth < 560 ? PHONE : DESKTOP, position = new Map(), picture = s("svg", { viewBox: `0 0 ${wide} ${tall}`, class: "graph", role: "group", "aria-label": t("picture") }), film = h("div", { class: "film graph-film", role: "group", "aria-label": t("film") }), side = h("div", { class: "readout" }), below = h("div", {}), picker = h("div", {});
  const nodeBox = number(t("node"), node, { min: 0, max: graph.count - 1 }, value => choose(value));
  const named = label => model.card?.classes?.[label] ? lab.localize(model.card.classes[label]) : label; // what the number of a class stands for
  const labels = graph.labels && graph.class && h("p", { class: "keys" }, t("legend"), graph.labels.map((label, n) => h("span", { translate: "no" }, h("i", { class: "dot-key", style: { background: CLASSES[n % CLASSES.length] } }), named(label))));
  const page = stage(lab, {
    tools: [picker, nodeBox, whole ? null : bar(t("hops"), [[1, t("hop1")], [2, t("hop2")]], hops, value => lab.set({ hops: value }, { show: true }))],
    picture: h("figure", { class: "overlay-box" }, picture, h("div", { class: "row overlay-foot" }, labels, h("span", { class: "soft" }, t("pictureHelp")))),
    side: [h("div", {}, h("h3", {}, t("film")), film), side],
  });
  root.append(page.element, graph.prediction ? predictionLine(lab, graph.prediction) ?? h("p", { translate: "no" }, graph.prediction.text ?? "") : "", below,
    fold(t("more"), h("p", { class: "soft" }, t("counts", graph.count, graph.edges)), fileButtons(lab, filesOf), cautionLine(lab), backendLine(lab, graph)));

  const classOf = n => graph.class ? named(graph.labels?.[graph.class.data[n]] ?? String(graph.class.data[n])) : "", colourOf = n => graph.class ? CLASSES[graph.class.data[n] % CLASSES.length] : "var(--soft)";
  const nameOf = n => found.names[found.row.get(n)] ?? String(n), x = n => position.get(n)[0], y = n => position.get(n)[1];
  const ask = lab.latestRequest();
  async function choose(next, focus = false) {
    node = clamp(next, 0, graph.count - 1), hovered = null;
    lab.set({ node });
    nodeBox.querySelector("input").value = node;
    const answer = await lab.attempt(() => ask("graph/around", request(asked, attentions[attention], node, hops)), root);
    if (!answer) return;
    found = { ...answer, row: new Map(Array.from(answer.shown.data, (n, k) => [n, k])) };
    const places = whole ? graph.places.data : found.places.data;
    if (!whole) position.clear();
    const fresh = position.size === 0;
    for (const [n, k] of found.row) if (!position.has(n)) position.set(n, [wide / 2 + places[2 * k] * (wide / 2 - MARGIN), tall / 2 + places[2 * k + 1] * (tall / 2 - MARGIN)]);
    const sources = new Set(found.sources.data);
    if (fresh) spreadNodes(position, n => whole ? 12 : n === node ? 18 : sources.has(n) ? 14 : 8, [wide, tall]);
    draw(), tell(), showFilm();
    lab.announce(`${t("node")} ${node}`);
    if (focus) picture.querySelector('.nodes [tabindex="0"]')?.focus();
  }
  function chooseHead(a, b) {
    const other = a !== attention;
    attention = a, head = b, lab.set({ attention, head });
    if (other) choose(node); else draw(), tell(), showFilm();
  }
  // The edges with their weights in this head: [source, target, weight].
  const edgesOf = () => { const count = found.weight.shape[1]; return Array.from({ length: count }, (_, e) => [found.edges.data[e], found.edges.data[count + e], found.weight.data[head * count + e]]); };
  const ownRow = () => { const count = found.sources.data.length; return new Map(Array.from(found.sources.data, (n, k) => [n, found.weights.data[head * count + k]])); };
  // Draws all nodes, all edges thin, and those into the hovered or chosen node by their weights.
  function draw() {
    fill(showPicker());
    const focus = hovered ?? node, list = edgesOf(), into = list.filter(([, to]) => to === focus), near = new Map(into.map(([from, , weight]) => [from, weight])), most = Math.max(...near.values(), 1e-9), quiet = [], loud = [], numbers = [];
    for (const [from, to] of list) if (to !== focus && from !== to && (from < to || to === focus)) quiet.push(s("line", { x1: x(from), y1: y(from), x2: x(to), y2: y(to), class: "edge" }));
    const shown = Array.from(found.shown.data), sizeOf = n => n === focus ? 16 : near.has(n) ? 13 : found.row.size > 60 ? 8 : 10, free = labelPlacer(shown.map(n => [x(n), y(n), sizeOf(n)]));
    const labelled = [...near.values()].sort((a, b) => b - a)[Math.min(near.size > 18 ? 5 : 14, near.size - 1)] ?? 0;
    for (const [from, to, weight] of into.sort((a, b) => b[2] - a[2])) {
      const data = { class: "edge in", "stroke-width": clamp(24 * weight, 0.8, 12), "data-from": from, "data-weight": weight, style: `stroke:${weightColour(0.25 + 0.75 * weight / most, "linear")}` };
      const words = given => {
        if (weight < Math.min(labelled, 0.999)) return;
        const at = given ?? free([x(from), y(from)], [x(to), y(to)]);
        if (at) numbers.push(s("text", { x: at[0], y: at[1] + 4, class: "edge-number" }, weight.toFixed(2).replace(/^0/, "")));
      };
      if (from === to) loud.push(s("path", { ...data, d: `M${x(to) - 7} ${y(to) - 9}c-26 -44 40 -44 14 0`, fill: "none" })), words([x(to), y(to) - 50]);
      else loud.push(s("line", { ...data, x1: x(from), y1: y(from), x2: x(to), y2: y(to) })), words();
    }
    const focused = picture.contains(document.activeElement);
    const dot = n => s("g", { class: `node ${n === node ? "lit" : ""} ${n === hovered ? "hover" : ""} ${near.has(n) || n === focus ? "near" : ""}`, role: "button", tabindex: n === node ? 0 : -1, "aria-pressed": n === node, "aria-label": `${t("node")} ${nameOf(n)} ${classOf(n)} ${near.has(n) ? formatExact(near.get(n)) : ""}`, translate: "no", "data-node": n, onkeydown: event => step(event, shown) },
      s("circle", { cx: x(n), cy: y(n), r: sizeOf(n), fill: colourOf(n) }), found.row.size > 60 && !near.has(n) && n !== focus ? null : s("text", { x: x(n), y: y(n) + 4, class: nameOf(n).length > 3 ? "node-name long" : "node-name" }, nameOf(n)));
    picture.replaceChildren(s("g", {}, quiet), s("g", {}, loud.reverse()), s("g", { class: "nodes" }, shown.filter(n => n !== focus).concat(focus).map(dot)), s("g", {}, numbers));
    if (focused) picture.querySelector('.nodes [tabindex="0"]')?.focus();
  }
  function showPicker() { return fill(picker, headPicker(lab, attentions, attention, head, chooseHead)), picker.firstChild ? document.createElement("i") : picker; }
  // Hover shows a node's weights, dragging moves it, a click chooses it.
  const nodeAt = event => { const group = event.target.closest?.("[data-node]"); return group ? Number(group.dataset.node) : null; };
  let held = null;
  const place = event => { const edge = picture.getBoundingClientRect(); return [(event.clientX - edge.left) * wide / edge.width, (event.clientY - edge.top) * tall / edge.height]; };
  picture.addEventListener("pointerdown", event => { const n = nodeAt(event); if (n !== null) held = { n, from: [event.clientX, event.clientY], moved: false }, picture.setPointerCapture(event.pointerId), event.preventDefault(); });
  picture.addEventListener("pointermove", event => {
    if (held) {
      if (!held.moved && Math.hypot(event.clientX - held.from[0], event.clientY - held.from[1]) < 5) return;
      const [left, top] = place(event);
      held.moved = true, position.set(held.n, [clamp(left, 12, wide - 12), clamp(top, 12, tall - 12)]), draw();
    } else if (event.pointerType === "mouse") { const n = nodeAt(event); if (n !== hovered) hovered = n === node ? null : n, draw(), tell(); }
  });
  picture.addEventListener("pointerup", event => { const was = held; held = null; if (was && !was.moved) choose(was.n, true); else if (was) event.preventDefault(); });
  picture.addEventListener("pointerleave", () => { if (hovered !== null && !held) hovered = null, draw(), tell(); });
  function step(event, shown) {
    const at = shown.indexOf(node), to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: shown.length - 1 }[event.key];
    if (to === undefined || shown[to] === undefined) return;
    event.preventDefault(), choose(shown[to], true);
  }
  function tell() {
    const focus = hovered ?? node, own = hovered === null ? [...ownRow()] : edgesOf().filter(([, to]) => to === focus).map(([from, , weight]) => [from, weight]), ordered = own.sort((a, b) => b[1] - a[1]), sum = own.reduce((total, [, weight]) => total + weight, 0), best = ordered.find(([n]) => n !== focus) ?? ordered[0];
    const called = n => classOf(n) ? `${nameOf(n)} (${classOf(n)})` : nameOf(n);
    page.look(best ? t("look", called(focus), formatPercent(best[1], 0), called(best[0]), formatPercent(1 / ordered.length, 0), attention, head) : null);
    fill(side, h("p", { class: "pair" }, h("span", { class: "query" }, t("node"), " ", untranslated(nameOf(focus))), graph.class ? h("span", { class: "soft" }, t("says", classOf(focus), (100 * graph.probability.data[focus]).toFixed(1))) : null),
      numbersTable(lab, { caption: t("looks", nameOf(focus)), columns: [t("neighbour"), t("classOf"), t("weight")], rows: ordered.slice(0, NEIGHBOURS).map(([n, weight]) => [nameOf(n) + (n === focus ? ` (${t("self")})` : ""), classOf(n), numeral(weight)]), onRow: m => choose(ordered[m][0]) }),
      h("p", { class: "soft row-sum", title: formatExact(sum) }, hovered === null ? [t("sums", sum.toFixed(3), formatShort(found.self.data[head])), " ", t("received", formatShort(found.received.data[head]))] : t("sumShown", sum.toFixed(3))));
    fill(below, found.left_out > 0 ? h("p", { class: "soft" }, t("leftOut", found.left_out)) : null,
      fold(t("heads"), numbersTable(lab, { caption: "", columns: [t("head"), t("entropyName"), t("selfName"), t("largestName")], rows: Array.from(found.sums.data, (_, n) => [t("headName", n), found.entropy.data[n], found.self.data[n], Math.max(...found.weights.data.subarray(n * found.sources.data.length, (n + 1) * found.sources.data.length))]), onRow: n => chooseHead(attention, n) })));
    below.querySelector("details").open = lab.state.open === "heads", below.querySelector("details").addEventListener("toggle", event => lab.set({ open: event.target.open ? "heads" : null }));
  }
  // The chosen node in every head: its edges alone.
  function showFilm() {
    const sources = Array.from(found.sources.data), towards = n => { const far = Math.hypot(x(n) - x(node), y(n) - y(node)) || 1; return { x2: 40 + 34 * (x(n) - x(node)) / far, y2: 40 + 34 * (y(n) - y(node)) / far }; };
    fill(film, attentions.map((one, a) => h("div", { class: "film-row" }, h("span", { class: "at" }, t("layerShort", one.layer)), Array.from({ length: one.heads }, (_, b) => {
      const row = found.every[a].data.subarray(b * sources.length, (b + 1) * sources.length), most = Math.max(...row), words = t("filmHead", one.layer, b, formatShort(most));
      const lines = sources.map((n, k) => n === node || !position.has(n) ? null : s("line", { x1: 40, y1: 40, ...towards(n), "stroke-width": clamp(18 * row[k], 0.8, 9), "stroke-linecap": "round", style: `stroke:${weightColour(0.25 + 0.75 * row[k] / most, "linear")}` }));
      const self = row[sources.indexOf(node)] ?? 0;
      return h("button", { type: "button", "aria-pressed": a === attention && b === head, "aria-label": words, title: words, onclick: () => chooseHead(a, b) }, s("svg", { viewBox: "0 0 80 80", "aria-hidden": "true" }, lines, s("circle", { cx: 40, cy: 40, r: 3 + 9 * self, fill: colourOf(node) })));
    }))));
    film.style.setProperty("--heads", Math.min(8, Math.max(...attentions.map(one => one.heads))));
  }
  function filesOf() {
    const rows = edgesOf().map(([from, to, weight]) => `${from},${to},${formatExact(weight)}`);
    return {
      svg: () => saveSvg(picture, "graph"),
      png: () => savePng(picture, blob => saveFile("graph.png", blob)),
      csv: () => saveFile("graph.csv", ["source,target,weight\n", rows.join("\n"), "\n"], "text/csv"),
      npz: () => saveFile("graph.npz", npz({ edges: found.edges, weight: found.weight })),
    };
  }
  await choose(node);
  lab.expose({
    read: () => { const own = ownRow(); return { node, head, hovered, sources: [...own.keys()], weights: [...own.values()], sum: found.sums.data[head], count: graph.count, drawn: picture.querySelectorAll(".node").length, places: Object.fromEntries(position) }; },
    // What a saved view holds: every node of the picture in every layer; the heads come with them.
    keep: () => attentions.flatMap(one => Array.from(found.shown.data, n => ({ path: "graph/around", body: request(asked, one, n, hops) }))),
  });
}
const request = (asked, attention, node, hops) => ({ ...asked, attention: attention.name, node, ...(hops === undefined ? {} : { hops }) });
// An SVG as a PNG of twice its size.
function savePng(svg, done) {
  const image = new Image(), { width, height } = svg.viewBox.baseVal, canvas = h("canvas", { width: 2 * width, height: 2 * height });
  image.onload = () => { canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height), canvas.toBlob(done); };
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText(svg))}`;
}
