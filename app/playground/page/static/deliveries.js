// Every attempt to reach the app, newest first.

import { get } from "./api.js";
import { el } from "./text.js";
import { setUpTheme } from "./theme.js";

const REFRESH_MS = 2000;

function row(entry) {
  const ok = entry.reason === "";
  const answer = el("span", { class: ok ? "good" : "bad" }, ok ? String(entry.status) : [entry.status, entry.reason].filter(Boolean).join(" "));
  const attempt = entry.attempt ? `retry ${entry.attempt}` : "first";
  return el("tr", {}, el("td", {}, new Date(entry.at).toLocaleTimeString()), el("td", {}, entry.type), el("td", { class: "code" }, entry.event_id),
    el("td", {}, attempt), el("td", {}, entry.via), el("td", {}, answer), el("td", { class: "number" }, `${entry.latency_ms} ms`));
}

async function refresh() {
  try {
    const answer = await get("/ui/deliveries");
    const way = answer.sockets ? `${answer.sockets} socket(s)` : answer.events_url || "nowhere yet";
    document.getElementById("summary").textContent = `${answer.deliveries.length} deliveries, to ${way}. An answer must come within 3 seconds.`;
    document.querySelector("#deliveries tbody").replaceChildren(...answer.deliveries.map(row));
  } catch {
    document.getElementById("summary").textContent = "The playground does not answer.";
  }
  setTimeout(refresh, REFRESH_MS);
}

setUpTheme(document.getElementById("theme"));
refresh();
