// The layout of a page: one line that says where to look, the main picture with its panel beside it, cards below, and folded details.
import { fill, h } from "lab/dom.js";

// `picture` and `side` are nodes or lists of nodes; `tools` stand in one row above the picture; `notices` above everything. `look(words)` changes the line (nothing hides it).
export function stage(lab, { look = null, notices = null, tools = null, picture, side = null, wide = false }) {
  const words = h("p", { class: "look-here" }), body = h("div", { class: "stage-picture" }, picture), panel = h("aside", { class: "stage-side", "aria-label": lab.t("details") }, side ?? []);
  const element = h("section", { class: side ? wide ? "stage wide-side" : "stage" : "stage alone" }, h("h2", { class: "unseen" }, lab.t("stagePicture")), notices, words, tools && h("div", { class: "stage-tools" }, tools), h("div", { class: "stage-body" }, body, side ? panel : null));
  const self = { element, picture: body, side: panel, look(sentence) { words.hidden = !sentence, fill(words, sentence ? [h("b", {}, lab.t("lookHere"), " "), sentence] : ""); } };
  self.look(look);
  return self;
}
// Details that open on demand.
export const fold = (words, ...nodes) => h("details", { class: "fold" }, h("summary", {}, words), nodes);
// Cards of the second rank, side by side where there is room.
export const cards = (...nodes) => h("div", { class: "columns" }, nodes);
