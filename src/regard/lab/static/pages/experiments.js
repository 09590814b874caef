// Experiments: a grid of claims with a verdict per sub-claim; for one claim its figure, live parameters, and where the verdict turns.
import { bar, button, number, withProgress } from "lab/controls.js";
import { fold, stage } from "lab/stage.js";
import { fill, formatBrief, h, newId, s, scientificText, untranslated } from "lab/dom.js";

export const name = "experiments";
const TOY = "toy", USUAL = "usual", FILTERS = ["all", "holds", "limited", "fails"];

export const text = {
  en: {
    title: "Experiments", lead: "Claims that textbooks make about attention, divided into sub-claims and measured. Open one, change its parameters and run it.",
    filter: "Show", pipsHow: "Each picture shows one sub-claim over a parameter: it holds in the shaded part. Below it one field per sub-claim: tall ones are core, hatched ones do not hold.", look: (holds, all, fails) => `${holds} of ${all} claims hold as they are stated; ${fails ? `${fails} do not hold:` : "none fails."}`, all: "all", none: "No claim has this verdict.", back: "All claims", previous: "Previous claim", next: "Next claim",
    core: "core", coreTip: "If this sub-claim fails, the claim fails.", holdsWord: "holds", failsWord: "does not hold", unjudged: "measured, not judged",
    heldOf: (held, all) => `${held} of ${all} sub-claims hold`, turnsAt: (parameter, value) => `${parameter}: turns at ${value}`, steady: (parameter, low, high) => `${parameter}: the same from ${low} to ${high}`, notRun: "not measured yet", subclaims: "Sub-claims", claim: "Claim", setup: "Set-up", numbers: "All numbers",
    figure: name => `Figure of ${name}`, facts: (size, seed, took, date) => `Size ${size}, seed ${seed}, ${took} s, ${date}.`, fullSame: words => `At full size the verdict is: ${words}.`, devices: "Measured on", size_toy: "toy", size_usual: "usual", size_full: "full",
    live: "Change it and run it", reset: "Reset", seed: "Seed", runToy: "Run at toy size", runUsual: "Run at usual size", toyHow: "A few seconds; too small to judge the claim.", usualHow: seconds => `About ${seconds} s on one core; judged as above.`, usualUnknown: "A minute or two on one core; judged as above.",
    result: "Your run", tooSmall: "This size is too small to judge the claim: the values are shown without a verdict.", turned: "other verdict than published", changed: "Changed",
    turns: "Where the verdict changes", turnsHow: parameter => `Each picture is one sub-claim over “${parameter}”, with one seed. The dashed line is the threshold; the sub-claim holds in the shaded part.`, noSweep: "No sweep of this experiment is stored: it is too heavy, or has not been measured yet. This command measures one:", holdsAt: "holds", failsAt: "does not hold", point: (x, y, words) => `${x}: ${y}, ${words}`,
  },
  zh: {
    title: "实验", lead: "教科书中关于注意力的说法，分成若干分项，逐一测量。打开一个，改变它的参数，再运行。",
    filter: "显示", pipsHow: "每幅小图是一个分项随参数的变化，在阴影部分成立。下面每个分项一格：高的是核心分项，带斜纹的不成立。", look: (holds, all, fails) => `${all} 个说法中有 ${holds} 个完全成立，${fails ? `${fails} 个不成立：` : "没有不成立的。"}`, all: "全部", none: "没有这种结论的说法。", back: "全部说法", previous: "上一个说法", next: "下一个说法",
    core: "核心", coreTip: "这一分项不成立，则整个说法不成立。", holdsWord: "成立", failsWord: "不成立", unjudged: "已测量，不作判断",
    heldOf: (held, all) => `${all} 个分项中有 ${held} 个成立`, turnsAt: (parameter, value) => `${parameter}：在 ${value} 处改变`, steady: (parameter, low, high) => `${parameter}：从 ${low} 到 ${high} 都一样`, notRun: "尚未测量", subclaims: "分项", claim: "说法", setup: "实验设置", numbers: "全部数字",
    figure: name => `${name}的图`, facts: (size, seed, took, date) => `规模：${size}，种子 ${seed}，${took} 秒，${date}。`, fullSame: words => `完整规模下的结论：${words}。`, devices: "测量设备", size_toy: "最小", size_usual: "通常", size_full: "完整",
    live: "改变参数并运行", reset: "还原", seed: "种子", runToy: "以最小规模运行", runUsual: "以通常规模运行", toyHow: "只需几秒；规模太小，不足以判断说法。", usualHow: seconds => `单核约 ${seconds} 秒；判断方式同上。`, usualUnknown: "单核一两分钟；判断方式同上。",
    result: "你的运行", tooSmall: "规模太小，不足以判断说法：只显示数值，不给结论。", turned: "结论与已发布的不同", changed: "已改变",
    turns: "结论在哪里改变", turnsHow: parameter => `每幅小图是一个分项随“${parameter}”的变化，只用一个种子。虚线是判据，分项在阴影部分成立。`, noSweep: "没有存储这个实验的参数扫描：计算量太大，或尚未测量。可用下面的命令测量：", holdsAt: "成立", failsAt: "不成立", point: (x, y, words) => `${x}：${y}，${words}`,
  },
};

