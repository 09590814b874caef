// Runs: training runs (live), comparison of two runs, samples.
import { button, select } from "lab/controls.js";
import { formatBrief, formatExact, fill, untranslated, h } from "lab/dom.js";
import { saveFile, saveSvg } from "lab/export.js";
import { curves, numbersTable } from "lab/charts.js";

export const name = "runs";
const COLOURS = ["var(--accent)", "var(--query)"], EVERY = 2000, SAMPLES = 12;

export const text = {
  en: {
    title: "Runs", lead: "Training runs in the lab's folders, updated live.", all: "Training runs",
    noRuns: "No training run was found. Create one with `regard train … --out runs/mine`, then start the lab with --models runs.", runName: "Run", task: "Task", main: "Validation score", step: "Step", epoch: "Epoch", state: "State", took: "Time",
    finished: "finished", stopped: "stopped", running: "running", left: "interrupted", minutes: n => `${n} min`, seconds: n => `${n} s`,
    first: "Run", second: "Compare with", nothing: "none", curve: "Additional curve", named: name => name, noCurve: "This run has scores but no log.", loss: "training loss", stepWords: "step", dev: name => `${name}, validation`, training: name => `${name}, training`, live: (step, time) => `Live: step ${step}, updated ${time}.`, last: name => `last value, ${name}`, point: "Value at step",
    settings: "Settings", differ: "Settings that differ", setting: "Setting", same: "Both runs have the same settings.", samples: "Predictions on validation examples", samplesHow: (from, to, all) => `${from} – ${to} of ${all}`, noSamples: "This run has no saved predictions.",
    previous: "Previous", next: "Next",
  },
  zh: {
    title: "训练运行", lead: "实验室文件夹中的训练运行，实时更新。", all: "训练运行",
    noRuns: "没有找到训练运行。用 `regard train … --out runs/mine` 创建一个，再以 --models runs 启动实验室。", runName: "训练运行", task: "任务", main: "验证集得分", step: "步", epoch: "轮", state: "状态", took: "用时",
    finished: "已完成", stopped: "已停止", running: "进行中", left: "已中断", minutes: n => `${n} 分钟`, seconds: n => `${n} 秒`,
    first: "训练运行", second: "与之比较", nothing: "无", curve: "另一条曲线", named: name => name, noCurve: "此运行只有得分，没有日志。", loss: "训练损失", stepWords: "步", dev: name => `${name}（验证）`, training: name => `${name}（训练）`, live: (step, time) => `实时：第 ${step} 步，更新于 ${time}。`, last: name => `最后的值，${name}`, point: "查看某步的值",
    settings: "设置", differ: "不同的设置", setting: "设置", same: "两个运行的设置相同。", samples: "验证集示例上的预测", samplesHow: (from, to, all) => `第 ${from} – ${to} 条，共 ${all} 条`, noSamples: "此运行没有保存预测。",
    previous: "上一页", next: "下一页",
  },
};

