// The shell: routing, state in the URL, language and theme, and the `lab` object that every page receives.
import { Client, RequestError, errorOf } from "lab/client.js";
import { fill, untranslated, h, s } from "lab/dom.js";
import { popover } from "lab/controls.js";
import { saveView } from "lab/export.js";
import { text as shared } from "lab/translations.js";

const GROUPS = {
  learn: ["course", "experiments"],
  inside: ["formula", "heads", "compare", "alignment", "honest"],
  inputs: ["image", "sound", "graph"],
  build: ["mechanisms", "long", "runs"],
};
const PAGES = Object.values(GROUPS).flat(), MAX_REQUESTS = 250;
const at = id => document.getElementById(id);
const root = document.documentElement;
const recorded = at("recorded") ? JSON.parse(at("recorded").textContent) : null;
const client = new Client(recorded);

// Persistent settings; works without local storage too.
const storage = {
  get(name) { try { return localStorage.getItem(name); } catch { return null; } },
  set(name, value) { try { localStorage.setItem(name, value); } catch { /* a private window */ } },
};

// The URL: #page?key=value&…
function readAddress() {
  const [page, query = ""] = location.hash.slice(1).split(/\?(.*)/s);
  if (!page && recorded) { const { page: kept, ...state } = recorded.state; return { page: kept, state }; }
  return { page: page || "course", state: Object.fromEntries(new URLSearchParams(query)) };
}
function writeAddress(page, state, replace) {
  const query = new URLSearchParams(Object.entries(state).filter(([, value]) => value !== null && value !== undefined && value !== "")).toString();
  const address = `#${page}${query ? `?${query}` : ""}`;
  if (address === location.hash) return;
  // a page in a frame without its own URL keeps its state in memory only
  try { history[replace ? "replaceState" : "pushState"](null, "", address); } catch { /* srcdoc */ }
}

const current = { page: "", state: {}, controller: new AbortController(), turn: 0, busy: 0, mark: 0, exposed: {}, lit: null, listeners: [], focused: null };
const lists = { models: recorded?.models ?? null, examples: recorded?.examples ?? null };