export async function show(root, lab) {
  const data = await lab.request("experiments/list", {}), chosen = data.experiments.find(one => one.name === lab.state.experiment);
  lab.expose({ read: () => ({ experiments: data.experiments, chosen: chosen?.name ?? null }) });
  await (chosen ? showClaim(root, lab, data, chosen) : showGrid(root, lab, data));
}
const badge = (lab, kinds, kind) => h("span", { class: `verdict ${kind}` }, `${kinds[kind].sign} `, lab.localize(kinds[kind]));
const open = (lab, experiment) => lab.set({ experiment, size: null, seed: null }, { show: true, replace: false });

function showGrid(root, lab, { experiments, kinds, rule }) {
  lab.bar();
  const { t } = lab, filter = FILTERS.includes(lab.state.verdict) ? lab.state.verdict : "all", fits = (one, kind) => kind === "all" || one.verdict?.kind === kind;
  const count = kind => experiments.filter(one => fits(one, kind)).length, board = h("div", { class: "claims" }), cards = experiments.map(one => card(lab, kinds, one));
  const show = kind => fill(board, count(kind) ? cards.filter((_, n) => fits(experiments[n], kind)) : h("p", { class: "note" }, t("none")));
  const failing = experiments.filter(one => fits(one, "fails")), mark = lab.language === "zh" ? "；" : "; ";
  const links = failing.map((one, n) => [" ", h("span", { class: "keep" }, h("button", { type: "button", class: "link-button", onclick: () => open(lab, one.name) }, lab.localize(one.claim.title)), n < failing.length - 1 ? mark : "")]);
  root.append(stage(lab, { look: [t("look", count("holds"), experiments.length, failing.length), links],
    tools: [bar(t("filter"), FILTERS.map(kind => [kind, kind === "all" ? `${t("all")} ${count(kind)}` : `${kinds[kind].sign} ${lab.localize(kinds[kind])} ${count(kind)}`]), filter, verdict => { lab.set({ verdict: verdict === "all" ? null : verdict }), show(verdict); })],
    picture: [board, h("p", { class: "soft" }, lab.localize(rule), " ", t("pipsHow"))] }).element);
  show(filter);
}
// A claim: where its verdict turns, its main figures, and one field per sub-claim, green where it holds; the texts are folded.
function card(lab, kinds, one) {
  const { t } = lab, parts = one.verdict?.subclaims ?? [], { turn } = one, criterion = turn && one.claim.criteria.find(part => part.name === turn.name), parameter = turn && one.parameters.find(held => held.name === turn.parameter);
  const turned = turn?.points.findIndex((point, n) => n && point.holds !== turn.points[n - 1].holds), words = criterion && `${lab.localize(criterion.text)} · ${lab.localize(parameter.text)}`;
  return h("article", { class: `card claim-card ${one.verdict?.kind ?? ""}`, "data-experiment": one.name },
    h("h2", { class: "first" }, h("button", { type: "button", class: "claim-title", onclick: () => open(lab, one.name) }, h("span", { class: "soft" }, `${one.claim.number} `), lab.localize(one.claim.title))),
    turn ? h("figure", { class: "claim-turn" }, turnPicture(lab, criterion, turn.values, turn.points, null), h("figcaption", { class: "soft", title: words }, turned > 0 ? t("turnsAt", lab.localize(parameter.text), turn.values[turned]) : t("steady", lab.localize(parameter.text), turn.values[0], turn.values.at(-1)))) : null,
    one.verdict ? h("p", { class: "claim-key" }, scientificText(lab.localize(one.verdict.key))) : h("p", { class: "soft" }, t("notRun")),
    h("div", { class: "pips-line", role: "img", "data-picture": true, "aria-label": t("heldOf", parts.filter(part => part.holds).length, parts.length) }, parts.map(part => h("span", { class: `claim-pip ${part.holds ? "yes" : "no"} ${part.core ? "is-core" : ""}`, title: `${lab.localize(part.text)} · ${lab.localize(part.figures)}` }))),
    parts.length ? h("div", { class: "claim-foot" }, badge(lab, kinds, one.verdict.kind), fold(t("heldOf", parts.filter(part => part.holds).length, parts.length), subclaimList(lab, parts))) : h("p", {}, lab.localize(one.claim.claim)));
}
// The sub-claims with their figures; `judged: false` shows the values without ✓ and ✗, `before` marks those that turned.
function subclaimList(lab, parts, { judged = true, before = null } = {}) {
  const { t } = lab, was = new Map((before ?? []).map(part => [part.name, part.holds]));
  return h("ul", { class: "subclaims" }, parts.map(part => {
    const state = !judged ? "unjudged" : part.holds ? "holds" : "fails";
    return h("li", { class: state, "data-subclaim": part.name }, h("span", { class: "finding-sign", "aria-hidden": "true" }, judged ? part.holds ? "✓" : "✗" : "·"),
      h("p", {}, h("span", { class: "unseen" }, `${t(judged ? part.holds ? "holdsWord" : "failsWord" : "unjudged")} `), lab.localize(part.text), part.core ? [" ", h("span", { class: "core-mark", title: t("coreTip") }, t("core"))] : null,
        h("span", { class: "figures" }, scientificText(lab.localize(part.figures)), judged && was.has(part.name) && was.get(part.name) !== part.holds ? h("b", { class: "turned" }, ` ${t("turned")}`) : null)));
  }));
}

