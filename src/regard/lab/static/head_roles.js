// Find heads: the role of every head with its score, filters, and the heads that send one word to another.
import { weightColour } from "lab/colour.js";
import { button } from "lab/controls.js";
import { fill, formatBrief, formatExact, h, newId, tokenNames } from "lab/dom.js";
import { fold } from "lab/stage.js";

export const text = {
  en: {
    find: "Find heads", allRoles: "all", filter: "Role", byHead: "head", byRole: "role", byScore: "score", bySent: "weight", question: "Which heads send", to: "to", from: "From this token", into: "To this token", swap: "Swap the two tokens",
    noToken: word => `No token is “${word}”.`, headName: (layer, head) => `layer ${layer}, head ${head}`, headIs: (name, role, score) => `${name}: ${role}, ${score}`, best: (head, weight, from, to) => `${head} is the strongest: ${weight} of the weight of “${from}” goes to “${to}”.`,
    role_previous: "previous token", role_next: "next token", role_self: "itself", role_first: "first token", role_separator: "punctuation", role_same: "same word", role_induction: "what came next", role_modifier_noun: "modifier → noun", role_noun_modifier: "noun → modifier",
    role_preposition_noun: "preposition → noun", role_noun_preposition: "noun → preposition", role_verb_subject: "verb → subject", role_subject_verb: "subject → verb", role_verb_object: "verb → object", role_object_verb: "object → verb", role_nearby: "neighbours", role_broad: "broad", role_mixed: "no clear role",
    how: "How roles are measured", howRole: (texts, least) => `A score is the mean weight of a head's queries on the keys that the role is about, over ${texts} sentences (this text and examples). Equal weights on all keys would give the chance level; for roles of words it is at least what the head gives other pairs of the same distance.`,
    howLabel: (threshold, least, broad) => `A head gets the role with the largest (score − chance) / (1 − chance) if that is at least ${threshold} and at least ${least} queries were counted. Otherwise it is “neighbours” by the same rule, “broad” if its entropy is at least ${broad} of the largest possible, or has no clear role.`,
    long: "This text is too long to be counted; the roles come from example sentences.", chanceIs: (score, chance, count) => `score ${score}, chance ${chance}, ${count} queries`, entropyIs: x => `entropy ${x} of the largest possible`,
    def_separator: "special tokens and punctuation at least two places away, the first token aside", def_same: "other occurrences of the same word, at least two places away", def_induction: "the token after an earlier occurrence of this one", def_modifier: "a determiner, adjective or numeral and the noun at the end of its phrase, at least two places apart, by the tags of the shipped tagger",
    def_verb: "a verb and its subject (the nearest noun before it) or object (the noun of the phrase after it), at least two places apart", def_nearby: "keys at most two places away",
  },
  zh: {
    find: "查找注意力头", allRoles: "全部", filter: "作用", byHead: "头", byRole: "作用", byScore: "得分", bySent: "权重", question: "哪些头把", to: "指向", from: "从这个词元", into: "到这个词元", swap: "交换两个词元",
    noToken: word => `没有词元“${word}”。`, headName: (layer, head) => `第 ${layer} 层，头 ${head}`, headIs: (name, role, score) => `${name}：${role}，${score}`, best: (head, weight, from, to) => `${head}最强：“${from}”有 ${weight} 的权重给了“${to}”。`,
    role_previous: "前一个词元", role_next: "后一个词元", role_self: "自身", role_first: "第一个词元", role_separator: "标点", role_same: "相同的词", role_induction: "上次的下一个", role_modifier_noun: "修饰语 → 名词", role_noun_modifier: "名词 → 修饰语",
    role_preposition_noun: "介词 → 名词", role_noun_preposition: "名词 → 介词", role_verb_subject: "动词 → 主语", role_subject_verb: "主语 → 动词", role_verb_object: "动词 → 宾语", role_object_verb: "宾语 → 动词", role_nearby: "邻近词元", role_broad: "分散", role_mixed: "无明显作用",
    how: "作用是怎样测得的", howRole: (texts, least) => `得分是该头的各查询在这一作用所指的键上的平均权重，对 ${texts} 个句子（当前文本和例句）取平均。机会水平是权重均匀时的得分；与词有关的作用，机会水平还不低于该头给同样距离的其他词对的权重。`,
    howLabel: (threshold, least, broad) => `每个头取（得分 − 机会）/（1 − 机会）最大的作用，要求它不小于 ${threshold}，且至少有 ${least} 个查询参与统计。否则按同样的标准判为“邻近词元”；熵不小于最大值的 ${broad} 倍时判为“分散”；其余为无明显作用。`,
    long: "文本太长，未计入统计；作用来自例句。", chanceIs: (score, chance, count) => `得分 ${score}，机会水平 ${chance}，${count} 个查询`, entropyIs: x => `熵为最大值的 ${x}`,
    def_separator: "至少相隔两个位置的特殊词元和标点，第一个词元除外", def_same: "同一个词在别处的出现，至少相隔两个位置", def_induction: "当前词元上次出现之后的那个词元", def_modifier: "限定词、形容词或数词与其短语末尾的名词，至少相隔两个位置，词性由自带的标注模型给出",
    def_verb: "动词与其主语（前面最近的名词）或宾语（后面短语中的名词），至少相隔两个位置", def_nearby: "相距不超过两个位置的键",
  },
};
const DEFINED = { separator: "separator", same: "same", induction: "induction", modifier_noun: "modifier", noun_modifier: "modifier", preposition_noun: "modifier", noun_preposition: "modifier", verb_subject: "verb", subject_verb: "verb", verb_object: "verb", object_verb: "verb", nearby: "nearby" };
const SHOWN = 400;