const time = (lab, seconds) => seconds >= 120 ? lab.t("minutes", Math.round(seconds / 60)) : lab.t("seconds", Math.round(seconds));
export async function show(root, lab) {
  const { t, state } = lab, { runs } = await lab.request("runs/list", {}, { keep: true });
  if (!runs.length) { root.append(h("p", { class: "note" }, t("noRuns"))); return; }
  const one = runs.find(run => run.name === state.run) ?? runs.find(run => run.lines) ?? runs[0], two = runs.find(run => run.name === state.with && run !== one) ?? null;
  const pick = run => lab.set({ run }, { show: true, replace: false });
  root.append(h("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": t("all") }, h("table", { class: "numbers runs" }, h("thead", {}, h("tr", {}, ["runName", "task", "model", "main", "step", "epoch", "took", "state"].map(key => h("th", { scope: "col" }, t(key))))),
    h("tbody", {}, runs.map(run => h("tr", {}, h("td", {}, h("button", { type: "button", class: "beam-text", "aria-pressed": run === one, translate: "no", onclick: () => pick(run.name) }, run.name)), h("td", { translate: "no" }, run.task ?? "–"), h("td", { translate: "no" }, [run.model, ...Object.entries(run.sizes).map(([key, value]) => `${key} ${value}`)].filter(Boolean).join(" · ")),
      h("td", { translate: "no" }, run.value === null || run.value === undefined ? "–" : `${run.main} ${formatBrief(run.value)}`), h("td", { class: "number" }, run.step ?? "–"), h("td", { class: "number" }, run.epoch ?? "–"), h("td", { class: "number" }, run.lines ? time(lab, run.seconds) : "–"), h("td", { class: `state-${run.state}` }, t(run.state))))))));
  root.append(h("div", { class: "row" }, select(t("first"), runs.map(run => [run.name, run.name]), one.name, pick, { plain: true }), select(t("second"), [["", t("nothing")], ...runs.filter(run => run !== one).map(run => [run.name, run.name])], two?.name ?? "", name => lab.set({ with: name || null }, { show: true, replace: false }), { plain: true })));
  const chosen = [one, two].filter(Boolean), charts = h("div", {}), status = h("p", { class: "soft", role: "status" });
  root.append(h("section", { class: "card" }, charts, status));
  const held = await Promise.all(chosen.map(run => lab.request("runs/curves", { run: run.name, after: 0 })));
  const draw = () => drawCurves(lab, charts, chosen, held);
  draw();
  root.append(await settingsCard(lab, chosen), await samplesCard(lab, chosen));
  lab.expose({ read: () => ({ run: one.name, curves: held.map(plain) }) });
  if (!lab.exported && held.some(one => one.state === "running")) follow(lab, chosen, held, draw, status);
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
  const words = key => { const [kind, name] = key.split(/\.(.*)/s); return key === "step.loss" ? t("loss") : t(kind === "score" ? "dev" : "training", name); };
  const main = `score.${chosen[0].main}`, usual = ["step.loss", named.includes(main) ? main : named.find(key => key.startsWith("score."))].filter(Boolean), extra = named.includes(lab.state.curve) && !usual.includes(lab.state.curve) ? [lab.state.curve] : [];
  if (!named.length) return fill(place, h("p", { class: "soft" }, t("noCurve")));
  const chart = key => {
    const [kind, name] = key.split(/\.(.*)/s), readout = h("p", { class: "soft", translate: "no" }), series = held.map((one, n) => ({ one: one[kind][name], name: chosen[n].name, colour: COLOURS[n] })).filter(({ one }) => one?.steps.data.length).map(({ one, ...rest }) => ({ ...rest, xs: one.steps.data, ys: one.values.data }));
    if (!series.length) return null;
    const read = step => fill(readout, series.map(one => { const n = nearest(one.xs, step); return `${one.name}: ${one.xs[n]} → ${formatExact(one.ys[n])}   `; }));
    read(Infinity);
    const [low, high] = range(series.flatMap(one => Array.from(one.ys)));
    return h("div", { "data-curve": key }, curves(lab, { title: words(key), xWords: t("stepWords"), yWords: t("named", name), series: series.map(one => ({ ...one, name: untranslated(one.name) })), yDomain: [low, high], onPlace: read, width: 520, height: 230 }), h("div", { class: "row curve-foot" }, readout, h("div", { class: "files" },
      button(t("svg"), event => saveSvg(event.target.closest("[data-curve]").querySelector("svg"), name), { class: "small", title: t("fileTip", t("svg")) }), button(t("csv"), () => saveFile(`${name}.csv`, `\ufeffrun,step,${name}\r\n${series.flatMap(one => Array.from(one.xs, (x, n) => `${one.name},${x},${one.ys[n]}\r\n`)).join("")}`, "text/csv"), { class: "small", title: t("fileTip", t("csv")) }))));
  };
  fill(place, h("div", { class: "row" }, select(t("curve"), [["", t("nothing")], ...named.filter(key => !usual.includes(key)).map(key => [key, words(key)])], extra[0] ?? "", key => { lab.set({ curve: key || null }), drawCurves(lab, place, chosen, held); }, { plain: true })), h("div", { class: "columns spaced" }, [...usual, ...extra].map(chart)));
}
const range = values => { const low = Math.min(...values), high = Math.max(...values), room = (high - low || Math.abs(high) || 1) * 0.05; return [low - room, high + room]; };
function nearest(xs, at) { let best = 0; for (let n = 0; n < xs.length; n++) if (Math.abs(xs[n] - at) <= Math.abs(xs[best] - at) || at === Infinity) best = n; return best; }
async function settingsCard(lab, chosen) {
  const { t } = lab, about = await Promise.all(chosen.map(run => lab.request("runs/about", { run: run.name }))), keys = [...new Set(about.flatMap(one => Object.keys(one.settings)))], show = value => value === undefined ? "–" : JSON.stringify(value);
  const differ = keys.filter(key => new Set(about.map(one => show(one.settings[key]))).size > 1), table = (caption, listed, folded) => numbersTable(lab, { caption, folded, columns: [t("setting"), ...chosen.map(run => untranslated(run.name))], rows: listed.map(key => [key, ...about.map(one => show(one.settings[key]))]) });
  return h("section", { class: "card" }, chosen.length > 1 ? [h("h2", { class: "first" }, t("differ")), differ.length ? table("", differ, false) : h("p", { class: "soft" }, t("same"))] : null, table(t("settings"), keys, true));
}
async function samplesCard(lab, chosen) {
  const { t } = lab, place = h("div", {});
  async function page(start) {
    const found = await Promise.all(chosen.map(run => lab.request("runs/samples", { run: run.name, start, count: SAMPLES }))), all = Math.max(...found.map(one => one.total));
    if (!all) return fill(place, h("p", { class: "soft" }, t("noSamples")));
    fill(place, h("div", { class: "row" }, button(t("previous"), () => lab.attempt(() => page(Math.max(0, start - SAMPLES)), place), { class: "small", disabled: start === 0 }), h("span", { class: "soft" }, t("samplesHow", start + 1, Math.min(all, start + SAMPLES), all)), button(t("next"), () => lab.attempt(() => page(start + SAMPLES), place), { class: "small", disabled: start + SAMPLES >= all })),
      numbersTable(lab, { caption: "", columns: ["", ...chosen.map(run => untranslated(run.name))], rows: Array.from({ length: Math.min(SAMPLES, all - start) }, (_, n) => [String(start + n + 1), ...found.map(one => one.said[n] ?? "–")]) }));
  }
  await page(0);
  return h("section", { class: "card" }, h("h2", { class: "first" }, t("samples")), place);
}
