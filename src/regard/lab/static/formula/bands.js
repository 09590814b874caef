// The pictures before and after a head: x·W_q = q, X·W_k = K, X·W_v = V, and concat·W_o = y.
import { cssVariable, fill, h } from "lab/dom.js";
import { largest, matrix } from "lab/matrix.js";

const sign = words => h("span", { class: "band-sign", "aria-hidden": "true" }, words);
const named = (words, role, node) => h("figure", { class: `band-part ${role}` }, node, h("figcaption", { translate: "no" }, words));
// `data` [rows, columns] as the columns of a picture: a weight [outputs, inputs] is drawn with its inputs down.
function transposed({ data, shape: [rows, columns] }) {
  const turned = new Float32Array(data.length);
  for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) turned[j * rows + i] = data[i * columns + j];
  return { data: turned, shape: [columns, rows] };
}

// Before the head: three products. `page` is the Formula page; `held` the answer of formula/projections.
export function inputBand(page, held) {
  const { t } = page.lab, { row, shown } = page, narrow = page.picture.clientWidth < 740, tall = 56, keys = shown.map(j => held.places.data.indexOf(page.place(j))).filter(n => n >= 0);
  const rowsOf = ({ data, shape: [, width] }, picked) => ({ data: Float32Array.from(picked.flatMap(n => Array.from(data.subarray(n * width, (n + 1) * width)))), shape: [picked.length, width] });
  const x = held.x && rowsOf(held.x, keys), mostX = largest(x ? x.data : held.x_query.data), marked = keys.map(n => held.places.data[n]).indexOf(page.query);
  const vector = { data: held.x_query.data, shape: [1, held.x_query.shape[0]] }, wide = narrow ? 44 : 74;
  const product = (letter, role, input, most, weight, result, isQuery) => {
    if (!weight) return null;
    const turned = transposed(weight), name = `W${letter.toLowerCase()}`, height = isQuery ? 14 : tall;
    const whose = i => isQuery ? page.queries[page.query] : page.name(shown[i]);
    return h("div", { class: `band-product ${role}` },
      named(isQuery ? "x" : "X", "", matrix({ ...input, width: wide, height, most, label: t("bandInput"), name: (i, j) => `x(${whose(i)})[${j}]`, marked: isQuery || page.one.query_side !== page.one.key_side || marked < 0 ? null : marked, colour: cssVariable("--query") }).element), sign("·"),
      named([name.charAt(0), h("sub", {}, letter.toLowerCase())], role, matrix({ ...turned, width: narrow ? 34 : 52, height: tall, label: t("bandWeight", name), name: (i, j) => `${name}[${i}, ${j}]` }).element), sign("="),
      named(isQuery ? "q" : letter, role, matrix({ ...result, width: narrow ? 34 : 52, height, label: t("bandResult", letter), name: (i, j) => `${isQuery ? "q" : letter.toLowerCase()}(${whose(i)})[${j}]` }).element));
  };
  return h("div", { class: "band", "data-part": 0 },
    product("Q", "query", vector, largest(vector.data), held.w_q, { data: row.q.data, shape: [1, row.q.shape[0]] }, true),
    x ? [product("K", "key", x, mostX, held.w_k, rowsOf(row.k, shown)), product("V", "value", x, mostX, held.w_v, rowsOf(row.v, shown))] : null);
}

// After the head: the outputs of all heads, times W_o. `update(output, y)` shows edited numbers.
export function outputBand(page, held) {
  const { t } = page.lab, { heads, value_dim: width } = page.one, narrow = page.picture.clientWidth < 740, box = h("div", { class: "band", "data-part": 6 }), concat = Float32Array.from(held.concat.data);
  const most = largest(concat), mostY = largest(held.y.data), parts = Array.from({ length: heads }, (_, n) => matrix({ data: concat.subarray(n * width, (n + 1) * width), shape: [1, width], width: Math.max(12, Math.min(90, (narrow ? 130 : 300) / heads)), height: 14, most, label: t("bandHead", n), name: (i, j) => `o(${t("headShort", n)})[${j}]` }));
  const y = matrix({ data: held.y.data, shape: [1, held.y.shape[0]], width: narrow ? 80 : 160, height: 14, most: mostY, label: t("bandOutput"), name: (i, j) => `y[${j}]` }), weight = held.w_o ?? held.w_head;
  fill(box, h("figure", { class: "band-part output" }, h("div", { class: "band-heads" }, parts.map((part, n) => h("span", { class: n === page.head ? "own" : "" }, part.element))), h("figcaption", {}, t("bandConcat", page.head, heads))), sign("·"),
    weight ? named(["W", h("sub", {}, "o")], "output", matrix({ ...transposed(weight), width: narrow ? 40 : 64, height: 56, label: t("bandWeight", "Wo"), name: (i, j) => `Wo[${i}, ${j}]` }).element) : null, sign("="), named("y", "output", y.element));
  return { element: box, update(output, result) { parts[page.head].update({ data: Float32Array.from(output) }), y.update({ data: Float32Array.from(result) }); } };
}
