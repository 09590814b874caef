// One sentence through the formula: played, paused, stepped and scrubbed; a strip of still stages where motion is unwanted.
import { fill, h, prefersReducedMotion, s } from "lab/dom.js";
import { makeScene, makeTimeline, STAGES } from "lab/course/drawings/sentence_scene.js";

export const wide = true;
const NAMES = {
  vectors: { en: "Words → vectors", zh: "词 → 向量" }, project: { en: "q, k, v", zh: "q、k、v" }, scores: { en: "q · k", zh: "q · k" },
  scale: { en: "÷ √d", zh: "÷ √d" }, softmax: { en: "Softmax", zh: "Softmax" }, sum: { en: "Weighted sum", zh: "加权求和" },
};
const BUTTONS = { play: { en: "Play", zh: "播放" }, pause: { en: "Pause", zh: "暂停" }, back: { en: "Previous stage", zh: "上一阶段" }, next: { en: "Next stage", zh: "下一阶段" }, scrub: { en: "Time", zh: "时间" }, stages: { en: "Stages", zh: "阶段" }, formula: { en: "The formula", zh: "公式" },
  scene: { en: "One query on its way through the formula", zh: "一个查询走过公式的全程" }, help: { en: "Space plays and pauses, ← and → go from stage to stage. Click a word to make it the query.", zh: "空格播放或暂停，← → 切换阶段；点击一个词，让它成为查询。" } };
const SIGNS = { play: "M5 3l11 7-11 7z", pause: "M5 3h4v14H5zM11 3h4v14h-4z", back: "M15 3L6 10l9 7zM4 3h2v14H4z", next: "M5 3l9 7-9 7zM14 3h2v14h-2z" };
const sign = name => s("svg", { viewBox: "0 0 20 20", width: 16, height: 16, "aria-hidden": "true" }, s("path", { fill: "currentColor", d: SIGNS[name] }));
const short = x => Number(x.toFixed(2)).toString().replace("-", "−");
const percent = x => `${Math.round(100 * x)} %`;

// What happens in a stage, in numbers of this very sentence.
function captionOf(stage, { words, q, k, products, scores, scaled, weights, exponentials, row }) {
  const word = words[row], order = weights.map((_, j) => j).sort((a, b) => weights[b] - weights[a]), top = order[0], second = order[1] ?? top, d = q.length;
  const terms = q.map((x, c) => `${short(x)}·${short(k[top][c])}`).join(" + "), total = exponentials.reduce((sum, x) => sum + x, 0);
  return {
    vectors: { en: `Each word becomes a vector of ${d} numbers.`, zh: `每个词变成 ${d} 个数组成的向量。` },
    project: { en: `“${word}” asks a question, its query q. Every word offers a key k, and a value v to pass on.`, zh: `“${word}”提出问题，即查询 q；每个词给出一个键 k，和要传递的值 v。` },
    scores: { en: `The query meets every key. With “${words[top]}”: ${terms} = ${short(scores[top])}, the best match.`, zh: `查询与每个键相遇。与“${words[top]}”：${terms} = ${short(scores[top])}，最为匹配。` },
    scale: { en: `Divide by √${d}: ${short(scores[top])} becomes ${short(scaled[top])}.`, zh: `除以 √${d}：${short(scores[top])} 变为 ${short(scaled[top])}。` },
    softmax: { en: `e to the power of each score, divided by the sum ${short(total)}: the weights add up to 1.`, zh: `先取 e 的分数次方，再除以总和 ${short(total)}：权重之和为 1。` },
    sum: { en: `Each value flows into the sum by its weight. “${word}” now holds ${percent(weights[top])} of “${words[top]}” and ${percent(weights[second])} of “${words[second]}”.`, zh: `每个值按权重流入总和。“${word}”现在含有 ${percent(weights[top])} 的“${words[top]}”和 ${percent(weights[second])} 的“${words[second]}”。` },
  }[stage];
}

function formula(lab) {
  const part = (stages, role, words) => h("span", { class: `formula-part ${role}`, "data-stages": stages }, words);
  return h("div", { class: "scene-formula", role: "img", translate: "no", "aria-label": lab.localize(BUTTONS.formula) }, part("softmax", "", "softmax"), "( ", part("project scores", "query", "q"), " ", part("project scores", "key", "Kᵀ"), " ", part("scale", "", "/ √d"), " ) ", part("project sum", "value", "V"));
}

export function draw(host, result, lab, step, change) {
  return prefersReducedMotion() ? drawStrip(host, result, lab) : drawPlayer(host, result, lab, change);
}

