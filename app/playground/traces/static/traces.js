// The trace page: a list, a waterfall, the details of one step. All text goes in by textContent, so nothing needs escaping.

const POLL_MS = 1000;
const $list = document.getElementById("list");
const $trace = document.getElementById("trace");
const $details = document.getElementById("details");
const $filter = document.getElementById("filter");
const $live = document.getElementById("live");

const state = { traces: null, tree: null, chosen: chosenFromPath(), selected: null, folded: new Set(), etag: {} };

function chosenFromPath() {
  const match = location.pathname.match(/^\/traces\/([0-9a-f]{32})$/);
  return match ? match[1] : null;
}

function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "class") node.className = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

const SHAPES = {
  agent: ["M5 8h8v6H5z", "M9 8V5", "M9 4.2v.1", "M7.4 11v.1M10.6 11v.1", "M3 10v2M15 10v2"],
  generation: ["M9 3l1.6 4.4L15 9l-4.4 1.6L9 15l-1.6-4.4L3 9l4.4-1.6z"],
  tool: ["M11.5 3.5a3.6 3.6 0 0 0-4.4 4.6L3.5 11.700a1.700 1.700 0 1 0 2.700 2.700l3.700-3.600a3.600 3.600 0 0 0 4.600-4.400l-2.200 2.200-2.300-.500-.500-2.300z"],
  span: ["M3 6h8M8.500 3.500L11 6 8.500 8.500", "M15 12H7M9.500 9.500L7 12l2.500 2.500"],
};