async function showClaim(root, lab, data, one) {
  const { t } = lab, { experiments, kinds } = data, at = experiments.indexOf(one), step = to => experiments[(at + to + experiments.length) % experiments.length].name;
  const picture = h("div", { class: "claim-figure" }), turning = h("section", { class: "card", id: "turning" }), language = lab.language === "zh" ? "zh" : "en";
  lab.bar(...(lab.exported ? [] : [button(`← ${t("back")}`, () => open(lab, null), { id: "back" }), button("‹", () => open(lab, step(-1)), { "aria-label": t("previous"), title: t("previous") }), button("›", () => open(lab, step(1)), { "aria-label": t("next"), title: t("next") }), h("span", { class: "shown-input" }, `${one.claim.number} · `, lab.localize(one.claim.title))]));
  root.append(h("div", { class: "columns wide-left" },
      h("section", { class: "card" }, h("h2", { class: "first" }, `${one.claim.number} · `, lab.localize(one.claim.title), " ", one.verdict ? badge(lab, kinds, one.verdict.kind) : h("span", { class: "soft" }, t("notRun"))),
        picture, h("blockquote", { class: "claim-text" }, lab.localize(one.claim.claim)),
        one.verdict ? subclaimList(lab, one.verdict.subclaims ?? []) : h("ul", { class: "subclaims" }, one.claim.criteria.map(part => h("li", {}, "·", h("p", {}, lab.localize(part.text))))),
        one.verdict ? provenance(lab, kinds, one) : null,
        one.verdict ? h("details", { class: "fold" }, h("summary", {}, t("numbers")), h("p", {}, lab.localize(one.verdict.why))) : null,
        h("details", { class: "fold" }, h("summary", {}, t("setup")), h("p", {}, lab.localize(one.claim.setup)))),
      one.parameters ? livePanel(lab, data, one, language) : null),
    turning);
  if (one.verdict) await lab.attempt(async () => picture.append(image(lab, (await lab.request("experiments/figure", { name: one.name, language })).png.data, one)), picture);
  await lab.attempt(async () => showTurning(lab, turning, one, (await lab.request("experiments/sweep", { name: one.name })).sweep), turning);
}
const provenance = (lab, kinds, one) => h("p", { class: "soft" }, lab.t("facts", lab.t(`size_${one.size}`), one.seed, one.seconds, one.date.slice(0, 10)), " ", one.devices?.length ? [lab.t("devices"), " ", untranslated(one.devices.join(", ")), ". "] : null, one.full ? lab.t("fullSame", `${kinds[one.full].sign} ${lab.localize(kinds[one.full])}`) : null);
function image(lab, bytes, one) {
  const address = URL.createObjectURL(new Blob([bytes], { type: "image/png" }));
  lab.signal.addEventListener("abort", () => URL.revokeObjectURL(address));
  return h("a", { href: address, target: "_blank" }, h("img", { src: address, alt: lab.t("figure", lab.localize(one.claim.title)), class: "figure" }));
}

