// Labels, colours and short numbers for pictures and controls of the course.
import { formatBrief, h, scientific } from "lab/dom.js";

// The labels of a picture: texts in both languages, or the name of a list of strings in the result.
export function readLabels(lab, labels, result) {
  if (typeof labels === "string") return (result[labels] ?? []).map(word => ({ words: String(word), own: true }));
  return (labels ?? []).map(label => ({ words: lab.localize(label), own: false }));
}
export const labelNode = (tag, label, attributes = {}) => h(tag, { translate: label?.own ? "no" : null, ...attributes }, label?.words ?? "");
// A value rounded to the step of its control, within its bounds.
export function roundTo(control, x) {
  const digits = Math.max(0, Math.ceil(-Math.log10(control.step) - 1e-9));
  return Number(Math.max(control.low, Math.min(control.high, Math.round(x / control.step) * control.step)).toFixed(digits));
}
export const roleColour = role => ({ query: "var(--query)", key: "var(--key)", value: "var(--value)", output: "var(--output)" })[role] ?? "var(--accent)";
// Whole numbers are exact; others have three or four digits.
export function shortNumber(x) {
  if (typeof x === "boolean") return x ? "1" : "0";
  if (typeof x !== "number") return String(x);
  if (Number.isInteger(x) && Math.abs(x) < 1e9) return x.toLocaleString("en").replace("-", "−");
  return Math.abs(x) >= 1e5 ? scientific(x.toExponential(1)) : Math.abs(x) < 5e-4 ? scientific(x.toExponential(1)) : formatBrief(x, Math.abs(x) >= 10 ? 2 : 3);
}
