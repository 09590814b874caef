// Runs: training runs (live), comparison of two runs, samples.
import { bar, button, metricValue, select } from "lab/controls.js";
import { formatExact, formatPercent, formatShort, fill, untranslated, h } from "lab/dom.js";
import { saveFile, saveSvg } from "lab/export.js";
import { curves, numbersTable } from "lab/charts.js";
import { fold, stage } from "lab/stage.js";

export const name = "runs";
const COLOURS = ["var(--accent)", "var(--query)"], PALETTE = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a7a00", "#6b6b6b"], EVERY = 2000, SAMPLES = 12, RENEW = { renew: true }; // files change while a run goes on

export const text = {
  en: {
    title: "Runs", lead: "Training runs in the lab's folders, updated live. The chart shows every run that has a log; move over it to read the values at a step. Click a run in the list to see its curves, settings and predictions, and a second one to compare them.", all: "Training runs",
    look: (run, value, metric, others) => [run, ` has the best `, metric, `, `, value, `, of ${others} runs on the same data.`], lookOne: (run, value, metric) => [run, ` reached `, value, ` (`, metric, `).`], lookLoss: (run, loss, step) => [run, ` has no score yet; its training loss is ${loss} at step ${step}.`], lookFall: share => ` Nine tenths of the fall of its training loss came in the first ${share} of its steps.`, size_layers: n => `${n} layers`, size_heads: n => `${n} heads`, size_dim: n => `dim ${n}`, all_step: "training loss", axis: "Horizontal axis", axisSteps: "steps", axisShare: "share of each run", shareWords: "share of the run (%)", shown: "Curve", diverged: "diverged: the loss is not a number", atStep: n => `at step ${n}`, compare: "compare", compared: "compared", open: "open", curvesOf: "Learning curves of all runs", noCurves: "The runs found here have scores but no logs, so there are no learning curves; the list shows their scores. Runs of `regard train` have logs.", details: "Details of the chosen runs", best: "higher is better", lower: "lower is better",
    noRuns: "No training run was found. Create one with `regard train … --out runs/mine`, then start the lab with --models runs.", runName: "Run", task: "Task", main: "Validation score", step: "Step", epoch: "Epoch", state: "State", took: "Time",
    validation: "(validation)", finished: "finished", stopped: "stopped", running: "running", left: "interrupted", minutes: n => `${n} min`, seconds: n => `${n} s`,
    first: "Run", second: "Compare with", nothing: "none", curve: "Additional curve", named: name => name, noCurve: "This run has scores but no log.", loss: "training loss", stepWords: "step", dev: name => `${name}, validation`, training: name => `${name}, training`, live: (step, time) => `Live: step ${step}, updated ${time}.`, last: name => `last value, ${name}`, point: "Value at step",
    settings: "Settings", differ: "Settings that differ", setting: "Setting", same: "Both runs have the same settings.", samples: "Predictions on validation examples", samplesHow: (from, to, all) => `${from} – ${to} of ${all}`, noSamples: "This run has no saved predictions.", differing: (wrong, all) => `${wrong} of ${all} predictions differ from the reference.`, samplesShown: "Show", samplesAll: "all", samplesWrong: "those that differ", sampleInput: "input", sampleGold: "reference",
    previous: "Previous", next: "Next",
  },
  zh: {
    title: "训练运行", lead: "实验室文件夹中的训练运行，实时更新。图中是所有有日志的运行，移动鼠标可读出某一步的值。点击列表中的运行可查看它的曲线、设置和预测，再选一个可比较两者。", all: "训练运行",
    look: (run, value, metric, others) => [run, ` 在用同样数据训练的 ${others} 个运行中`, metric, `最好：`, value, `。`], lookOne: (run, value, metric) => [run, ` 达到 `, value, `（`, metric, `）。`], lookLoss: (run, loss, step) => [run, ` 还没有得分；第 ${step} 步的训练损失为 ${loss}。`], lookFall: share => `训练损失的下降有九成发生在前 ${share} 的步数里。`, size_layers: n => `${n} 层`, size_heads: n => `${n} 个头`, size_dim: n => `维数 ${n}`, all_step: "训练损失", axis: "横轴", axisSteps: "步数", axisShare: "各运行的进度", shareWords: "运行进度（%）", shown: "曲线", diverged: "已发散：损失不是有限的数", atStep: n => `第 ${n} 步`, compare: "比较", compared: "比较中", open: "打开", curvesOf: "所有运行的学习曲线", noCurves: "这里的运行只有得分，没有日志，因此没有学习曲线；列表中是它们的得分。`regard train` 的运行带有日志。", details: "所选运行的详细信息", best: "越高越好", lower: "越低越好",
    noRuns: "没有找到训练运行。用 `regard train … --out runs/mine` 创建一个，再以 --models runs 启动实验室。", runName: "训练运行", task: "任务", main: "验证集得分", step: "步", epoch: "轮", state: "状态", took: "用时",
    validation: "（验证）", finished: "已完成", stopped: "已停止", running: "进行中", left: "已中断", minutes: n => `${n} 分钟`, seconds: n => `${n} 秒`,
    first: "训练运行", second: "与之比较", nothing: "无", curve: "另一条曲线", named: name => name, noCurve: "此运行只有得分，没有日志。", loss: "训练损失", stepWords: "步", dev: name => `${name}（验证）`, training: name => `${name}（训练）`, live: (step, time) => `实时：第 ${step} 步，更新于 ${time}。`, last: name => `最后的值，${name}`, point: "查看某步的值",
    settings: "设置", differ: "不同的设置", setting: "设置", same: "两个运行的设置相同。", samples: "验证集示例上的预测", samplesHow: (from, to, all) => `第 ${from} – ${to} 条，共 ${all} 条`, noSamples: "此运行没有保存预测。", differing: (wrong, all) => `${all} 条预测中有 ${wrong} 条与参考不同。`, samplesShown: "显示", samplesAll: "全部", samplesWrong: "与参考不同的", sampleInput: "输入", sampleGold: "参考",
    previous: "上一页", next: "下一页",
  },
};

