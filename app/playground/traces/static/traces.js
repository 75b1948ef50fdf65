// The trace page: a list, a waterfall, the details of one step.

import { ago, count, el, took } from "./dom.js";
import { createWaterfall, icon, mood } from "./waterfall.js";

const POLL_MS = 1000;
const $list = document.getElementById("list");
const $trace = document.getElementById("trace");
const $details = document.getElementById("details");
const $filter = document.getElementById("filter");
const $live = document.getElementById("live");

const state = { traces: null, tree: null, chosen: chosenFromPath(), etag: {} };
const fall = createWaterfall({ extra: extraOf, onChange: drawTrace });

function chosenFromPath() {
  const match = location.pathname.match(/^\/traces\/([0-9a-f]{32})$/);
  return match ? match[1] : null;
}

// ---- list ----

function titleOf(row) {
  const text = (row.title || "").trim();
  return text && !text.startsWith('{"prompt_length"') ? text.split("\n")[0] : row.run_id || row.name;
}

function drawList() {
  const wanted = $filter.value.trim().toLowerCase();
  const rows = (state.traces || []).filter(
    (row) => !wanted || [titleOf(row), row.user, row.session, row.code, row.run_id, row.id, ...row.tags].join(" ").toLowerCase().includes(wanted),
  );
  const entries = rows.map((row) =>
    el("a", { class: "entry", href: `/traces/${row.id}`, "aria-current": row.id === state.chosen ? "true" : null, onclick: (event) => open(event, row.id) },
      el("span", { class: `dot ${row.is_complete ? mood(row.level) : "going"}`, title: row.is_complete ? row.code || row.level.toLowerCase() : "running" }),
      el("span", { class: "title" }, titleOf(row)),
      el("span", { class: "took" }, took(row.duration_ms)),
      el("span", { class: "sub" },
        row.code ? el("span", { class: "code" }, row.code) : el("span", {}, row.user),
        el("span", {}, row.tags[0] || ""),
        el("span", { class: "push" }, ago(row.started_ms)))));
  $list.replaceChildren(...(entries.length ? entries : [el("p", { class: "none" }, wanted ? "Nothing matches." : "No traces yet.")]));
}