function icon(type) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", "0 0 18 18");
  svg.setAttribute("class", `icon ${kindOf(type)}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", type);
  for (const shape of SHAPES[kindOf(type)]) {
    const path = document.createElementNS(space, "path");
    path.setAttribute("d", shape);
    svg.append(path);
  }
  return svg;
}

const kindOf = (type) => (type in SHAPES ? type : "span");
const mood = (level) => (level === "ERROR" ? "error" : level === "WARNING" ? "warning" : "");

function took(ms) {
  if (ms < 1) return ms > 0 ? "<1 ms" : "0 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
  return `${Math.floor(ms / 60000)} m ${Math.round((ms % 60000) / 1000)} s`;
}

function ago(ms) {
  const seconds = Math.max(0, (Date.now() - ms) / 1000);
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return new Date(ms).toLocaleDateString();
}

const count = (n) => n.toLocaleString("en");

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
  state.selected = null;
  state.folded.clear();
  state.etag.tree = null;
  drawList();
  refresh();
}

// ---- waterfall ----

function* visible(nodes, depth = 0) {
  for (const node of nodes) {
    yield [node, depth];
    if (!state.folded.has(node.id)) yield* visible(node.children, depth + 1);
  }
}

function drawTrace() {
  const { tree } = state;
  if (!tree) return;
  const scrolled = $trace.scrollTop;
  const { trace } = tree;
  const start = trace.started_ms;
  const span = Math.max(trace.duration_ms, 1);
  if (!state.selected && tree.observations.length) state.selected = tree.observations[0].id;
  const rows = [...visible(tree.observations)].map(([node, depth]) => drawRow(node, depth, start, span));
  $trace.replaceChildren(
    el("div", { class: "head" }, el("h1", {}, titleOf(trace)), drawChips(trace, tree.scores)),
    el("div", { class: "fall", role: "tree", "aria-label": "Steps of the run" }, drawAxis(span), ...rows));
  $trace.scrollTop = scrolled;
  document.title = `${titleOf(trace).slice(0, 60)} · Orion traces`;
  drawDetails();
}

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

function drawAxis(span) {
  const rough = span / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const ticks = el("div", { class: "ticks" });
  for (let at = 0; at < span; at += step) {
    const tick = el("span", { class: "tick" }, at ? took(at) : "0");
    tick.style.left = `${(at / span) * 100}%`;
    ticks.append(tick);
  }
  return el("div", { class: "axis" }, el("span", { class: "left" }, `${state.tree.trace.observations} steps`), ticks);
}

function drawRow(node, depth, start, span) {
  const length = node.end_ms - node.start_ms;
  const left = ((node.start_ms - start) / span) * 100;
  const width = (length / span) * 100;
  const bar = el("span", { class: `bar ${kindOf(node.type)} ${mood(node.level)}` });
  bar.style.left = `${left}%`;
  bar.style.width = `${Math.max(width, 0.2)}%`;
  const firstToken = node.first_token_at ? Date.parse(node.first_token_at) : NaN;
  if (firstToken > node.start_ms && length > 0) {
    const wait = el("span", { class: "wait", title: `first token after ${took(firstToken - node.start_ms)}` });
    wait.style.width = `${Math.min(1, (firstToken - node.start_ms) / length) * 100}%`;
    bar.append(wait);
  }
  const label = el("span", { class: "took-at" }, took(length));
  label.style.left = `${Math.min(left + width, 100)}%`;
  const fold = el("button", {
    class: `fold ${node.children.length ? "" : "leaf"} ${state.folded.has(node.id) ? "" : "open"}`, tabindex: -1, "aria-label": "fold",
    onclick: (event) => { event.stopPropagation(); toggle(node); },
  }, "›");
  const what = el("div", { class: "what" }, fold, icon(node.type), el("span", { class: "name" }, node.name),
    mood(node.level) ? el("span", { class: `badge ${mood(node.level)}`, title: node.status }, node.metadata.error_code || node.level) : null,
    el("span", { class: "extra" }, extraOf(node)));
  what.style.paddingLeft = `${12 + depth * 18}px`;
  return el("div", {
    class: "row", role: "treeitem", id: `row-${node.id}`, "aria-level": depth + 1, tabindex: node.id === state.selected ? 0 : -1,
    "aria-selected": String(node.id === state.selected), "aria-expanded": node.children.length ? String(!state.folded.has(node.id)) : null,
    onclick: () => select(node.id),
  }, what, el("div", { class: "lane" }, bar, label));
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

function toggle(node) {
  if (state.folded.has(node.id)) state.folded.delete(node.id);
  else state.folded.add(node.id);
  drawTrace();
}

function select(id) {
  state.selected = id;
  drawTrace();
  const row = document.getElementById(`row-${id}`);
  if (row) { row.focus({ preventScroll: true }); row.scrollIntoView({ block: "nearest" }); }
}

function find(id) {
  const stack = [...state.tree.observations];
  while (stack.length) {
    const node = stack.pop();
    if (node.id === id) return node;
    stack.push(...node.children);
  }
  return null;
}

// ---- details ----

function drawDetails() {
  const node = find(state.selected);
  $details.hidden = !node;
  if (!node || $details.dataset.shown === `${node.id}${state.etag.tree}`) return;
  $details.dataset.shown = `${node.id}${state.etag.tree}`;
  const fact = (label, value) => el("div", { class: "fact" }, el("span", {}, label), el("b", {}, value));
  const facts = [fact("Type", node.type), fact("Took", took(node.end_ms - node.start_ms)), fact("Began after", took(node.start_ms - state.tree.trace.started_ms))];
  if (node.model) facts.push(fact("Model", node.model));
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
  const rows = [...visible(state.tree.observations)].map(([node]) => node);
  const at = rows.findIndex((node) => node.id === state.selected);
  const node = rows[at];
  if (event.key === "ArrowDown" && rows[at + 1]) select(rows[at + 1].id);
  else if (event.key === "ArrowUp" && rows[at - 1]) select(rows[at - 1].id);
  else if (event.key === "ArrowLeft" && node && node.children.length) { state.folded.add(node.id); drawTrace(); }
  else if (event.key === "ArrowRight" && node) { state.folded.delete(node.id); drawTrace(); }
  else return;
  event.preventDefault();
});
$filter.addEventListener("input", drawList);
addEventListener("popstate", () => choose(chosenFromPath()));
setInterval(() => { if (document.visibilityState === "visible") refresh(); }, POLL_MS);
refresh();
