// A round table: people around it, lines from the listener to everyone by weight, and what the listener brings and takes.
//
// Reads questions, cards, opinions, weights, views, listener and count of the result; clicking a person sets the
// control `listener`, the two buttons set `count`. People keep their elements, so that they move when somebody joins.
import { button } from "lab/controls.js";
import { clamp, fill, h, prefersReducedMotion, s } from "lab/dom.js";

const GUESTS = [
  { en: "cook", zh: "厨师" }, { en: "doctor", zh: "医生" }, { en: "engineer", zh: "工程师" }, { en: "farmer", zh: "农民" },
  { en: "athlete", zh: "运动员" }, { en: "driver", zh: "司机" }, { en: "nurse", zh: "护士" }, { en: "student", zh: "学生" },
];
const TOPICS = [{ en: "food", zh: "饮食" }, { en: "health", zh: "健康" }, { en: "machines", zh: "机器" }];
const TEXT = {
  join: { en: "One more joins", zh: "再来一位" }, leave: { en: "One leaves", zh: "离开一位" },
  question: { en: "question (query)", zh: "问题（查询）" }, card: { en: "name card (key)", zh: "身份牌（键）" }, opinion: { en: "opinion (value)", zh: "观点（值）" },
  listens: { en: "listens most to", zh: "最听谁的" }, view: { en: "view in the end (output)", zh: "最后的观点（输出）" }, self: { en: "(self)", zh: "（自己）" },
  hint: { en: "Click a person, or use the arrow keys. Thick lines: listens closely. Colour: opinion, from against (red) to for (green).", zh: "点一个人，或用方向键移动。线越粗，听得越认真。颜色表示观点：红为反对，绿为赞成。" },
};
const WIDTH = 430, HEIGHT = 330, CENTRE = { x: 215, y: 165 }, RADIUS = 118;
const signed = x => `${x < 0 ? "−" : "+"}${Math.abs(x).toFixed(2)}`;
const opinionColour = x => `color-mix(in srgb, var(${x < 0 ? "--key" : "--value"}) ${Math.round(15 + 75 * clamp(Math.abs(x), 0, 1))}%, var(--paper))`;

