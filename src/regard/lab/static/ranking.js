// The largest numbers of a row with their names, each with a bar.
import { h, numeral } from "lab/dom.js";

// `entries`: [{name, at (its number), value, colour, here, onPick, own (the name is a text of the page)}].
export function rankingTable(caption, entries) {
  const most = Math.max(...entries.map(({ value }) => Math.abs(value)), 1e-30);
  const named = ({ name, at, onPick }) => [onPick ? h("button", { type: "button", class: "plain", onclick: onPick }, name) : name, at === undefined ? null : h("span", { class: "at" }, at)];
  return h("table", { class: "ranking" }, caption ? h("caption", {}, caption) : null,
    h("tbody", {}, entries.map(entry => h("tr", { class: entry.here ? "here" : null },
      h("th", { scope: "row", translate: entry.own ? null : "no" }, named(entry)),
      h("td", { class: "bar" }, h("span", { style: { width: `${100 * Math.abs(entry.value) / most}%`, ...(entry.colour ? { background: entry.colour } : {}) } })),
      h("td", { class: "number" }, numeral(entry.value))))));
}