// Every stage at its end, one below the other.
function drawStrip(host, result, lab) {
  const show = now => {
    const { stages } = makeTimeline(now.words.length), label = lab.localize(BUTTONS.scene);
    fill(host, formula(lab), h("ol", { class: "scene-strip" }, stages.map((stage, n) => h("li", { "data-stage": stage.name }, h("h2", {}, `${n + 1} `, lab.localize(NAMES[stage.name])), h("p", { class: "scene-caption" }, lab.localize(captionOf(stage.name, now))),
      makeScene(now, { width: 400, label, still: stage.to - 1e-3 }).svg))));
  };
  show(result);
  return show;
}

function drawPlayer(host, result, lab, change) {
  let scene, time = 0, playing = false, last = 0, now = result, shown = "";
  const place = h("div", { class: "scene-place" }), caption = h("p", { class: "scene-caption", "aria-live": "polite" }), math = formula(lab);
  const scrub = h("input", { type: "range", class: "slider", min: 0, max: 1000, value: 0, "aria-label": lab.localize(BUTTONS.scrub), oninput: () => { pause(), seek(scrub.value / 1000 * scene.total); } });
  const playButton = h("button", { type: "button", class: "strong scene-play", onclick: () => toggle() });
  const rail = h("ol", { class: "scene-rail", "aria-label": lab.localize(BUTTONS.stages) }, STAGES.map((name, n) => h("li", {}, h("button", { type: "button", "data-stage": name, onclick: () => { pause(), seek(scene.stages[n].to - 1e-3); } }, lab.localize(NAMES[name])))));
  const build = () => {
    const focused = [...place.querySelectorAll(".scene-word")].indexOf(document.activeElement);
    scene = makeScene(now, { width: host.clientWidth || 1000, label: lab.localize(BUTTONS.scene), onWord: j => change({ query: j + 1 }) }), fill(place, scene.svg), shown = "", seek(Math.min(time, scene.total));
    place.querySelectorAll(".scene-word")[focused]?.focus();
  };
  function seek(to) {
    time = Math.max(0, Math.min(scene.total, to)), scene.show(time), scrub.value = Math.round(1000 * time / scene.total);
    const at = scene.stages.findIndex(stage => time < stage.to), stage = scene.stages[at < 0 ? scene.stages.length - 1 : at];
    host.dataset.stage = stage.name, host.dataset.time = time.toFixed(2);
    if (shown === stage.name) return;
    shown = stage.name, fill(caption, lab.localize(captionOf(stage.name, now)));
    for (const node of math.querySelectorAll("[data-stages]")) node.classList.toggle("now", node.dataset.stages.split(" ").includes(stage.name));
    for (const node of rail.querySelectorAll("button")) node.dataset.stage === stage.name ? node.setAttribute("aria-current", "step") : node.removeAttribute("aria-current");
  }
  function face() {
    fill(playButton, sign(playing ? "pause" : "play"));
    playButton.setAttribute("aria-label", lab.localize(BUTTONS[playing ? "pause" : "play"])), host.dataset.playing = playing ? "yes" : "no";
  }
  function tick(stamp) {
    if (!playing || lab.signal.aborted || !host.isConnected) return;
    const passed = Math.min(0.1, (stamp - last) / 1000);
    last = stamp, seek(time + passed);
    time >= scene.total ? pause() : requestAnimationFrame(tick);
  }
  function play() { if (time >= scene.total - 1e-3) seek(0); playing = true, last = performance.now(), face(), requestAnimationFrame(tick); }
  function pause() { playing = false, face(); }
  const toggle = () => playing ? pause() : play();
  // To the end of this stage, or of the one before.
  function jump(by) {
    pause();
    const ends = scene.stages.map(stage => stage.to - 1e-3), to = by > 0 ? ends.find(end => end > time + 1e-2) ?? scene.total : ends.findLast(end => end < time - 1e-2) ?? 0;
    seek(to);
  }
  host.append(h("div", { class: "scene-top" }, math, caption), place, h("div", { class: "scene-player" }, h("button", { type: "button", onclick: () => jump(-1), "aria-label": lab.localize(BUTTONS.back), class: "scene-back" }, sign("back")), playButton, h("button", { type: "button", onclick: () => jump(1), "aria-label": lab.localize(BUTTONS.next), class: "scene-next" }, sign("next")), scrub), rail, h("p", { class: "soft scene-help" }, lab.localize(BUTTONS.help)));
  document.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey || !host.isConnected || (event.target.closest?.("input:not(.scene-player input), textarea, select, details, .code-parts, .course-bar, .course-foot, #nav, #top") && event.key !== "Escape")) return;
    const act = { " ": toggle, ArrowRight: () => jump(1), ArrowLeft: () => jump(-1) }[event.key];
    if (act && !(event.key === " " && event.target.closest?.(".scene-rail, .scene-player button, .scene-word"))) event.preventDefault(), act();
  }, { signal: lab.signal });
  build(), face();
  const start = setTimeout(() => { if (host.isConnected && !lab.signal.aborted && time === 0) play(); }, 500);
  lab.signal.addEventListener("abort", () => { clearTimeout(start), playing = false; });
  return next => { now = next, build(); };
}