const language = () => current.state.lang ?? storage.get("regard.lang") ?? (/^zh/i.test(navigator.language) ? "zh" : "en");
const theme = () => current.state.theme ?? storage.get("regard.theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

// A text by its key: the page's own first, then the shared one. The language "xx" marks translated texts, for a test.
function translator(own) {
  const chosen = language(), locale = chosen === "xx" ? "en" : chosen;
  return (key, ...args) => {
    const held = own?.[locale]?.[key] ?? shared[locale]?.[key];
    if (held === undefined) console.error(`No text for ${key} in ${locale}`);
    const words = typeof held === "function" ? held(...args) : String(held ?? key);
    return chosen === "xx" ? `⟦${words}⟧` : words;
  };
}
// A text of the server, which sends both languages.
const localize = words => {
  if (words === null || typeof words !== "object") return String(words ?? "");
  return quoted(language() === "xx" ? `⟦${words.en}⟧` : words[language()] ?? words.en);
};
// Words that a text mentions, *it*, stand in quotation marks.
const quoted = words => String(words).replace(/(?<![\w*])\*([^\s*][^*]*)\*(?![\w*])/g, "“$1”");

function makeLab(own, turn, mark) {
  const t = translator(own), { signal } = current.controller;
  return {
    page: current.page, pages: PAGES, state: current.state, language: language(), exported: recorded !== null, models: lists.models ?? [], examples: lists.examples ?? [], signal, t, localize,
    set(changes, { replace = true, show = false } = {}) {
      if (turn !== current.turn) return;
      for (const [key, value] of Object.entries(changes)) value === null || value === undefined ? delete current.state[key] : current.state[key] = String(value);
      writeAddress(current.page, current.state, replace);
      if (show) open();
    },
    async request(path, body, options = {}) {
      busy(1);
      const stop = options.signal ? AbortSignal.any([signal, options.signal]) : signal;
      try { return await client.request(path, body, { ...options, signal: stop }); } finally { busy(-1); }
    },
    // A request function that cancels its previous request, for requests that follow the pointer.
    latestRequest() {
      let last = null;
      return (path, body, options = {}) => {
        last?.abort();
        last = new AbortController();
        return this.request(path, body, { ...options, signal: options.signal ? AbortSignal.any([last.signal, options.signal]) : last.signal });
      };
    },
    // `work` as a function that runs once its calls have paused for so many milliseconds; until then the page is busy.
    debounce(work, pause) {
      let timer = 0;
      const cancel = () => { if (timer) clearTimeout(timer), timer = 0, busy(-1); };
      signal.addEventListener("abort", cancel);
      return Object.assign((...given) => { cancel(), busy(1), timer = setTimeout(() => { timer = 0, work(...given), busy(-1); }, pause); }, { cancel });
    },
    // The heading of the page: a page of many views names the one that is shown, with its lead under it.
    setHeading(title, lead) { fill(document.querySelector("#top h1"), title), fill(at("claim"), lead); },
    // The thin bar above the page: the model, its input, and what else decides what is computed.
    bar(...nodes) {
      const bar = at("bar"), focused = (bar.contains(document.activeElement) && document.activeElement.dataset.focus) || current.focused;
      fill(bar, ...nodes);
      const found = focused && bar.querySelector(`[data-focus="${focused}"]`);
      current.focused = found ? null : focused, found?.focus({ preventScroll: true });
    },
    // The name of a task, a metric or a modality in the page's language; names that the dictionary lacks stay as they are.
    term(group, name) { const key = `${group}_${name}`; return name && key in shared.en ? t(key) : untranslated(name ?? ""); },
    // A token under the pointer, "side:index" or null: every picture of it lights it up.
    highlight(token) { if (token !== current.lit) { current.lit = token; for (const listener of current.listeners) listener(token); } },
    onHighlight(listener) { current.listeners.push(listener); },
    expose(hooks) { Object.assign(current.exposed, hooks); },
    announce(words) { at("spoken").textContent = words; },
    requests: () => client.requests(mark), received: () => client.received,
    // Runs `work` and shows its error on the page instead of the console.
    async attempt(work, place = document.querySelector("#main > .view:last-child")) {
      try { return await work(); } catch (error) { if (turn === current.turn) showError(error, place, t); }
      return undefined;
    },
    save: () => save(t),
  };
}
function busy(step) {
  current.busy += step;
  root.dataset.busy = current.busy > 0 ? "yes" : "no";
}

function errorBox(error, t) {
  const lines = error instanceof RequestError
    ? error.status === 410 ? [t("notKept")] : serverError(error, t)
    : error instanceof TypeError && /fetch/i.test(error.message) ? [t("gone")] : [t("failed"), untranslated(error.message, { class: "said" })];
  return h("div", { class: "error", role: "alert" }, lines.filter(Boolean).map(line => h("div", {}, line)));
}
// The server's text in the page's language; the original stands folded below a translation.
function serverError({ message, texts }, t) {
  if (!texts) return [t("serverSays"), untranslated(message, { class: "said" })];
  return [h("span", { class: "said" }, localize(texts)), language() === "zh" ? h("details", {}, h("summary", {}, t("original")), untranslated(message)) : null];
}
function showError(error, place, t) {
  if (error?.name === "AbortError") return;
  if (!(error instanceof RequestError)) console.warn(error);
  place.querySelector(":scope > .error")?.remove();
  place.prepend(errorBox(error, t));
}

async function getJson(path) {
  const response = await fetch(path);
  if (!response.ok) throw await errorOf(response);
  return response.json();
}

async function loadLists() {
  const [models, examples] = await Promise.all([lists.models ?? getJson("/api/models"), lists.examples ?? getJson("/api/examples").catch(() => [])]);
  Object.assign(lists, { models, examples });
}

// Shows the page of the URL.
async function open() {
  const { page, state } = readAddress();
  if (location.hash || !current.page || recorded === null) current.page = page, current.state = state;
  const turn = ++current.turn, main = at("main"), old = main.querySelector(":scope > .view:not(.leaving)"), view = h("div", { class: "view" });
  current.controller.abort(), current.controller = new AbortController(), current.exposed = {}, current.lit = null, current.listeners = [];
  if (current.state.lang) storage.set("regard.lang", current.state.lang);
  if (current.state.theme) storage.set("regard.theme", current.state.theme);
  root.lang = language() === "zh" ? "zh-CN" : "en", root.dataset.theme = theme();
  delete main.dataset.ready;
  let t = translator(null);
  // The view that was shown stays until the next one of the same page has something to show.
  const leaving = old && root.dataset.page === current.page ? old : null, leave = () => { if (view.firstElementChild) leaving?.remove(), watch.disconnect(); };
  const watch = new MutationObserver(leave);
  root.dataset.page = current.page;
  if (leaving) leaving.classList.add("leaving"), leaving.inert = true, watch.observe(view, { childList: true }), fill(main, leaving, view);
  else current.focused = null, showShell(t, null), fill(at("bar")), fill(main, h("p", { class: "soft loading" }, t("loading")), view);
  busy(1);
  try {
    if (!PAGES.includes(current.page)) throw new RequestError(t("pageMissing", current.page), 404);
    const [module] = await Promise.all([import(`lab/pages/${current.page}.js`), loadLists()]);
    if (turn !== current.turn) return;
    t = translator(module.text);
    showShell(t, module);
    const lab = makeLab(module.text, turn, client.answered), started = performance.now();
    current.lab = lab, current.module = module;
    main.querySelector(".loading")?.remove();
    if (recorded) view.append(h("p", { class: "note" }, t("exportedNote", recorded.answers.length, recorded.left_out ?? 0)));
    await module.show(view, lab);
    current.took = performance.now() - started;
  } catch (error) {
    if (turn === current.turn && error?.name !== "AbortError") main.querySelector(".loading")?.remove(), showError(error, view, t);
  } finally {
    busy(-1);
    if (turn === current.turn) leaving?.remove(), watch.disconnect(), main.dataset.ready = current.page;
  }
}

// Pages for sentences share the model and the text.
const SENTENCES = ["formula", "heads", "compare", "honest"];
function link(page, t) {
  const { lang, theme, model, text } = current.state, both = [page, current.page].every(one => SENTENCES.includes(one));
  const kept = Object.entries({ lang, theme, ...(both ? { model, text } : {}) }).filter(([, value]) => value);
  const query = kept.length ? `?${new URLSearchParams(kept)}` : "";
  return h("a", { href: `${location.href.split("#")[0]}#${page}${query}`, "aria-current": page === current.page ? "page" : null }, t(`page_${page}`));
}
function showShell(own, module) {
  const t = translator(null);
  document.title = `${t("page_" + (PAGES.includes(current.page) ? current.page : "course"))} · Regard`;
  at("skip").textContent = t("skip"), at("bar").setAttribute("aria-label", t("barLabel"));
  const list = Object.entries(GROUPS).map(([group, pages]) => h("div", { class: "group" },
    h("p", { class: "group-name" }, t(`group_${group}`)), h("ul", {}, pages.map(page => h("li", {}, link(page, t))))));
  const nav = at("nav"), scrolled = nav.querySelector(".groups")?.scrollLeft ?? 0;
  nav.setAttribute("aria-label", t("pages"));
  fill(nav, h("p", { class: "brand" }, logo(), h("span", {}, h("b", { translate: "no" }, "Regard"), h("span", { class: "tagline" }, t("tagline")))),
    recorded ? null : h("div", { class: "groups" }, list));
  const groups = nav.querySelector(".groups"), here = nav.querySelector("[aria-current]");
  if (groups && here) groups.scrollLeft = here.offsetLeft < scrolled || here.offsetLeft + here.offsetWidth > scrolled + groups.clientWidth ? here.offsetLeft - 40 : scrolled;
  const title = module ? own("title") : t(`page_${PAGES.includes(current.page) ? current.page : "course"}`);
  fill(at("top"), h("h1", {}, title), module && popover(t("about"), "?", h("p", { class: "lead" }, own("lead")), { class: "about" }), h("p", { id: "claim", class: "lead" }),
    h("div", { class: "actions" },
      h("button", { type: "button", id: "language", onclick: () => change({ lang: language() === "zh" ? "en" : "zh" }) }, t("other")),
      h("button", { type: "button", id: "theme", "aria-label": t("theme"), title: t("theme"), onclick: () => change({ theme: theme() === "dark" ? "light" : "dark" }) },
        themeSign()),
      recorded ? null : h("button", { type: "button", id: "save", title: t("saveTip"), onclick: () => save(t) }, t("save"))));
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
  Object.assign(current.state, changes);
  writeAddress(current.page, current.state, true);
  if (changes.lang) storage.set("regard.lang", changes.lang);
  if (changes.theme) storage.set("regard.theme", changes.theme);
  open();
}
async function save(t) {
  const button = at("save");
  button.disabled = true, at("spoken").textContent = t("saving");
  try {
    const extra = (await (current.exposed.keep?.() ?? current.module?.keep?.(current.lab))) ?? [];
    await saveView({ page: current.page, ...current.state, lang: language(), theme: theme() }, current.lab.requests().slice(-MAX_REQUESTS), extra);
    at("spoken").textContent = t("saved");
  } catch (error) { showError(error, at("main"), t); }
  button.disabled = false;
}

// Read-only access for tests.
window.lab = {
  cell: (i, j) => current.exposed.cell?.(i, j),
    read: () => ({ page: current.page, state: { ...current.state }, took: current.took, received: client.received, ...current.exposed.read?.() }),
  part: (name, ...args) => current.exposed[name]?.(...args),
};
addEventListener("hashchange", open);
open();
