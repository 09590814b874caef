// How one number of the formula is computed, with its operands.
import { formatBrief, formatExact, formatShort, h, scientific, topEntries } from "lab/dom.js";

const x = (value, role = "") => h("b", { class: role, title: formatExact(value), "data-value": value }, formatShort(value, 4)), line = (...parts) => h("p", { class: "sum", translate: "no" }, parts);
const table = (head, rows) => h("div", { class: "table-scroll" }, h("table", { class: "numbers" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)));
const LETTERS = { q: "query", k: "key", v: "value" };

// The nodes that explain `cell` = {what, j, n} on the page Formula.
export function explain(page, { what, j: place, n: dimension }) {
  const { t } = page.lab, { row, now } = page, j = Number(place), n = Number(dimension), wide = row.v.shape[1], width = row.k.shape[1], q = page.queries[page.query], k = j >= 0 ? page.name(j) : "";
  const own = page.edits.scores.has(j), off = !now.allowed[j];
  const makers = {
    q: () => [h("p", {}, t("isQ", n, q)), line(`q[${n}] = `, x(row.q.data[n], "query")), projected(page, "q", page.query, n)],
    k: () => [h("p", {}, t("isK", n, k)), line(`k[${n}] = `, x(row.k.data[j * width + n], "key")), projected(page, "k", page.place(j), n), h("p", {}, t("inScore")),
      row.additive ? line(bent(row, j, n)) : line(x(row.q.data[n], "query"), " × ", x(row.k.data[j * width + n], "key"), " = ", x(Math.fround(row.q.data[n] * row.k.data[j * width + n])))],
    v: () => [h("p", {}, t("isV", n, k)), line(`v[${n}] = `, x(row.v.data[j * wide + n], "value")), projected(page, "v", page.place(j), n), h("p", {}, t("inOutput")),
      line(x(now.weight[j]), " × ", x(row.v.data[j * wide + n], "value"), " = ", x(Math.fround(now.weight[j] * row.v.data[j * wide + n]), "output"))],
    raw: () => [h("p", {}, t("isRaw", q, k)), products(page, j), line(x(row.raw.data[j]))],
    scaled: () => [h("p", {}, t("isScaled")), line(x(row.raw.data[j]), " × ", x(page.edits.scale ?? row.scale ?? 1), " = ", x(now.scaled[j]))],
    position: () => [h("p", {}, t("isPosition", page.one.position?.line ?? "")), line(x(row.position.data[j])), line(page.one.position?.formula ?? "")],
    score: () => off ? masked() : [h("p", {}, own ? t("isOwn") : t("isScore")), own ? line(x(now.score[j])) : line(x(now.scaled[j]), row.position ? [" + ", x(row.position.data[j])] : "", " = ", x(now.score[j]))],
    weight: () => off ? [...masked(), line("0")] : row.lse === null ? [h("p", {}, t("edited")), line(x(row.weight.data[j]))] : page.changed ? [h("p", {}, t("isSoftmax", formatBrief(page.edits.temperature, 2))), line(x(now.weight[j]))]
      : [h("p", {}, t("isWeight")), line("e^(", x(row.score.data[j]), " − ", x(row.lse), ") = ", x(row.weight.data[j]))],
    output: () => [h("p", {}, t("isOutput", n, q)), shares(page, n), page.changed ? [h("p", {}, t("beforeEdit")), line(x(row.output.data[n], "output")), h("p", {}, t("afterEdit")), line(x(now.output[n], "output"))]
      : h("dl", { class: "ran-as" }, h("dt", {}, t("executed")), h("dd", {}, x(row.output.data[n], "output")), h("dt", {}, t("difference")), h("dd", { translate: "no" }, scientific(Math.abs(row.output.data[n] - row.mixed.data[n]).toExponential(1))))],
  };
  const masked = () => [h("p", {}, page.edits.masks.get(j) ? t("isOwnMask") : t("isMasked", page.one.mask?.line ?? "")), what === "score" ? line("−∞") : null];
  return makers[what]();
}
// The largest terms of x·W + b for one number of q, k or v.
function projected(page, letter, token, n) {
  const { t } = page.lab, held = page.held, weight = held?.known && held[`w_${letter}`], at = letter === "q" ? -1 : held?.known ? held.places.data.indexOf(token) : -1;
  if (!weight || (letter !== "q" && (!held.x || at < 0))) return null;
  const size = weight.shape[1], input = letter === "q" ? held.x_query.data : held.x.data.subarray(at * size, (at + 1) * size), terms = Float64Array.from(input, (value, c) => value * weight.data[n * size + c]), top = topEntries(terms.map(Math.abs), 4), bias = held[`b_${letter}`]?.data[n] ?? 0;
  const sum = terms.reduce((a, b) => a + b, 0), listed = top.reduce((total, { index }) => total + terms[index], 0);
  return [h("p", { class: "soft" }, t("isProjected", letter, size), held.transformed && letter !== "v" ? ` ${t("thenTurned")}` : ""),
    table([h("th", {}, t("step")), h("th", { translate: "no" }, "x"), h("th", { translate: "no" }, "W", h("sub", {}, letter)), h("th", {}, t("product"))],
      [...top.map(({ index: c }) => h("tr", {}, h("td", { class: "number" }, c), h("td", { class: "number" }, formatBrief(input[c], 4)), h("td", { class: `number ${LETTERS[letter]}` }, formatBrief(weight.data[n * size + c], 4)), h("td", { class: "number" }, formatBrief(terms[c], 4)))),
        h("tr", {}, h("td", { colspan: 3, class: "soft" }, t("otherDims", size - top.length)), h("td", { class: "number" }, formatBrief(sum - listed, 4))), h("tr", {}, h("td", { colspan: 3, class: "soft" }, t("biasTerm")), h("td", { class: "number" }, formatBrief(bias, 4))),
        h("tr", {}, h("td", { colspan: 3 }, t("total")), h("td", { class: `number ${LETTERS[letter]}` }, formatBrief(sum + bias, 4)))])];
}
const bend = (row, sum) => row.activation === "leaky_relu" ? (sum > 0 ? sum : sum * row.slope) : Math.tanh(sum);
function bent(row, j, n) {
  const k = row.k.data[j * row.k.shape[1] + n];
  return `${formatShort(row.additive.data[n], 4)} × ${row.activation === "leaky_relu" ? "LeakyReLU" : "tanh"}(${formatShort(row.q.data[n], 4)} + ${formatShort(k, 4)}) = ${formatBrief(row.additive.data[n] * bend(row, row.q.data[n] + k), 4)}`;
}
// The products of one score with their cumulative sum; the largest ones, the others together.
function products(page, j) {
  const { t } = page.lab, { row } = page, width = row.k.shape[1], parts = Float64Array.from({ length: width }, (_, n) => { const q = row.q.data[n], k = row.k.data[j * width + n]; return row.additive ? row.additive.data[n] * bend(row, q + k) : q * k; });
  const top = topEntries(parts.map(Math.abs), 8).map(({ index }) => index).sort((a, b) => a - b);
  let sum = 0;
  const rows = top.map(n => { sum += parts[n]; return h("tr", {}, [n, formatBrief(row.q.data[n], 4), formatBrief(row.k.data[j * width + n], 4), formatBrief(parts[n], 4), formatBrief(sum, 4)].map((cell, c) => h("td", { class: `number ${["", "query", "key"][c] ?? ""}` }, cell))); });
  const total = parts.reduce((a, b) => a + b, 0);
  if (top.length < width) rows.push(h("tr", {}, h("td", { colspan: 3, class: "soft" }, t("otherDims", width - top.length)), h("td", { class: "number" }, formatBrief(total - sum, 4)), h("td", { class: "number" }, formatBrief(total, 4))));
  return table([h("th", {}, t("step")), h("th", { translate: "no" }, "q"), h("th", { translate: "no" }, "k"), h("th", {}, t("product")), h("th", {}, t("runningSum"))], rows);
}
function shares(page, n) {
  const { t } = page.lab, { row, now } = page, wide = row.v.shape[1], parts = Float64Array.from(now.weight, (w, j) => w * row.v.data[j * wide + n]), top = topEntries(parts.map(Math.abs), 8, j => !now.weight[j]), whole = page.changed ? now.output[n] : row.mixed.data[n];
  let sum = 0;
  const rows = top.map(({ index: j }) => { sum += parts[j]; return h("tr", {}, h("td", { translate: "no", class: "key" }, page.name(j)), h("td", { class: "number" }, formatBrief(now.weight[j], 4)), h("td", { class: "number value" }, formatBrief(row.v.data[j * wide + n], 4)), h("td", { class: "number" }, formatBrief(parts[j], 4))); });
  const others = page.one.keys - top.length;
  if (others > 0) rows.push(h("tr", {}, h("td", { colspan: 3, class: "soft" }, t("otherDims", others)), h("td", { class: "number" }, formatBrief(whole - sum, 4))));
  rows.push(h("tr", {}, h("td", { colspan: 3 }, t("total")), h("td", { class: "number output" }, formatBrief(whole, 4))));
  return table([h("th", {}, t("colKey")), h("th", {}, t("colWeight")), h("th", { translate: "no" }, "v"), h("th", {}, t("product"))], rows);
}