function open(event, id) {
  if (event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
  event.preventDefault();
  history.pushState(null, "", `/traces/${id}`);
  choose(id);
}

function choose(id) {
  state.chosen = id;
  state.tree = null;
  fall.reset();
  state.etag.tree = null;
  drawList();
  refresh();
}

// ---- waterfall ----

function drawTrace() {
  const { tree } = state;
  if (!tree) return;
  const scrolled = $trace.scrollTop;
  const { trace } = tree;
  const times = { start: trace.started_ms, span: Math.max(trace.duration_ms, 1), label: `${trace.observations} steps` };
  const observations = withCodes(tree.observations);
  $trace.replaceChildren(el("div", { class: "head" }, el("h1", {}, titleOf(trace)), drawChips(trace, tree.scores)), fall.draw(observations, times));
  $trace.scrollTop = scrolled;
  document.title = `${titleOf(trace).slice(0, 60)} · Orion traces`;
  drawDetails();
}

const withCodes = (nodes) => nodes.map((node) => ({ ...node, code: node.metadata.error_code, children: withCodes(node.children) }));

function drawChips(trace, scores) {
  const chip = (label, value) => el("span", { class: "chip" }, `${label} `, el("b", {}, value));
  const verdict = !trace.is_complete ? el("span", { class: "badge" }, "RUNNING")
    : trace.code ? el("span", { class: "badge error" }, trace.code)
    : mood(trace.level) ? el("span", { class: `badge ${mood(trace.level)}` }, trace.level)
    : el("span", { class: "badge good" }, "OK");
  return el("div", { class: "chips" }, verdict, chip("took", took(trace.duration_ms)), chip("user", trace.user), chip("session", trace.session),
    trace.tokens_in + trace.tokens_out ? chip("tokens", `${count(trace.tokens_in)} → ${count(trace.tokens_out)}`) : null,
    chip("env", trace.environment), ...trace.tags.map((tag) => el("span", { class: "chip tag" }, tag)),
    ...scores.map((score) => el("span", { class: `badge ${score.value ? "good" : "error"}` }, `${score.name}: ${score.value ? "good" : "bad"}${score.comment ? `, "${score.comment}"` : ""}`)));
}

function extraOf(node) {
  if (node.type === "generation") {
    const [input, output] = tokensOf(node.usage);
    return `${node.model}${input + output ? ` · ${count(input)} → ${count(output)}` : ""}`;
  }
  return node.type === "tool" && node.input ? node.input.slice(0, 80) : "";
}

function tokensOf(usage) {
  const sum = (word) => Object.entries(usage).reduce((all, [key, n]) => all + (key.includes(word) ? n : 0), 0);
  return [sum("input"), sum("output")];
}

// ---- details ----

function drawDetails() {
  const node = fall.selected();
  $details.hidden = !node;
  if (!node || $details.dataset.shown === `${node.id}${state.etag.tree}`) return;
  $details.dataset.shown = `${node.id}${state.etag.tree}`;
  const fact = (label, value) => el("div", { class: "fact" }, el("span", {}, label), el("b", {}, value));
  const facts = [fact("Type", node.type), fact("Took", took(node.end_ms - node.start_ms)), fact("Began after", took(node.start_ms - state.tree.trace.started_ms))];
  if (node.model) facts.push(fact("Model", node.model));
  if (node.prompt) facts.push(fact("Prompt", `${node.prompt}, version ${node.prompt_version}`));
  const firstToken = Date.parse(node.first_token_at);
  if (firstToken) facts.push(fact("First token", took(firstToken - node.start_ms)));
  if (node.cost.total !== undefined) facts.push(fact("cost", `$${node.cost.total}`));
  for (const [key, n] of Object.entries(node.usage).filter(([, n]) => n)) facts.push(fact(key.replaceAll("_", " "), count(n)));
  const parts = [
    el("h2", {}, icon(node.type), el("span", {}, node.name)),
    el("div", { class: "id" }, `${new Date(node.start_ms).toLocaleString()} · ${node.id}`),
    node.status ? el("div", { class: `note ${mood(node.level) || "warning"}` }, node.status) : null,
    el("div", { class: "facts" }, ...facts),
  ];
  const [output, answer] = splitAnswer(node.output);
  if (node.input) parts.push(...block("Input", pretty(node.input)));
  if (answer) parts.push(...block("Answer", answer));
  if (output) parts.push(...block("Output", output));
  const metadata = Object.entries(node.metadata);
  if (metadata.length) {
    parts.push(el("h3", {}, "Metadata"), el("table", {}, el("tbody", {}, ...metadata.map(([key, value]) =>
      el("tr", {}, el("td", {}, key), el("td", {}, typeof value === "string" ? value : JSON.stringify(value)))))));
  }
  $details.replaceChildren(...parts.filter(Boolean));
}

function block(title, text) {
  const copy = el("button", { class: "copy", onclick: async () => { await navigator.clipboard.writeText(text); copy.textContent = "copied"; } }, "copy");
  return [el("h3", {}, title, copy), el("pre", {}, text)];
}

function splitAnswer(output) {
  try {
    const { answer, ...rest } = JSON.parse(output);
    return [JSON.stringify(rest, null, 2), answer || ""];
  } catch {
    return [output, ""];
  }
}

function pretty(text) {
  try {
    const value = JSON.parse(text);
    return typeof value === "object" && value !== null ? JSON.stringify(value, null, 2) : text;
  } catch {
    return text;
  }
}

// ---- refresh ----

async function load(key, url) {
  const response = await fetch(url, { signal: AbortSignal.timeout(5000) });
  if (response.status === 404) return null;
  if (!response.ok) throw new Error(`HTTP ${response.status}`);
  const etag = response.headers.get("etag");
  if (etag === state.etag[key]) return null;
  const content = await response.json();
  state.etag[key] = etag;
  return content;
}

let refreshing = false;
async function refresh() {
  if (refreshing) return;
  refreshing = true;
  try {
    const listed = await load("list", "/traces/api");
    if (listed) state.traces = listed.traces;
    if (!state.chosen && state.traces && state.traces.length) state.chosen = state.traces[0].id;
    drawList();
    const { chosen } = state;
    if (chosen) {
      const tree = await load("tree", `/traces/api/${chosen}`);
      if (tree && chosen === state.chosen) { state.tree = tree; drawTrace(); }
    }
    $live.className = "live";
    $live.textContent = "live";
  } catch {
    $live.className = "live off";
    $live.textContent = "not reachable";
  } finally {
    refreshing = false;
    if (state.chosen && !state.tree) setTimeout(refresh, 100);
  }
}

document.addEventListener("keydown", (event) => {
  if (event.target === $filter) { if (event.key === "Escape") $filter.blur(); return; }
  if (event.key === "/") { event.preventDefault(); $filter.focus(); return; }
  if (!state.tree || event.metaKey || event.ctrlKey || event.altKey) return;
  if (!fall.press(event.key)) return;
  event.preventDefault();
});
$filter.addEventListener("input", drawList);
addEventListener("popstate", () => choose(chosenFromPath()));
setInterval(() => { if (document.visibilityState === "visible") refresh(); }, POLL_MS);
refresh();
