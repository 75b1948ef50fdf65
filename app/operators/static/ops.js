// The operators' page: one view at a time, by its address; drawn anew when something has changed.

import { ago, count, el, took } from "./dom.js";
import { createWaterfall } from "./waterfall.js";

const SLOW_MS = 10_000; // between looks, where there is no stream of changes
const $view = document.getElementById("view");
const $live = document.getElementById("live");
const fall = createWaterfall({ onChange: () => draw(state.data) });
const state = { data: null };

const VIEWS = [["now", "Now", "/ops"], ["runs", "Runs", "/ops/runs"], ["money", "Money", "/ops/money"], ["errors", "Errors", "/ops/errors"], ["processes", "Processes", "/ops/processes"], ["audit", "Audit", "/ops/audit"]];
const path = location.pathname.replace(/\/$/, "").split("/").slice(2);
const view = path.length === 2 && path[0] === "runs" ? "run" : path.join("/") || "now";
const asked = new URLSearchParams(location.search);

// ---- parts ----

const time = (text) => (text ? el("time", { datetime: text, title: new Date(text).toLocaleString() }, ago(Date.parse(text))) : "");
const money = (micro) => (micro === null || micro === undefined ? "unknown" : `$${(micro / 1e6).toFixed(2)}`);
const lasted = (run) => (run.started_at ? took((run.ended_at ? Date.parse(run.ended_at) : Date.now()) - Date.parse(run.started_at)) : "");
const card = (label, value) => el("div", { class: "card" }, el("span", {}, label), el("b", {}, String(value)));
const link = (run, text) => el("a", { href: `/ops/runs/${encodeURIComponent(run.id)}` }, text);

function badge(run) {
  const mood = run.code || run.state === "failed" ? "error" : run.state === "succeeded" ? "good" : "";
  return el("span", { class: `badge ${mood}` }, run.code || run.state);
}

// `columns`: names with what a cell shows, and a class.
function table(rows, columns, nothing) {
  if (!rows.length) return el("p", { class: "none" }, nothing);
  const head = el("tr", {}, ...columns.map(([name, , kind]) => el("th", { scope: "col", class: kind }, name)));
  const body = rows.map((row) => el("tr", {}, ...columns.map(([, cell, kind]) => el("td", { class: kind || "" }, cell(row)))));
  return el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Table" }, el("table", {}, el("thead", {}, head), el("tbody", {}, ...body)));
}

const RUN = [
  ["State", badge, "name"],
  ["Asked", (run) => link(run, run.text || "(no text)"), "text"],
  ["By", (run) => run.user, "name"],
  ["Channel", (run) => run.channel, "name"],
  ["Agent", (run) => [run.agent, run.model].filter(Boolean).join(" "), "name"],
  ["Sandbox", (run) => run.provider, "name"],
  ["Accepted", (run) => time(run.created_at), "when"],
  ["Took", lasted, "number"],
];

function filter(name, label, options) {
  const pick = el("select", { name, onchange: (event) => { asked.set(name, event.target.value); if (!event.target.value) asked.delete(name); location.search = asked; } },
    ...options.map(([value, text]) => el("option", { value, selected: (asked.get(name) || "") === value }, text)));
  return el("label", {}, label, pick);
}

function write(name, label) {
  return el("label", {}, label, el("input", { name, value: asked.get(name) || "", onchange: (event) => { asked.set(name, event.target.value.trim()); if (!event.target.value.trim()) asked.delete(name); location.search = asked; } }));
}

const any = (values) => [["", "any"], ...values.map((value) => [value, value])];

// ---- views ----