export function draw(host, result, lab, step, change) {
  const t = key => lab.localize(TEXT[key]), still = prefersReducedMotion();
  const lines = s("g"), seats = s("g"), people = [];
  const svg = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "group", "aria-label": lab.localize(step.picture.title), style: `width:100%;max-width:${WIDTH + 90}px` },
    s("circle", { cx: CENTRE.x, cy: CENTRE.y, r: RADIUS - 32, style: "fill:var(--wash);stroke:var(--line);stroke-width:2" }), lines, seats);
  const panel = h("div", { style: { display: "grid", gap: "8px", "align-content": "start", "min-width": "170px", flex: "1 1 170px" } });
  const [join, leave] = [["join", 1], ["leave", -1]].map(([key, by]) => button(t(key), () => change({ count: clamp(latest.count + by, 1, 50) })));
  host.append(h("div", { class: "row", style: { "align-items": "start" } }, h("div", { style: { flex: "3 1 330px", "min-width": "0" } }, h("div", { class: "row" }, join, leave), svg), panel), h("p", { class: "soft" }, t("hint")));
  let latest = result;
  const name = n => `${lab.localize(GUESTS[n % GUESTS.length])}${latest.count > GUESTS.length ? ` ${n + 1}` : ""}`;
  const listenTo = (n, focus) => { change({ listener: n + 1 }); if (focus) people[n]?.node.focus(); };

  function seat(n) {
    const disc = s("circle", { r: 20 }), label = s("text", { "text-anchor": "middle", style: "font-size:12px;fill:var(--ink)" }), number = s("text", { "text-anchor": "middle", y: 4, class: "digits", style: "font-size:10.5px;fill:var(--ink)", "data-name": "opinions", "data-i": n });
    const node = s("g", { tabindex: 0, role: "button", "data-guest": n, style: `cursor:pointer;opacity:0;transform:translate(${CENTRE.x}px,${HEIGHT + 30}px);${still ? "" : "transition:transform .45s,opacity .45s"}`, onclick: () => listenTo(n),
      onkeydown: event => { const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key]; if (by) event.preventDefault(), listenTo((n + by + latest.count) % latest.count, true); else if (event.key === "Enter" || event.key === " ") event.preventDefault(), listenTo(n); } }, disc, number, label);
    seats.append(node);
    return { node, disc, label, number };
  }
  function show() {
    const { count, weights, opinions } = latest, me = latest.listener - 1, size = clamp(340 / count, 6, 21);
    const at = n => { const angle = 2 * Math.PI * n / count - Math.PI / 2; return { x: CENTRE.x + RADIUS * Math.cos(angle), y: CENTRE.y + RADIUS * Math.sin(angle), angle }; };
    while (people.length > count) people.pop().node.remove();
    while (people.length < count) people.push(seat(people.length));
    svg.getBoundingClientRect();  // new people start outside and walk in
    people.forEach(({ node, disc, label, number }, n) => {
      const { x, y, angle } = at(n), named = count <= 12 || n === me;
      node.style.transform = `translate(${x}px,${y}px)`, node.style.opacity = 1;
      node.setAttribute("aria-label", `${name(n)}, ${t("opinion")} ${signed(opinions[n])}`), node.setAttribute("aria-pressed", String(n === me));
      disc.setAttribute("r", size), disc.style.cssText = `fill:${opinionColour(opinions[n])};stroke:var(${n === me ? "--accent" : "--line"});stroke-width:${n === me ? 2 + 6 * weights[me][me] : 1.5}`;
      number.textContent = count <= 16 ? signed(opinions[n]).replace("0.", ".") : "", number.dataset.value = opinions[n];
      label.textContent = named ? name(n) : "", label.setAttribute("x", (size + 8) * Math.cos(angle) * 0.9), label.setAttribute("y", (size + 12) * Math.sin(angle) + 4);
      label.setAttribute("text-anchor", Math.cos(angle) > 0.4 ? "start" : Math.cos(angle) < -0.4 ? "end" : "middle");
    });
    fill(lines, weights[me].map((weight, n) => {
      const [from, to] = [at(me), at(n)];
      return n === me ? null : s("line", { x1: from.x, y1: from.y, x2: to.x, y2: to.y, "data-name": "weights", "data-i": me, "data-j": n, "data-value": weight, style: `stroke:var(--accent);stroke-linecap:round;stroke-width:${(0.6 + 15 * weight).toFixed(2)};opacity:${(0.18 + 0.7 * Math.sqrt(weight)).toFixed(3)}` }, s("title", {}, `${name(n)}: ${weight.toFixed(3)}`));
    }));
    join.disabled = count >= 50, leave.disabled = count <= 1;
    const heard = weights[me].map((weight, n) => ({ weight, n })).sort((a, b) => b.weight - a.weight).slice(0, 3);
    fill(panel, h("h3", {}, name(me)),
      topics(t("question"), latest.questions[me], "--query", lab), topics(t("card"), latest.cards[me], "--key", lab),
      entry(t("opinion"), h("b", { class: "digits", style: { color: "var(--value)" } }, signed(opinions[me]))),
      entry(t("listens"), h("ol", { style: { margin: "0", padding: "0 0 0 18px" } }, heard.map(({ weight, n }) => h("li", {}, `${name(n)}${n === me ? ` ${t("self")}` : ""} `, h("span", { class: "digits" }, weight.toFixed(2)))))),
      entry(t("view"), h("b", { class: "digits", "data-name": "views", "data-i": me, "data-value": latest.views[me], style: { color: "var(--output)", "font-size": "20px" } }, signed(latest.views[me]))));
  }
  show();
  return now => { latest = now, show(); };
}
const entry = (title, node) => h("div", {}, h("div", { class: "soft" }, title), node);
function topics(title, values, colour, lab) {
  return entry(title, h("div", { style: { display: "grid", "grid-template-columns": "auto 1fr auto", gap: "2px 8px", "align-items": "center", "font-size": "13px" } }, values.map((value, n) => [
    h("span", {}, lab.localize(TOPICS[n])), h("span", { style: { background: "var(--wash)", height: "8px", "border-radius": "4px", overflow: "hidden" } }, h("span", { style: { display: "block", height: "8px", width: `${100 * clamp(value, 0, 1)}%`, background: `var(${colour})` } })), h("span", { class: "digits" }, value.toFixed(1).replace("-", "−"))])));
}
