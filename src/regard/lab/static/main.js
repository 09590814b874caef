// The shell: which page is shown, its state in the address, language and theme, and what every page is given.
import { Asker, Refused, stable } from "lab/ask.js";
import { fill, given, h, s } from "lab/dom.js";
import { saveView } from "lab/export.js";
import { text as shared } from "lab/words.js";

const GROUPS = {
  inside: ["formula", "heads", "alignment", "honest"],
  inputs: ["image", "sound", "graph"],
  build: ["mechanisms", "long", "runs"],
};
const PAGES = Object.values(GROUPS).flat(), MOST_ASKS = 250;
const at = id => document.getElementById(id);
const root = document.documentElement;
const recorded = at("recorded") ? JSON.parse(at("recorded").textContent) : null;
const asker = new Asker(recorded);

// Settings that outlive a page; a browser that keeps nothing still works.
const remembered = {
  get(name) { try { return localStorage.getItem(name); } catch { return null; } },
  set(name, value) { try { localStorage.setItem(name, value); } catch { /* a private window */ } },
};

// The address: #page?key=value&…
function readAddress() {
  const [page, query = ""] = location.hash.slice(1).split(/\?(.*)/s);
  if (!page && recorded) { const { page: kept, ...state } = recorded.state; return { page: kept, state }; }
  return { page: page || "heads", state: Object.fromEntries(new URLSearchParams(query)) };
}
function writeAddress(page, state, replace) {
  const query = new URLSearchParams(Object.entries(state).filter(([, value]) => value !== null && value !== undefined && value !== "")).toString();
  const address = `#${page}${query ? `?${query}` : ""}`;
  if (address === location.hash) return;
  // a page inside a frame without an address of its own keeps its state in memory alone
  try { history[replace ? "replaceState" : "pushState"](null, "", address); } catch { /* srcdoc */ }
}

const now = { page: "", state: {}, controller: new AbortController(), turn: 0, busy: 0, mark: 0, exposed: {} };
const things = { models: recorded?.models ?? null, examples: recorded?.examples ?? null };