const DRAW = {
  now(data) {
    const turn = (run) => (run.turn.ahead_in_thread ? `behind ${run.turn.ahead_in_thread} of its thread` : run.turn.ahead_elsewhere ? `number ${run.turn.ahead_elsewhere}` : "next");
    return [el("h1", {}, "What goes on"),
      el("div", { class: "cards" }, card("going", data.going.length), card("waiting", data.waiting_in_all), card("slots in each process", data.capacity), card("spent today (UTC)", money(data.spent_micro_usd)),
        card("failed, of all kept", count(data.counts.failed || 0)), card("threads not told", count(Object.values(data.undelivered).reduce((sum, n) => sum + n, 0)))),
      el("h2", {}, "Going"), table(data.going, RUN, "Nothing goes on."),
      el("h2", {}, "Waiting, and whose turn it is"), table(data.waiting, [["Turn", turn, "name"], ...RUN], "Nothing waits."),
      el("h2", {}, "Prepared sandboxes of this process"), table(data.pools, [["Provider", (pool) => pool.provider, "name"], ["Wait", (pool) => `${pool.waiting} of ${pool.size}`, "number"], ["Taken", (pool) => pool.taken, "number"], ["Missed", (pool) => pool.missed, "number"], ["Failed", (pool) => pool.failed, "number"]], "None are prepared."),
      el("h2", {}, "Sandboxes that are kept for threads"), table(data.kept, [["Thread's name", (one) => one.name, "name"], ["Provider", (one) => one.provider, "name"], ["Status", (one) => one.status, "name"]], "None are kept.")];
  },

  runs(data) {
    const last = data.runs.at(-1);
    const older = new URLSearchParams(asked);
    if (last) older.set("before", last.created_at);
    return [el("h1", {}, "Runs"),
      el("div", { class: "filters" }, filter("state", "State", any(["accepted", "placed", "queued", "running", "answering", "succeeded", "failed", "stopped"])), write("user", "Person"), write("agent", "Agent"), write("provider", "Sandbox"), write("code", "Code")),
      table(data.runs, RUN, "None is meant."),
      last ? el("p", {}, el("a", { href: `?${older}` }, "older")) : null];
  },

  run(data) {
    const { row } = data;
    const nodes = treeOf(data.steps);
    const start = Math.min(...data.steps.map((step) => step.start_ms));
    const end = Math.max(...data.steps.map((step) => step.end_ms));
    const hidden = new Set(["settings", "trace", "hosts", "asked", "files_in", "files_out"]);
    const facts = Object.entries(row).filter(([name, value]) => !hidden.has(name) && value !== null && value !== "");
    return [el("h1", {}, badge(data), " ", data.text || "(no text)"),
      data.trace ? el("p", {}, el("a", { href: data.trace, rel: "noopener noreferrer" }, "its trace")) : null,
      data.session ? el("p", {}, "Its thread's sandbox: ", el("code", {}, `orion sandboxes shell ${data.session.name}`), ` (${data.session.status}, ${data.session.provider}), saved: ${Object.keys(data.session.snapshots).join(", ") || "nothing yet"}`) : null,
      el("h2", {}, "Steps"), nodes.length ? fall.draw(nodes, { start, span: Math.max(end - start, 1), label: `${data.steps.length} steps` }) : el("p", { class: "none" }, "None are kept."),
      el("h2", {}, "Why it had what it had"), table(row.settings, [["Setting", (one) => one.name, "name"], ["Value", (one) => one.value || "none"], ["From", (one) => one.source]], "Nothing is kept of that."),
      el("h2", {}, "Hosts"), table(row.hosts, [["Host", (one) => one.host || "(unreadable)", "name"], ["Connections", (one) => one.connections, "number"], ["Out", (one) => count(one.sent_bytes), "number"], ["In", (one) => count(one.received_bytes), "number"], ["Refused", (one) => (one.refusals ? `${one.refusals}: ${one.reason}` : "")]], "None but the model."),
      el("h2", {}, "What people were asked"), table(row.asked, [["Kind", (one) => one.kind, "name"], ["What", (one) => one.target], ["Became", (one) => one.state, "name"], ["By", (one) => one.by.join(", "), "name"]], "Nothing."),
      ...section("Answer", data.answer), ...section("Log, masked", data.log), ...section("Changes", data.patch),
      el("h2", {}, "Record"), table(facts, [["Field", ([name]) => name, "name"], ["Value", ([, value]) => (typeof value === "object" ? JSON.stringify(value) : String(value))]], "")];
  },

  money(data) {
    const most = Math.max(1, ...data.sums.map((sum) => sum.cost_micro_usd || 0));
    const bar = (sum) => {
      const part = el("i");
      part.style.width = `${((sum.cost_micro_usd || 0) / most) * 100}%`;
      return part;
    };
    return [el("h1", {}, "Money"),
      el("div", { class: "filters" }, filter("by", "By", [["", "day"], ["user", "person"], ["channel", "channel"], ["agent", "agent"], ["model", "model"]]), filter("days", "Days", [["1", "1"], ["", "7"], ["30", "30"], ["90", "90"]])),
      table(data.sums, [["", (sum) => sum.name, "name"], ["Runs", (sum) => count(sum.runs), "number"], ["Tokens", (sum) => count(sum.tokens), "number"], ["Cost", (sum) => money(sum.cost_micro_usd), "number"], ["Of unknown cost", (sum) => count(sum.runs_of_unknown_cost), "number"], ["", bar]], "Nothing was spent.")];
  },

  errors(data) {
    return [el("h1", {}, "Errors"), el("div", { class: "filters" }, filter("days", "Days", [["1", "1"], ["", "7"], ["30", "30"], ["90", "90"]])),
      table(data.errors, [["Code", (error) => el("a", { href: `/ops/runs?code=${encodeURIComponent(error.code)}` }, error.code), "name"], ["Times", (error) => count(error.count), "number"], ["The last one", (error) => link(error.last, error.last.text || "(no text)"), "text"], ["When", (error) => time(error.last.created_at), "when"]], "None.")];
  },

  processes(data) {
    return [el("h1", {}, "Processes"), table(data.processes, [["Process", (one) => one.name, "name"], ["Version", (one) => one.version || "unknown", "name"], ["Does", (one) => (one.is_working ? "works" : "hears"), "name"], ["Files at", (one) => one.place || "nowhere", "name"], ["Runs", (one) => one.runs, "number"], ["Since", (one) => time(one.started_at), "when"]], "None lives.")];
  },

  audit(data) {
    return [el("h1", {}, "Who was allowed or refused what"),
      el("div", { class: "filters" }, filter("act", "Act", any(["ask", "settings", "memory", "own-keys", "link", "stop", "approve"])), filter("verdict", "Verdict", any(["allowed", "refused"])), write("user", "Person"), write("channel", "Channel")),
      table(data.entries, [["When", (one) => time(one.at), "when"], ["Who", (one) => one.user, "name"], ["Channel", (one) => one.channel, "name"], ["Act", (one) => one.act, "name"], ["What", (one) => one.target], ["", (one) => el("span", { class: `badge ${one.is_allowed ? "good" : "error"}` }, one.is_allowed ? "allowed" : "refused"), "name"], ["By", (one) => one.reason], ["Run", (one) => (one.run_id ? link({ id: one.run_id }, one.run_id.slice(0, 12)) : ""), "name"]], "Nothing is kept.")];
  },
};