// Live parameters: a slider and a number each, a seed, and a run at toy or usual size with progress and cancel.
function livePanel(lab, { kinds }, one, language) {
  const { t } = lab, out = h("div", { id: "live-result" }), settings = {}, fields = new Map();
  const base = (parameter, size = USUAL) => parameter.defaults[size];
  for (const parameter of one.parameters) if (lab.state[`p.${parameter.name}`] !== undefined) settings[parameter.name] = Number(lab.state[`p.${parameter.name}`]);
  const setOne = (parameter, value) => { value === base(parameter) ? delete settings[parameter.name] : settings[parameter.name] = value; lab.set({ [`p.${parameter.name}`]: settings[parameter.name] ?? null }); };
  const controls = one.parameters.map(parameter => { const field = slider(lab, parameter, settings[parameter.name] ?? base(parameter), value => setOne(parameter, value)); fields.set(parameter.name, field); return field.node; });
  const seed = Number(lab.state.seed ?? 0);
  async function run(size) {
    fill(out);
    lab.set({ size });
    const answer = await withProgress(lab, out, (onProgress, signal) => lab.request("experiments/run", { name: one.name, seed: Number(lab.state.seed ?? 0), size, settings: { ...settings } }, { onProgress, signal }));
    if (!answer) return;
    const { result } = answer, judged = result.size !== TOY;
    fill(out, h("h3", {}, t("result"), " ", judged ? badge(lab, kinds, result.verdict.kind) : null), judged ? null : h("p", { class: "note" }, t("tooSmall")),
      subclaimList(lab, result.verdict.subclaims, { judged, before: one.verdict?.subclaims }), image(lab, answer.figures[language].data, one),
      h("p", { class: "soft" }, t("facts", t(`size_${result.size}`), result.seed, result.seconds, result.date.slice(0, 10)), Object.keys(result.settings).length ? [" ", t("changed"), ": ", untranslated(Object.entries(result.settings).map(([key, value]) => `${key} = ${formatBrief(value)}`).join(", "))] : null));
    lab.expose({ tried: () => result });
    lab.announce(judged ? lab.localize(kinds[result.verdict.kind]) : t("tooSmall"));
  }
  const reset = () => { for (const parameter of one.parameters) fields.get(parameter.name).set(base(parameter)), setOne(parameter, base(parameter)); };
  const start = size => lab.attempt(() => run(size), out);
  if (lab.state.size && lab.exported) start(lab.state.size);
  return h("section", { class: "card live" }, h("h2", { class: "first" }, t("live")), h("div", { class: "controls" }, controls), h("div", { class: "row" }, number(t("seed"), seed, { min: 0, max: 99999 }, value => lab.set({ seed: value })), lab.exported ? null : button(t("reset"), reset, { class: "small" })),
    lab.exported ? null : h("div", { class: "run-buttons" }, h("div", {}, button(t("runToy"), () => start(TOY), { id: "run-toy" }), h("p", { class: "soft" }, t("toyHow"))),
      h("div", {}, button(t("runUsual"), () => start(USUAL), { id: "run-usual", class: "strong" }), h("p", { class: "soft" }, one.size === USUAL ? t("usualHow", Math.max(1, Math.round(one.seconds))) : t("usualUnknown")))), out);
}
// A slider, logarithmic where the range spans more than a factor of 50, beside a field with the exact value.
function slider(lab, parameter, value, onchange) {
  const id = newId(), { low, high, multiple } = parameter, log = low > 0 && high / low > 50, steps = 1000;
  const toValue = place => log ? low * (high / low) ** (place / steps) : low + (high - low) * place / steps;
  const toPlace = held => Math.round(steps * (log ? Math.log(held / low) / Math.log(high / low) : (held - low) / (high - low)));
  const rounded = held => { const near = multiple ? Math.round(held / multiple) * multiple : Number(held.toPrecision(3)); return Math.max(low, Math.min(high, near)); };
  const range = h("input", { type: "range", class: "slider", min: 0, max: steps, value: toPlace(value), "aria-label": lab.localize(parameter.text), "aria-valuetext": String(value) });
  const field = h("input", { type: "number", id, class: "digits-field", min: low, max: high, step: multiple || "any", value, "data-parameter": parameter.name });
  const set = (held, place = toPlace(held)) => { range.value = place, range.setAttribute("aria-valuetext", String(held)), field.value = held; };
  range.addEventListener("input", () => { const held = rounded(toValue(Number(range.value))); set(held, range.value), onchange(held); });
  field.addEventListener("change", () => { const held = rounded(Number(field.value) || low); set(held), onchange(held); });
  return { set, node: h("div", { class: "course-control slider-control" }, h("label", { for: id }, lab.localize(parameter.text)), h("div", { class: "slider-line" }, range, field)) };
}

