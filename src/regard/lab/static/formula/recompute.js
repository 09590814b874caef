// One row of attention computed again from its products, with another temperature or scale, edited scores and toggled masks.
// `row` is the server's: raw, scaled, position, score, allowed, weight [keys], v [keys, width], output [width].

export const noEdits = () => ({ temperature: 1, scale: null, scores: new Map(), masks: new Map() });
export const isEdited = edits => edits.temperature !== 1 || edits.scale !== null || edits.scores.size > 0 || edits.masks.size > 0;

export function recompute(row, edits) {
  if (!isEdited(edits)) return { scaled: row.scaled.data, score: row.score.data, allowed: row.allowed.data, weight: row.weight.data, output: row.output.data, sum: row.sum };
  const count = row.weight.shape[0], [, width] = row.v.shape, scaled = new Float64Array(count), score = new Float64Array(count), allowed = new Uint8Array(count), weight = new Float64Array(count), output = new Float64Array(width);
  let most = -Infinity, total = 0;
  for (let j = 0; j < count; j++) {
    scaled[j] = edits.scale === null ? row.scaled.data[j] : row.raw.data[j] * edits.scale;
    allowed[j] = edits.masks.has(j) ? (edits.masks.get(j) ? 0 : 1) : row.allowed.data[j];
    score[j] = allowed[j] ? edits.scores.get(j) ?? scaled[j] + (row.position?.data[j] ?? 0) : -Infinity;
    most = Math.max(most, score[j] / edits.temperature);
  }
  for (let j = 0; j < count; j++) total += weight[j] = allowed[j] ? Math.exp(score[j] / edits.temperature - most) : 0;
  for (let j = 0; j < count; j++) {
    weight[j] = total > 0 ? weight[j] / total : 0;
    for (let n = 0; n < width; n++) output[n] += weight[j] * row.v.data[j * width + n];
  }
  return { scaled, score, allowed, weight, output, sum: total > 0 ? 1 : 0 };
}

// concat·W_o with this head's output changed: y + W_head (output − the model's output).
export function recomputeOutput({ y, w_head: weights }, output, own) {
  const [size, width] = weights.shape, result = new Float64Array(size);
  for (let n = 0; n < size; n++) {
    result[n] = y.data[n];
    for (let c = 0; c < width; c++) result[n] += weights.data[n * width + c] * (output[c] - own[c]);
  }
  return result;
}

// Edits as text, for the URL: "3=1.25~5=m~6=u" (a score, masked, unmasked).
export const writeEdits = ({ scores, masks }) => [...[...scores].map(([j, x]) => `${j}=${x}`), ...[...masks].map(([j, off]) => `${j}=${off ? "m" : "u"}`)].join("~");
export function readEdits(text) {
  const edits = { scores: new Map(), masks: new Map() };
  for (const item of (text ?? "").split("~")) {
    const [, j, value] = /^(\d+)=(m|u|-?\d+(?:\.\d+)?(?:e-?\d+)?)$/.exec(item) ?? [];
    if (value === "m" || value === "u") edits.masks.set(Number(j), value === "m"); else if (value !== undefined) edits.scores.set(Number(j), Number(value));
  }
  return edits;
}