const time = (lab, seconds) => seconds >= 120 ? lab.t("minutes", Math.round(seconds / 60)) : lab.t("seconds", Math.round(seconds));
export async function show(root, lab) {
  const { t, state } = lab, [{ runs }, { curves: logs }] = await Promise.all([lab.request("runs/list", {}, RENEW), lab.request("runs/overview", {}, RENEW)]);
  lab.bar();
  if (!runs.length) { root.append(h("p", { class: "note" }, t("noRuns"))); return; }
  const one = runs.find(run => run.name === state.run) ?? runs.find(run => run.lines) ?? runs[0], two = runs.find(run => run.name === state.with && run !== one) ?? null;
  const pick = run => lab.set({ run, ...(run === state.with ? { with: null } : {}) }, { show: true, replace: false }), compare = run => lab.set({ with: run === state.with ? null : run }, { show: true, replace: false });
  const chosen = [one, two].filter(Boolean), metric = name => lab.term("metric", name), value = run => run.value === null || run.value === undefined ? "–" : h("span", { title: formatExact(run.value), "data-value": run.value, translate: "no" }, metricValue(run.main, run.value));
  // All runs in one chart, the curve of one kind at a time.
  const logged = runs.filter(run => logs[run.name]), kinds = [...new Set(logged.flatMap(run => Object.keys(logs[run.name])))];
  let kind = kinds.includes(state.shown) ? state.shown : kinds[0];
  const colours = new Map(logged.map((run, n) => [run.name, PALETTE[n % PALETTE.length]])), place = h("div", {}), list = h("div", { class: "run-list", role: "group", "aria-label": t("all") }), readings = new Map();
  const nameOf = key => key.startsWith("step.") ? t("all_step") : `${metricText(lab, key.slice(6))} ${t("validation")}`;
  const lastStep = run => logs[run.name][kind]?.steps.data.at(-1) ?? 0, lengths = logged.map(lastStep).filter(Boolean);
  let axis = state.axis ?? (Math.max(...lengths) > 4 * Math.min(...lengths) ? "share" : "steps");
  function drawAll() {
    for (const reading of readings.values()) fill(reading);
    const along = (steps, last) => axis === "share" ? Float64Array.from(steps, step => 100 * step / last) : steps, small = root.clientWidth < 560;
    const series = logged.filter(run => logs[run.name][kind]).map(run => ({ name: untranslated(run.name), run, steps: logs[run.name][kind].steps.data, xs: along(logs[run.name][kind].steps.data, lastStep(run)), ys: logs[run.name][kind].values.data, colour: colours.get(run.name), strong: chosen.includes(run) || two === null })), [low, high] = range(series.flatMap(each => Array.from(each.ys).filter(Number.isFinite)));
    const at = step => series.forEach(each => { const n = nearest(each.xs, step), reading = readings.get(each.run.name); if (reading) fill(reading, h("b", { title: formatExact(each.ys[n]) }, formatShort(each.ys[n])), " ", t("atStep", each.steps[n])); });
    fill(place, curves(lab, { title: t("curvesOf"), xWords: t(axis === "share" ? "shareWords" : "stepWords"), yWords: kind.startsWith("step.") ? t("all_step") : metricText(lab, kind.slice(6)), series, yDomain: [low, high], onPlace: at, width: small ? 420 : 900, height: small ? 300 : 400 })), at(Infinity);
  }
  const item = run => {
    const reading = h("span", { class: "at" }), here = run === one;
    readings.set(run.name, reading);
    return h("div", { class: `run-item ${chosen.includes(run) ? "chosen" : ""}` }, h("i", { style: { background: colours.get(run.name) ?? "var(--line)" } }),
      h("button", { type: "button", class: "link-button run-name", "aria-pressed": here, onclick: () => pick(run.name) }, untranslated(run.name)), h("span", { class: `chip state-${run.state}` }, t(run.state)),
      h("span", { class: "soft" }, lab.term("task", run.task), " · ", run.main ? metric(run.main) : "–", " "), h("b", {}, value(run)), h("span", {}, reading),
      run === one ? null : button(t(run === two ? "compared" : "compare"), () => compare(run.name), { class: "small", "aria-pressed": run === two }));
  };
  fill(list, runs.map(item));
  const rivals = runs.filter(run => run.main === one.main && run.task === one.task && (run === one || (one.data.length && run.data.join() === one.data.join())) && typeof run.value === "number"), lower = /loss|perplexity|error|wer|cer|bits/i.test(one.main ?? ""), winner = [...rivals].sort((a, b) => lower ? a.value - b.value : b.value - a.value)[0];
  const page = stage(lab, {
    look: winner ? [t(rivals.length > 1 ? "look" : "lookOne", untranslated(winner.name), value(winner), metric(winner.main), rivals.length), fallOf(logs[winner.name]?.["step.loss"], t)] : lossOf(logs[one.name]?.["step.loss"], one, t),
    tools: logged.length ? [kinds.length > 1 ? bar(t("shown"), kinds.map(key => [key, nameOf(key)]), kind, key => { kind = key, lab.set({ shown: key }), drawAll(); }) : null, logged.length > 1 ? bar(t("axis"), [["steps", t("axisSteps")], ["share", t("axisShare")]], axis, chosenAxis => { axis = chosenAxis, lab.set({ axis }), drawAll(); }) : null] : null,
    picture: logged.length ? place : h("p", { class: "note" }, t("noCurves")), side: [list],
  });
  root.append(page.element);
  if (logged.length) drawAll();
  const charts = h("div", {}), status = h("p", { class: "soft", role: "status" });
  const facts = h("div", {});
  root.append(h("section", { class: "card" }, h("h2", { class: "first" }, chosen.map((run, n) => [n ? " · " : "", untranslated(run.name)])), charts, status, facts));
  const held = await Promise.all(chosen.map(run => lab.request("runs/curves", { run: run.name, after: 0 }, RENEW)));
  const draw = () => drawCurves(lab, charts, chosen, held);
  draw();
  fill(facts, await settingsPart(lab, chosen)), root.append(await samplesCard(lab, chosen), runsTable(lab, runs, one, pick, metric, value));
  lab.expose({ read: () => ({ run: one.name, curves: held.map(plain), all: Object.fromEntries(Object.entries(logs).map(([name, each]) => [name, Object.keys(each)])) }),
    keep: () => runs.slice(0, KEPT).flatMap(run => [{ path: "runs/curves", body: { run: run.name, after: 0 } }, { path: "runs/about", body: { run: run.name } }, { path: "runs/samples", body: { run: run.name, start: 0, count: SAMPLES } }]) });
  if (!lab.exported && held.some(one => one.state === "running")) follow(lab, chosen, held, draw, status);
}
const KEPT = 60, MOST_OF = 0.9;
const lossOf = (curve, run, t) => curve?.values.data.length ? t("lookLoss", untranslated(run.name), formatShort(curve.values.data.at(-1)), curve.steps.data.at(-1)) : null;
// When most of the fall of a curve had happened: "… in the first 8 % of its steps".
function fallOf(curve, t) {
  const losses = Array.from(curve?.values.data ?? []), least = Math.min(...losses), at = losses.findIndex(loss => loss <= losses[0] - MOST_OF * (losses[0] - least));
  return losses.length < 10 || !(least < losses[0]) ? "" : t("lookFall", formatPercent(curve.steps.data[at] / curve.steps.data.at(-1), 0));
}
// A metric's name as plain text.
const metricText = (lab, name) => { const words = lab.term("metric", name); return typeof words === "string" ? words : lab.t("named", name); };
function runsTable(lab, runs, one, pick, metric, value) {
  const { t } = lab, sizes = run => [run.model && untranslated(run.model), ...Object.entries(run.sizes).map(([key, value]) => t(`size_${key}`, value))].filter(Boolean).flatMap((part, n) => n ? [" · ", part] : part);
  return h("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": t("all") }, h("table", { class: "numbers runs" }, h("thead", {}, h("tr", {}, ["runName", "task", "model", "main", "step", "epoch", "took", "state"].map(key => h("th", { scope: "col" }, t(key))))),
    h("tbody", {}, runs.map(run => h("tr", {}, h("td", {}, h("button", { type: "button", class: "beam-text", "aria-pressed": run === one, translate: "no", onclick: () => pick(run.name) }, run.name)), h("td", {}, lab.term("task", run.task ?? "–")), h("td", {}, sizes(run)),
      h("td", {}, run.main ? [metric(run.main), " ", value(run)] : "–"), h("td", { class: "number" }, run.step ?? "–"), h("td", { class: "number" }, run.epoch ?? "–"), h("td", { class: "number" }, run.lines ? time(lab, run.seconds) : "–"), h("td", { class: `state-${run.state}` }, t(run.state)))))));
}
const plain = held => Object.fromEntries(["step", "score"].map(kind => [kind, Object.fromEntries(Object.entries(held[kind]).map(([name, one]) => [name, { steps: Array.from(one.steps.data), values: Array.from(one.values.data) }]))]));
// Polls the logs every two seconds while one of the runs is in progress.
function follow(lab, chosen, held, draw, status) {
  let busy = false;
  const timer = setInterval(async () => {
    if (busy || document.hidden) return;
    busy = true;
    const more = await Promise.all(chosen.map((run, n) => lab.request("runs/curves", { run: run.name, after: held[n].lines }, { keep: false }).catch(() => null)));
    busy = false;
    if (lab.signal.aborted) return;
    more.forEach((one, n) => { if (one) held[n] = one.anew ? one : joined(held[n], one); });
    draw();
    const steps = held.map(one => one.step.loss?.steps.data.at(-1) ?? 0);
    fill(status, lab.t("live", Math.max(...steps), new Date().toLocaleTimeString(lab.language === "zh" ? "zh-CN" : "en-GB")));
    if (!held.some(one => one.state === "running")) clearInterval(timer);
  }, EVERY);
  lab.signal.addEventListener("abort", () => clearInterval(timer));
}
function joined(old, more) {
  const both = (a, b) => ({ data: (a?.data.constructor ?? b.data.constructor).from([...(a?.data ?? []), ...b.data]) });
  const kinds = Object.fromEntries(["step", "score"].map(kind => [kind, { ...old[kind], ...Object.fromEntries(Object.entries(more[kind]).map(([name, one]) => [name, { steps: both(old[kind][name]?.steps, one.steps), values: both(old[kind][name]?.values, one.values) }])) }]));
  return { ...more, ...kinds };
}
function drawCurves(lab, place, chosen, held) {
  const { t } = lab, named = [...new Set(held.flatMap(one => [...Object.keys(one.step).map(name => `step.${name}`), ...Object.keys(one.score).map(name => `score.${name}`)]))];
  const words = key => { const [kind, name] = key.split(/\.(.*)/s); return key === "step.loss" ? t("loss") : t(kind === "score" ? "dev" : "training", metricText(lab, name)); };
  const main = `score.${chosen[0].main}`, usual = [...new Set(["step.loss", named.includes(main) ? main : named.find(key => key.startsWith("score.")), named.find(key => key.startsWith("score.") && key !== main)])].filter(Boolean), extra = named.includes(lab.state.curve) && !usual.includes(lab.state.curve) ? [lab.state.curve] : [];
  if (!named.length) return fill(place, h("p", { class: "soft" }, t("noCurve")));
  const chart = key => {
    const [kind, name] = key.split(/\.(.*)/s), readout = h("p", { class: "soft", translate: "no" }), series = held.map((one, n) => ({ one: one[kind][name], name: chosen[n].name, colour: COLOURS[n] })).filter(({ one }) => one?.steps.data.length).map(({ one, ...rest }) => ({ ...rest, xs: one.steps.data, ys: one.values.data }));
    if (!series.length) return null;
    const read = step => fill(readout, series.map(one => { const n = nearest(one.xs, step); return `${one.name}: ${one.xs[n]} → ${formatShort(one.ys[n])}   `; }));
    read(Infinity);
    const [low, high] = range(series.flatMap(one => Array.from(one.ys)));
    return h("div", { "data-curve": key }, curves(lab, { title: words(key), xWords: t("stepWords"), yWords: metricText(lab, name), series: series.map(one => ({ ...one, name: untranslated(one.name) })), yDomain: [low, high], onPlace: read, width: 420, height: 210 }), h("div", { class: "row curve-foot" }, readout, h("div", { class: "files" },
      button(t("svg"), event => saveSvg(event.target.closest("[data-curve]").querySelector("svg"), name), { class: "small", title: t("fileTip", t("svg")) }), button(t("csv"), () => saveFile(`${name}.csv`, `\ufeffrun,step,${name}\r\n${series.flatMap(one => Array.from(one.xs, (x, n) => `${one.name},${x},${one.ys[n]}\r\n`)).join("")}`, "text/csv"), { class: "small", title: t("fileTip", t("csv")) }))));
  };
  const others = named.filter(key => !usual.includes(key));
  fill(place, h("div", { class: "columns spaced run-curves" }, [...usual, ...extra].map(chart)), others.length ? h("div", { class: "row run-more" }, select(t("curve"), [["", t("nothing")], ...others.map(key => [key, words(key)])], extra[0] ?? "", key => { lab.set({ curve: key || null }), drawCurves(lab, place, chosen, held); }, { plain: true })) : null);
}
const range = values => { const low = Math.min(...values), high = Math.max(...values), room = (high - low || Math.abs(high) || 1) * 0.05; return [low - room, high + room]; };
function nearest(xs, at) { let best = 0; for (let n = 0; n < xs.length; n++) if (Math.abs(xs[n] - at) <= Math.abs(xs[best] - at) || at === Infinity) best = n; return best; }
async function settingsPart(lab, chosen) {
  const { t } = lab, about = await Promise.all(chosen.map(run => lab.request("runs/about", { run: run.name }, RENEW))), keys = [...new Set(about.flatMap(one => Object.keys(one.settings)))], show = value => value === undefined ? "–" : JSON.stringify(value);
  const differ = keys.filter(key => new Set(about.map(one => show(one.settings[key]))).size > 1), table = (caption, listed, folded) => numbersTable(lab, { caption, folded, columns: [t("setting"), ...chosen.map(run => untranslated(run.name))], rows: listed.map(key => [key, ...about.map(one => show(one.settings[key]))]) });
  return h("div", {}, chosen.length > 1 ? [h("h2", {}, t("differ")), differ.length ? table("", differ, false) : h("p", { class: "soft" }, t("same"))] : null, table(t("settings"), keys, true));
}
// Predictions with their inputs and references; those that differ are marked, and can be shown alone.
async function samplesCard(lab, chosen) {
  const { t } = lab, place = h("div", {}), count = h("p", { class: "soft" });
  let errors = lab.state.errors === "1" && chosen.length === 1;
  async function page(start) {
    const found = await Promise.all(chosen.map(run => lab.request("runs/samples", { run: run.name, start, count: SAMPLES, ...(errors ? { errors: true } : {}) }, RENEW))), all = Math.max(...found.map(one => one.total)), [first] = found, known = first.samples.some(one => one.input !== null), gold = first.samples.some(one => one.gold !== null);
    if (!all) return fill(place, h("p", { class: "soft" }, t("noSamples")));
    const tagged = gold && first.samples.every(one => aligned(one)), turn = (words, to, off) => button(words, () => lab.attempt(() => page(to), place), { class: "small", disabled: off });
    fill(count, chosen.length === 1 && first.wrong !== null ? t("differing", first.wrong, first.all) : "");
    fill(place, h("div", { class: "row sample-tools" }, chosen.length === 1 && first.wrong ? bar(t("samplesShown"), [["", t("samplesAll")], ["1", t("samplesWrong")]], errors ? "1" : "", value => { errors = value === "1", lab.set({ errors: value || null }), lab.attempt(() => page(0), place); }) : null, turn(t("previous"), Math.max(0, start - SAMPLES), start === 0), h("span", { class: "soft" }, t("samplesHow", start + 1, Math.min(all, start + SAMPLES), all)), turn(t("next"), start + SAMPLES, start + SAMPLES >= all)),
      h("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": t("samples") }, h("table", { class: "numbers samples" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, t("number")), known && !tagged ? h("th", { scope: "col" }, t("sampleInput")) : null, gold && !tagged ? h("th", { scope: "col" }, t("sampleGold")) : null, chosen.map(run => h("th", { scope: "col" }, untranslated(run.name))))),
        h("tbody", {}, first.samples.map((one, n) => h("tr", {}, h("td", { class: "at" }, one.number + 1), known && !tagged ? h("td", { translate: "no" }, one.input) : null, gold && !tagged ? h("td", { translate: "no" }, one.gold) : null,
          found.map(other => { const held = other.samples[n]; return h("td", { translate: "no", class: held && held.gold !== null && held.gold !== held.prediction && !aligned(held) ? "turned" : null }, held ? aligned(held) ? tags(held) : held.prediction : "–"); })))))));
  }
  await page(0);
  return h("section", { class: "card" }, h("h2", { class: "first" }, t("samples")), count, place);
}
// Whether prediction and reference are the same words with tags, "the/DET dog/NOUN".
function aligned({ gold, prediction }) {
  const [a, b] = [gold, prediction].map(words => words?.split(" ") ?? []), word = pair => pair.slice(0, pair.lastIndexOf("/"));
  return a.length > 0 && a.length === b.length && a.every((pair, n) => pair.includes("/") && word(pair) === word(b[n]));
}
const tags = ({ gold, prediction }) => prediction.split(" ").map((pair, n) => {
  const cut = pair.lastIndexOf("/"), word = pair.slice(0, cut), tag = pair.slice(cut + 1), right = gold.split(" ")[n].slice(cut + 1);
  return [h("span", { class: tag === right ? "tagged" : "tagged wrong-tag", "data-wrong": tag === right ? null : "" }, word, h("sub", {}, tag === right ? tag : [h("s", {}, tag), ` ${right}`])), " "];
});