function section(title, text) {
  return text ? [el("h2", {}, title), el("pre", { tabindex: 0 }, text)] : [];
}

// Steps name the step that they are a part of; of those with its name the last one that had begun is meant.
function treeOf(steps) {
  const nodes = steps.map((step, number) => ({ ...step, id: String(number), type: "span", level: step.error ? "ERROR" : "DEFAULT", code: step.error, status: step.error, children: [] }));
  const roots = [];
  for (const node of nodes) {
    const parents = nodes.filter((other) => other !== node && other.name === node.parent && other.start_ms <= node.start_ms);
    (parents.length ? parents.at(-1).children : roots).push(node);
  }
  return roots;
}

// ---- what it loads ----

function draw(data) {
  state.data = data;
  const scrolled = $view.scrollTop;
  const parts = DRAW[view](data).filter(Boolean);
  const $filters = $view.querySelector(".filters"); // stays: somebody may be writing in it
  if ($filters) {
    while ($filters.nextSibling) $filters.nextSibling.remove();
    $filters.after(...parts.slice(parts.findIndex((part) => part.className === "filters") + 1));
  } else $view.replaceChildren(...parts);
  $view.scrollTop = scrolled;
}

function address() {
  const api = view === "run" ? `/ops/api/runs/${path[1]}` : `/ops/api/${view}`;
  return asked.size ? `${api}?${asked}` : api;
}

const loading = { isGoing: false, isMeantAgain: false };
async function load() {
  loading.isMeantAgain = loading.isGoing;
  if (loading.isGoing) return;
  loading.isGoing = true;
  try {
    const response = await fetch(address(), { signal: AbortSignal.timeout(15_000) });
    if (response.status === 401) return location.reload();
    const data = await response.json();
    if (response.status >= 500) throw new Error(data.error);
    tell("live", true);
    if (response.ok) draw(data);
    else $view.replaceChildren(el("p", { class: "problem", role: "alert" }, data.error), asked.size ? el("p", {}, el("a", { href: location.pathname }, "without the filter")) : "");
  } catch (error) {
    tell("not reachable", false);
    if (!state.data) $view.replaceChildren(el("p", { class: "problem", role: "alert" }, error.message));
  } finally {
    loading.isGoing = false;
    if (loading.isMeantAgain) load(); // what changed meanwhile may not be in what came
  }
}

function tell(text, isLive) {
  $live.className = isLive ? "live" : "live off";
  $live.textContent = text;
}

function listen() {
  const source = new EventSource("/ops/events");
  source.onmessage = load;
  source.onerror = () => {
    // A browser comes back by itself after a cut, but not after a refusal, as where there are no streams.
    if (source.readyState === EventSource.CLOSED) setInterval(load, SLOW_MS);
  };
}

document.getElementById("views").append(...VIEWS.map(([name, title, href]) => el("a", { href, "aria-current": name === view || (view === "run" && name === "runs") ? "page" : null }, title)));
document.addEventListener("keydown", (event) => {
  if (view !== "run" || event.target.closest("pre, input, select") || event.metaKey || event.ctrlKey || event.altKey) return;
  if (fall.press(event.key)) event.preventDefault();
});
document.title = `${document.querySelector("#views [aria-current]")?.textContent ?? "Orion"} \u00b7 Orion`;
if (path.length === 2 ? view === "run" : VIEWS.some(([name]) => name === view)) {
  load();
  listen();
} else $view.replaceChildren(el("h1", {}, "There is no such page"), el("p", {}, "The views are above."));