// `options`: request {model, input, …}, attentions and tokens of the run, onPick(attention, head), onAnswer(attention, head, query, key) when a typed question is answered, onFilter(), sides of the pair.
export function headFinder(lab, { request, attentions, tokens, onPick, onAnswer = () => {}, onFilter = () => {}, sides }) {
  const chosen = lab.language === "zh" ? "zh" : "en", t = (key, ...args) => { const held = text[chosen][key], words = typeof held === "function" ? held(...args) : held ?? key; return lab.language === "xx" ? `⟦${words}⟧` : words; };
  const [from, to] = sides ?? [attentions[0].query_side, attentions[0].key_side], names = { from: tokenNames(tokens[from] ?? []), to: tokenNames(tokens[to] ?? []) };
  const rows = attentions.flatMap((one, attention) => Array.from({ length: one.heads }, (_, head) => ({ attention, head, label: "", score: NaN, sent: NaN })));
  const it = { roles: null, role: lab.state.role ?? "", order: "role", pair: { from: [], to: [] }, current: null }, listeners = [], latest = lab.latestRequest();
  const chips = h("div", { class: "chips role-chips", role: "group", "aria-label": t("filter") }), body = h("tbody", {}), answer = h("p", { class: "soft", role: "status" }), details = h("div", {}), lists = { from: newId(), to: newId() };
  const plain = new Set(attentions.map(one => one.layer)).size === attentions.length, headName = row => plain ? t("headName", attentions[row.attention].layer, row.head) : `${lab.localize(attentions[row.attention].label)} · ${row.head}`, roleName = row => row.label ? t(`role_${row.label}`) : "…";
  const visible = row => !it.role || row.label === it.role;

  function showChips() {
    const counts = new Map();
    for (const row of rows) counts.set(row.label, (counts.get(row.label) ?? 0) + 1);
    const listed = it.roles ? [...it.roles.roles, "broad", "mixed"].filter(role => counts.has(role)) : [];
    fill(chips, [["", rows.length], ...listed.map(role => [role, counts.get(role)])].map(([role, count]) => button([t(role ? `role_${role}` : "allRoles"), " ", h("span", { class: "at" }, count)],
      () => { it.role = it.role === role ? "" : role, lab.set({ role: it.role || null }), show(), onFilter(); }, { class: "chip", "aria-pressed": it.role === role, "data-role": role, title: DEFINED[role] ? t(`def_${DEFINED[role]}`) : null })));
  }
  // roles in the order of their list, then heads that attend broadly, then those without a role
  const place = ({ label }) => { const n = it.roles?.roles.indexOf(label) ?? -1; return n >= 0 ? n : label === "broad" ? 98 : 99; };
  const ORDERS = { head: () => 0, role: (a, b) => place(a) - place(b) || (b.score || 0) - (a.score || 0), score: (a, b) => (b.score || 0) - (a.score || 0), sent: (a, b) => (b.sent || 0) - (a.sent || 0) };
  function show() {
    const paired = rows.some(row => Number.isFinite(row.sent)), shown = rows.filter(visible).sort(ORDERS[it.order]).slice(0, SHOWN);
    const heading = (order, words) => h("th", { scope: "col", "aria-sort": it.order === order ? (order === "head" || order === "role" ? "ascending" : "descending") : null }, button([words, h("span", { class: "sort", "aria-hidden": "true" }, it.order === order ? "▾" : "")], () => { it.order = order, show(); }, { class: "plain", "data-order": order }));
    const bar = value => Number.isFinite(value) ? h("td", { class: "number score", title: formatExact(value), "data-value": value, style: { "--part": `${100 * Math.max(0, Math.min(1, value))}%`, "--colour": weightColour(value) } }, h("span", {}, formatBrief(value, 2))) : h("td", {});
    const focused = body.contains(document.activeElement) && document.activeElement.dataset.head;
    fill(head, h("tr", {}, heading("head", t("byHead")), heading("role", t("byRole")), heading("score", t("byScore")), paired ? heading("sent", t("bySent")) : null));
    fill(body, shown.map(row => h("tr", { class: it.current === `${row.attention}.${row.head}` ? "here" : null, onclick: () => pick(row) },
      h("th", { scope: "row" }, button(headName(row), () => {}, { class: "plain", "data-head": `${row.attention}.${row.head}`, "aria-label": t("headIs", headName(row), roleName(row), Number.isFinite(row.score) ? formatBrief(row.score, 2) : "–") })), h("td", { title: factsOf(row) }, roleName(row)), bar(row.score), paired ? bar(row.sent) : null)));
    if (focused) body.querySelector(`[data-head="${focused}"]`)?.focus({ preventScroll: true });
    showChips();
  }
  function factsOf(row) {
    const held = it.roles?.attentions[row.attention], n = it.roles?.roles.indexOf(row.label) ?? -1, at = row.head * (it.roles?.roles.length ?? 0) + n;
    return !held ? null : n < 0 ? t("entropyIs", formatBrief(held.evenness.data[row.head], 2)) : t("chanceIs", formatBrief(held.score.data[at], 3), formatBrief(held.chance.data[at], 3), held.queries.data[n]);
  }
  function pick(row) { it.current = `${row.attention}.${row.head}`, show(), onPick?.(row.attention, row.head); }

  // A typed word is all its tokens; "word·3" is token 3.
  function find(side, words) {
    const [, name, place] = /^(.*?)(?:·(\d+))?$/u.exec(words.trim());
    if (place !== undefined && Number(place) < names[side].length) return [Number(place)];
    const wanted = name.trim().toLowerCase();
    return names[side].map((one, n) => one.trim().toLowerCase() === wanted ? n : -1).filter(n => n >= 0);
  }
  // a later word and an earlier one, to show what may be typed
  const example = side => { const plain = names[side].map((name, n) => n).filter(n => !(tokens[side === "from" ? from : to] ?? [])[n]?.special); return names[side][plain[Math.floor(plain.length * (side === "from" ? 0.6 : 0.2))]] ?? ""; };
  const field = (side, words) => h("input", { type: "text", list: lists[side], size: 9, translate: "no", placeholder: example(side), "aria-label": words, "data-focus": `pair-${side}`, onchange: () => ask() });
  const fields = { from: field("from", t("from")), to: field("to", t("into")) };
  async function ask(typed = true) {
    const pair = { from: find("from", fields.from.value), to: find("to", fields.to.value) };
    for (const side of ["from", "to"]) if (fields[side].value.trim() && !pair[side].length) return fill(answer, t("noToken", fields[side].value.trim()));
    if (!pair.from.length || !pair.to.length) return;
    it.pair = pair;
    await lab.attempt(async () => {
      const found = await latest("heads/pair", { ...request, queries: pair.from, keys: pair.to, sides: [from, to] });
      for (const row of rows) row.sent = found.weights[row.attention]?.data[row.head] ?? NaN;
      it.order = "sent", it.sent = found.order, show();
      const [best] = found.order;
      fill(answer, t("best", headName(best), formatBrief(best.weight, 3), fields.from.value, fields.to.value)), lab.expose({ pair: () => found.order });
      listeners.forEach(listener => listener());
      if (typed) await onAnswer(best.attention, best.head, pair.from[0], pair.to[0]);
    }, element);
  }
  const named = (side, n) => names[side].filter(name => name === names[side][n]).length > 1 ? `${names[side][n]}·${n}` : names[side][n];
  function setPair(query, key) { if (names.from[query] === undefined || names.to[key] === undefined) return undefined; fields.from.value = named("from", query), fields.to.value = named("to", key); return ask(false); }
  function swap() { [fields.from.value, fields.to.value] = [fields.to.value, fields.from.value], ask(); }

  const head = h("thead", {}), element = h("section", { class: "card head-finder" }, h("h3", {}, t("find")), chips,
    h("form", { class: "pair-question", onsubmit: event => { event.preventDefault(), ask(); } }, h("span", {}, t("question")), fields.from, h("span", {}, t("to")), fields.to, from === to ? button("⇄", swap, { class: "small", "aria-label": t("swap"), title: t("swap") }) : null, h("button", { type: "submit", class: "small" }, "?"),
      ["from", "to"].map(side => h("datalist", { id: lists[side] }, names[side].slice(0, SHOWN).map((_, n) => h("option", { value: named(side, n), translate: "no" }))))), answer,
    h("div", { class: "table-scroll finder-list", tabindex: 0, role: "region", "aria-label": t("find") }, h("table", { class: "numbers finder" }, head, body)), details);
  async function load() {
    const found = await lab.request("heads/roles", { ...request, examples: true });
    it.roles = found;
    for (const row of rows) {
      const held = found.attentions[row.attention], n = found.roles.indexOf(row.label = held.labels[row.head]);
      row.score = row.label === "mixed" ? NaN : n < 0 ? held.evenness.data[row.head] : held.score.data[row.head * found.roles.length + n];
    }
    fill(details, found.counted ? null : h("p", { class: "soft" }, t("long")), fold(t("how"), h("p", { class: "soft" }, t("howRole", found.texts)), h("p", { class: "soft" }, t("howLabel", found.threshold, found.least, found.broad)),
      h("dl", { class: "definitions" }, Object.entries(DEFINED).filter(([role], n, all) => all.findIndex(([, key]) => key === DEFINED[role]) === n).map(([role, key]) => [h("dt", {}, t(`role_${role}`)), h("dd", { class: "soft" }, t(`def_${key}`))]))));
    lab.expose({ roles: () => rows.map(row => ({ ...row })) });
    show(), listeners.forEach(listener => listener()), onFilter();
  }
  show();
  const loaded = lab.attempt(load, element);
  return { element, loaded, setPair, onChange: listener => listeners.push(listener), labelOf: (attention, index) => { const row = rows.find(one => one.attention === attention && one.head === index); return row?.label ? t(`role_${row.label}`) : ""; },
    visible: (attention, index) => visible(rows.find(one => one.attention === attention && one.head === index) ?? { label: "" }), select(attention, index) { it.current = `${attention}.${index}`, show(); } };
}