// Small pictures: the value of each sub-claim over the swept parameter, beside its threshold.
function showTurning(lab, place, one, sweep) {
  const { t } = lab;
  if (!sweep || !one.parameters) return fill(place, h("h2", { class: "first" }, t("turns")), h("p", { class: "soft" }, t("noSweep"), " ", one.parameters ? h("code", { translate: "no" }, `regard experiment sweep ${one.name} ${one.parameters[0].name} ${one.parameters[0].defaults.usual}`) : null));
  const parameter = one.parameters.find(held => held.name === sweep.parameter), criteria = one.claim.criteria;
  fill(place, h("h2", { class: "first" }, t("turns")), h("p", { class: "soft" }, t("turnsHow", lab.localize(parameter.text))),
    h("div", { class: "turn-grid" }, criteria.map((criterion, n) => h("figure", { class: "turn", "data-subclaim": criterion.name }, h("figcaption", {}, lab.localize(criterion.text)), turnPicture(lab, criterion, sweep.values, sweep.points.map(point => point.subclaims[n]), lab.localize(parameter.text))))));
  lab.expose({ sweep: () => sweep });
}
// The svg of one sub-claim over a parameter; without `xWords` a small one that has no numbers but its ends.
function turnPicture(lab, criterion, values, parts, xWords) {
  const { t } = lab, { compare, bound } = criterion, small = xWords === null, width = 300, height = small ? 84 : 170, box = small ? { left: 6, right: 6, top: 6, bottom: 18 } : { left: 46, right: 12, top: 10, bottom: 34 }, ys = parts.map(part => part.value);
  const wide = Math.min(...values) > 0 && Math.max(...values) / Math.min(...values) > 5, steep = Math.min(bound, ...ys) > 0 && Math.max(bound, ...ys) / Math.min(bound, ...ys) > 100;
  const scale = (low, high, log, from, to) => value => { const [a, b, x] = log ? [Math.log(low), Math.log(high), Math.log(value)] : [low, high, value]; return from + (to - from) * (x - a) / (b - a || 1); };
  const x = scale(Math.min(...values), Math.max(...values), wide, box.left + 8, width - box.right - 8);
  const least = Math.min(bound, ...ys), most = Math.max(bound, ...ys), room = (most - least || Math.abs(most) || 1) * 0.12, low = steep ? least / 1.6 : least - room, high = steep ? most * 1.6 : most + room;
  const y = scale(low, high, steep, height - box.bottom, box.top), edge = compare === ">=" ? [y(high), y(bound)] : [y(bound), y(low)];
  const tick = (value, at) => s("text", { x: box.left - 5, y: at + 3.5, "text-anchor": "end", class: "turn-tick" }, formatBrief(value, 2));
  return s("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": `${lab.localize(criterion.text)}. ${values.map((value, n) => t("point", formatBrief(value), formatBrief(ys[n]), t(parts[n].holds ? "holdsAt" : "failsAt"))).join("; ")}` },
    s("rect", { x: box.left, y: edge[0], width: width - box.left - box.right, height: Math.max(0, edge[1] - edge[0]), class: "turn-holds" }), s("line", { x1: box.left, x2: width - box.right, y1: y(bound), y2: y(bound), class: "turn-bound" }),
    small ? null : [tick(bound, y(bound)), [least, most].filter(value => Math.abs(y(value) - y(bound)) > 12).map(value => tick(value, y(value)))],
    s("polyline", { points: values.map((value, n) => `${x(value).toFixed(1)},${y(ys[n]).toFixed(1)}`).join(" "), class: "turn-line" }),
    values.map((value, n) => s("g", { class: parts[n].holds ? "turn-yes" : "turn-no" }, s("circle", { cx: x(value), cy: y(ys[n]), r: 4.6 }), s("title", {}, t("point", formatBrief(value), formatBrief(ys[n]), t(parts[n].holds ? "holdsAt" : "failsAt"))))),
    values.map((value, n) => n === 0 || n === values.length - 1 || (!small && values.length < 7) ? s("text", { x: x(value), y: height - box.bottom + 14, "text-anchor": small ? n ? "end" : "start" : "middle", class: "turn-tick" }, String(value)) : null),
    small ? null : s("text", { x: (box.left + width - box.right) / 2, y: height - 5, "text-anchor": "middle", class: "turn-tick" }, xWords));
}
