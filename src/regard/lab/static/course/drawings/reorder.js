// Words as chips that can be dragged into another order, or moved with the arrow keys; sets the control `sentence`.
import { fill, h } from "lab/dom.js";

const TEXT = { hint: { en: "Drag a word, or focus it and press ← or →.", zh: "拖动一个词，或选中后按 ← →。" } };

export function draw(host, result, lab, step, change) {
  const list = h("ol", { style: { display: "flex", "flex-wrap": "wrap", gap: "8px", margin: "4px 0", padding: "0", "list-style": "none" } });
  host.append(list, h("p", { class: "soft" }, lab.localize(TEXT.hint)));
  let words = result.words, held = null, focused = null;
  function move(from, to) {
    if (from === to || to < 0 || to >= words.length) return;
    words = [...words], words.splice(to, 0, ...words.splice(from, 1)), focused = to;
    show(), change({ sentence: words.join(" ") });
  }
  const chipAt = event => document.elementFromPoint(event.clientX, event.clientY)?.closest?.("[data-word]");
  list.addEventListener("pointermove", event => {
    const over = held === null ? null : chipAt(event), to = over && list.contains(over) ? Number(over.dataset.word) : null;
    if (to !== null && to !== held) move(held, to), held = to;
  });
  for (const name of ["pointerup", "pointercancel", "pointerleave"]) list.addEventListener(name, () => { held = null; list.style.cursor = ""; });
  function show() {
    fill(list, words.map((word, n) => h("li", {}, h("button", { type: "button", translate: "no", "data-word": n, style: { cursor: "grab", "touch-action": "none", "user-select": "none", "font-size": "17px", padding: "7px 16px" },
      onpointerdown: event => { held = n; event.currentTarget.releasePointerCapture?.(event.pointerId); list.style.cursor = "grabbing"; },
      onkeydown: event => { const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key]; if (by) event.preventDefault(), move(n, n + by); } }, word))));
    if (focused !== null) list.querySelector(`[data-word="${focused}"]`)?.focus({ preventScroll: true }), focused = null;
  }
  show();
  return now => { if (now.words.join(" ") !== words.join(" ")) words = now.words, show(); };
}