const language = () => now.state.lang ?? remembered.get("regard.lang") ?? (/^zh/i.test(navigator.language) ? "zh" : "en");
const theme = () => now.state.theme ?? remembered.get("regard.theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

// A word by its key: the page's own text first, then the shared one. "xx" marks what went through here, for a test.
function translator(own) {
  const chosen = language(), tongue = chosen === "xx" ? "en" : chosen;
  return (key, ...args) => {
    const held = own?.[tongue]?.[key] ?? shared[tongue]?.[key];
    if (held === undefined) console.error(`No text for ${key} in ${tongue}`);
    const words = typeof held === "function" ? held(...args) : String(held ?? key);
    return chosen === "xx" ? `⟦${words}⟧` : words;
  };
}
// A text that the server gives in both languages.
const say = words => {
  if (words === null || typeof words !== "object") return String(words ?? "");
  return language() === "xx" ? `⟦${words.en}⟧` : words[language()] ?? words.en;
};

function makeLab(own, turn, mark) {
  const t = translator(own), { signal } = now.controller;
  return {
    page: now.page, state: now.state, language: language(), exported: recorded !== null, models: things.models ?? [], examples: things.examples ?? [], signal, t, say,
    set(changes, { replace = true, show = false } = {}) {
      if (turn !== now.turn) return;
      for (const [key, value] of Object.entries(changes)) value === null || value === undefined ? delete now.state[key] : now.state[key] = String(value);
      writeAddress(now.page, now.state, replace);
      if (show) open();
    },
    async ask(path, body, options = {}) {
      busy(1);
      const stop = options.signal ? AbortSignal.any([signal, options.signal]) : signal;
      try { return await asker.ask(path, body, { ...options, signal: stop }); } finally { busy(-1); }
    },
    // `latest()` gives an ask of its own that drops the question before it: for what follows the pointer.
    latest() {
      let last = null;
      return (path, body, options = {}) => {
        last?.abort();
        last = new AbortController();
        return this.ask(path, body, { ...options, signal: last.signal });
      };
    },
    expose(hooks) { Object.assign(now.exposed, hooks); },
    say_aloud(words) { at("spoken").textContent = words; },
    asks: () => asker.asks(mark), received: () => asker.received,
    // Runs a job of the page's own and shows its failure where the page is, not in the console.
    async attempt(work, place = at("main")) {
      try { return await work(); } catch (error) { if (turn === now.turn) showError(error, place, t); }
      return undefined;
    },
    save: () => save(t),
  };
}
function busy(step) {
  now.busy += step;
  root.dataset.busy = now.busy > 0 ? "yes" : "no";
}

function errorBox(error, t) {
  const lines = error instanceof Refused
    ? error.status === 410 ? [t("notKept")] : [t("serverSays"), given(error.message, { class: "said" })]
    : error instanceof TypeError && /fetch/i.test(error.message) ? [t("gone")] : [t("failed"), given(error.message, { class: "said" })];
  return h("div", { class: "error", role: "alert" }, lines.map(line => h("p", {}, line)));
}
function showError(error, place, t) {
  if (error?.name === "AbortError") return;
  if (!(error instanceof Refused)) console.warn(error);
  place.querySelector(":scope > .error")?.remove();
  place.prepend(errorBox(error, t));
}

async function getJson(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Refused((await response.json().catch(() => ({ error: response.statusText }))).error, response.status);
  return response.json();
}

// Shows the page that the address names, anew.
async function open() {
  const { page, state } = readAddress();
  if (location.hash || !now.page || recorded === null) now.page = page, now.state = state;
  const turn = ++now.turn, main = at("main");
  now.controller.abort(), now.controller = new AbortController(), now.exposed = {};
  if (now.state.lang) remembered.set("regard.lang", now.state.lang);
  if (now.state.theme) remembered.set("regard.theme", now.state.theme);
  root.lang = language() === "zh" ? "zh-CN" : "en", root.dataset.theme = theme();
  delete main.dataset.ready;
  let t = translator(null);
  showShell(t, null);
  fill(main, h("p", { class: "soft loading" }, t("loading")));
  busy(1);
  try {
    if (!PAGES.includes(now.page)) throw new Refused(t("pageMissing", now.page), 404);
    things.models ??= await getJson("/api/models");
    things.examples ??= await getJson("/api/examples").catch(() => []);
    const module = await import(`lab/pages/${now.page}.js`);
    if (turn !== now.turn) return;
    t = translator(module.text);
    showShell(t, module);
    const lab = makeLab(module.text, turn, asker.answered), started = performance.now();
    now.lab = lab, now.module = module;
    fill(main);
    if (recorded) main.append(h("p", { class: "note" }, t("exportedNote")));
    await module.show(main, lab);
    now.took = performance.now() - started;
  } catch (error) {
    if (turn === now.turn && error?.name !== "AbortError") { if (!main.querySelector("*:not(.loading)")) fill(main); showError(error, main, t); }
  } finally {
    busy(-1);
    if (turn === now.turn) main.dataset.ready = now.page;
  }
}

// Pages that read a sentence hand it on to each other.
const SENTENCES = ["formula", "heads", "honest"];
function link(page, t) {
  const { lang, theme, model, text } = now.state, both = [page, now.page].every(one => SENTENCES.includes(one));
  const kept = Object.entries({ lang, theme, ...(both ? { model, text } : {}) }).filter(([, value]) => value);
  const query = kept.length ? `?${new URLSearchParams(kept)}` : "";
  return h("a", { href: `#${page}${query}`, "aria-current": page === now.page ? "page" : null }, t(`page_${page}`));
}
function showShell(own, module) {
  const t = translator(null);
  document.title = `${t("page_" + (PAGES.includes(now.page) ? now.page : "heads"))} · Regard`;
  at("skip").textContent = t("skip");
  const list = Object.entries(GROUPS).map(([group, pages]) => h("div", { class: "group" },
    h("p", { class: "group-name" }, t(`group_${group}`)), h("ul", {}, pages.map(page => h("li", {}, link(page, t))))));
  const nav = at("nav"), scrolled = nav.querySelector(".groups")?.scrollLeft ?? 0;
  nav.setAttribute("aria-label", t("pages"));
  fill(nav, h("p", { class: "brand" }, logo(), h("span", {}, h("b", { translate: "no" }, "Regard"), h("span", { class: "tagline" }, t("tagline")))),
    recorded ? null : h("div", { class: "groups" }, list));
  const groups = nav.querySelector(".groups"), here = nav.querySelector("[aria-current]");
  if (groups && here) groups.scrollLeft = here.offsetLeft < scrolled || here.offsetLeft + here.offsetWidth > scrolled + groups.clientWidth ? here.offsetLeft - 40 : scrolled;
  const title = module ? own("title") : t(`page_${PAGES.includes(now.page) ? now.page : "heads"}`);
  fill(at("top"), h("div", { class: "titles" }, h("h1", {}, title), module && h("p", { class: "lead" }, own("lead"))),
    h("div", { class: "actions" },
      h("button", { type: "button", id: "language", onclick: () => change({ lang: language() === "zh" ? "en" : "zh" }) }, t("other")),
      h("button", { type: "button", id: "theme", "aria-label": t("theme"), title: t("theme"), onclick: () => change({ theme: theme() === "dark" ? "light" : "dark" }) },
        themeSign()),
      recorded ? null : h("button", { type: "button", id: "save", class: "strong", title: t("saveTip"), onclick: () => save(t) }, t("save"))));
  fill(at("foot"), h("p", {}, t("foot")));
}
const themeSign = () => s("svg", { viewBox: "0 0 16 16", width: 15, height: 15, "aria-hidden": "true" },
  s("circle", { cx: 8, cy: 8, r: 6.2, fill: "none", stroke: "currentColor", "stroke-width": 1.6 }),
  s("path", { d: "M8 1.8a6.2 6.2 0 0 1 0 12.4z", fill: "currentColor" }));
function logo() {
  const lines = [[4, 4, 1], [4, 13, 0.35],
    [4, 22, 0.15]].map(([y, to, opacity]) => s("path",
      { d: `M5 13C13 13 13 ${to} 21 ${to}`, fill: "none", stroke: "currentColor", "stroke-width": 2 + opacity * 2, opacity, y }));
  return s("svg", { viewBox: "0 0 26 26", width: 26, height: 26, class: "logo", "aria-hidden": "true" }, lines,
    s("circle", { cx: 4, cy: 13, r: 3, fill: "currentColor" }), [4, 13, 22].map(y => s("circle", { cx: 22, cy: y, r: 2.4, fill: "currentColor" })));
}
function change(changes) {
  Object.assign(now.state, changes);
  writeAddress(now.page, now.state, true);
  if (changes.lang) remembered.set("regard.lang", changes.lang);
  if (changes.theme) remembered.set("regard.theme", changes.theme);
  open();
}
async function save(t) {
  const button = at("save");
  button.disabled = true, at("spoken").textContent = t("saving");
  try {
    const extra = (await now.module?.keep?.(now.lab)) ?? [];
    // each question once; of very many, those asked last
    const asks = [...new Map([...extra, ...now.lab.asks()].map(ask => [`${ask.path} ${stable(ask.body)}`, ask])).values()].slice(-MOST_ASKS);
    await saveView({ page: now.page, ...now.state, lang: language(), theme: theme() }, asks);
    at("spoken").textContent = t("saved");
  } catch (error) { showError(error, at("main"), t); }
  button.disabled = false;
}

// For tests and for curious people: read-only.
window.lab = {
  cell: (i, j) => now.exposed.cell?.(i, j),
    read: () => ({ page: now.page, state: { ...now.state }, took: now.took, received: asker.received, ...now.exposed.read?.() }),
  part: (name, ...args) => now.exposed[name]?.(...args),
};
addEventListener("hashchange", open);
open();
