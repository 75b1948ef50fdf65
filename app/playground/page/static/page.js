// The page: which channel and thread are open, who the person is, and what arrives.

import { get, post, tellOutcome, toast } from "./api.js";
import { createComposer } from "./composer.js";
import { listen } from "./live.js";
import { createHome } from "./home.js";
import { createPane } from "./pane.js";
import { hint } from "./hint.js";
import { el, unescapeSlack } from "./text.js";
import { setUpTheme } from "./theme.js";

const $ = (id) => document.getElementById(id);
const state = { me: "", bot: "", people: new Map(), channels: [], channel: null, thread: null, statuses: new Map(), unread: new Set(), openThread, forward, edit };
const main = createPane($("messages-scroller"), $("messages"), state, { inThread: false });
const side = createPane($("replies-scroller"), $("replies"), state, { inThread: true });

const isMine = (channel) => channel.members.includes(state.me);
const direct = () => state.channels.find((channel) => channel.im_user === state.me);
const nameOf = (channel) => (channel.im_user ? state.people.get(state.bot).name : `#${channel.name}`);

// One's own message is always brought into view; the bot answers it in a thread, which opens beside it.
async function say(text, threadTs, along = {}) {
  const channel = state.channel;
  if (/^\/orion(\s|$)/.test(text)) return command(text, threadTs);
  const answer = await post("/ui/messages", { channel: channel.id, user: state.me, text, thread_ts: threadTs, ...along });
  if (!answer || channel.id !== state.channel.id) return answer;
  (threadTs ? side : main).toBottom();
  const asksBot = channel.im_user || text.toLowerCase().includes(`@${state.people.get(state.bot).name.toLowerCase()}`);
  if (!threadTs && asksBot && matchMedia("(min-width: 900px)").matches) openThread(answer.ts);
  return answer;
}

// Slack has no slash commands of apps in threads; the answer comes as a message that only the asker sees.
async function command(text, threadTs) {
  if (threadTs) return toast("Slash commands do not work in threads.");
  const answer = await post("/ui/commands", { channel: state.channel.id, user: state.me, text });
  tellOutcome(answer);
  main.toBottom();
  return answer && answer.ok;
}

const people = () => [...state.people.values()].filter((person) => person.id !== state.me).sort((a, b) => Number(b.is_bot) - Number(a.is_bot));
const mainComposer = createComposer($("composer-main"), {
  label: () => (state.channel ? `Message ${nameOf(state.channel)}` : "Message"),
  send: (text, along) => say(text, null, along),
  edit: retype,
  candidates: people,
});
const threadComposer = createComposer($("composer-thread"), { label: () => "Reply", send: (text, along) => say(text, state.thread, along), edit: retype, candidates: people });

const home = createHome({ tabs: $("tabs"), home: $("home"), messages: $("messages-scroller"), composer: $("composer-main"), prompts: $("prompts") }, state, { say: (text) => say(text, null) });

function forward(message) {
  (state.thread ? threadComposer : mainComposer).forward(message, state.people.get(message.user).name);
}

// What the person typed, for the box in which its new wording is written.
function edit(message) {
  const typed = message.text.replace(/<@(\w+)(?:\|[^>]*)?>/g, (_, id) => `@${state.people.get(id)?.name ?? id}`);
  const isReply = message.thread_ts && message.thread_ts !== message.ts;
  (isReply ? threadComposer : mainComposer).edit(message, unescapeSlack(typed));
}

function retype(text, message) {
  return post("/ui/edit", { ...message, user: state.me, text });
}

// ---- sidebar ----

function renderSidebar() {
  const entry = (channel) => {
    const isOpen = state.channel && channel.id === state.channel.id;
    const button = el("button", { type: "button", "aria-current": isOpen ? "page" : null, onclick: () => openChannel(channel.id) },
      el("span", { class: channel.im_user ? "sign dm" : "sign", "aria-hidden": "true" }, channel.im_user ? "" : "#"),
      el("span", { class: "entry-name" }, channel.im_user ? nameOf(channel) : channel.name),
      channel.is_ext_shared && !channel.im_user ? el("span", { class: "badge external" }, "shared") : null,
      state.unread.has(channel.id) ? el("span", { class: "unread", role: "img", "aria-label": "unread" }) : null);
    return el("li", { "data-channel": channel.id }, button);
  };
  const mine = state.channels.filter(isMine);
  $("channels").replaceChildren(...mine.filter((channel) => !channel.im_user).map(entry));
  $("directs").replaceChildren(...mine.filter((channel) => channel.im_user).map(entry));
}

function renderFrame(answer) {
  $("banners").replaceChildren(...answer.banners.map((text) => el("p", { class: "banner" }, text)),
    ...(answer.outage ? [el("p", { class: "banner bad" }, "Slack is down (switched off by a test).")] : []));
  $("links").replaceChildren(...answer.links.map((item) => el("a", { href: item.href }, item.label)));
  const options = answer.people.filter((person) => !person.is_bot).map((person) => el("option", { value: person.id }, person.real_name));
  $("me").replaceChildren(...options);
  $("me").value = state.me;
}

function showMenu(open) {
  document.body.classList.toggle("menu-open", open);
  $("menu").setAttribute("aria-expanded", String(open));
}

// ---- opening ----

async function openChannel(id, { keepThread = false } = {}) {
  state.channel = state.channels.find((channel) => channel.id === id);
  state.unread.delete(id);
  if (!keepThread) closeThread();
  showMenu(false);
  $("channel-name").textContent = nameOf(state.channel);
  $("channel-note").textContent = state.channel.is_archived ? "archived" : state.channel.is_ext_shared ? "shared with another company" : "";
  document.title = `${nameOf(state.channel)} - Orion playground`;
  mainComposer.relabel();
  renderSidebar();
  main.clear();
  await Promise.all([loadMain({ fresh: true }), home.open()]);
  mainComposer.focus();
}

async function loadMain({ fresh }) {
  const [channel, user] = [state.channel.id, state.me];
  const answer = await get("/ui/messages", { channel, user });
  if (channel !== state.channel.id || user !== state.me) return;
  for (const status of answer.statuses) keepStatus(status);
  main.show(answer, { fresh });
  renderHint(answer.messages.length === 0);
}

function renderHint(isEmpty) {
  $("hint")?.remove();
  if (!isEmpty || state.people.size === 0) return;
  $("messages").before(hint({ isDirect: Boolean(state.channel.im_user), say: (text) => say(text, null), sayDirect: async (text) => {
    await openChannel(direct().id);
    await say(text, null);
  } }));
}

async function openThread(ts) {
  state.thread = ts;
  $("thread").hidden = false;
  document.body.classList.add("thread-open");
  side.clear();
  await loadThread({ fresh: true });
  threadComposer.focus();
}

async function loadThread({ fresh }) {
  const [thread, user] = [state.thread, state.me];
  if (!thread) return;
  const answer = await get("/ui/messages", { channel: state.channel.id, thread_ts: thread, user });
  if (thread !== state.thread || user !== state.me) return;
  for (const status of answer.statuses) keepStatus(status);
  side.show(answer, { fresh });
  $("thread-note").textContent = nameOf(state.channel);
  renderSession();
}

function closeThread() {
  state.thread = null;
  $("thread").hidden = true;
  document.body.classList.remove("thread-open");
}

// ---- status and native Stop ----

function keepStatus(status) {
  state.statuses.set(`${status.channel} ${status.thread_ts}`, status);
  if (status.status) setTimeout(renderSession, status.expires_in_s * 1000 + 100);
  status.expiresAt = Date.now() + status.expires_in_s * 1000;
}

function renderSession() {
  const status = state.thread && state.statuses.get(`${state.channel.id} ${state.thread}`);
  const isWorking = Boolean(status && status.session === "processing");
  const line = status && status.expiresAt > Date.now() ? status.status : "";
  const text = status && (line || (isWorking ? "is working" : ""));
  $("session").hidden = !text;
  if (!text) return $("session").replaceChildren();
  const stop = el("button", { type: "button", class: "native-stop", onclick: async (event) => {
    event.currentTarget.disabled = true;
    await post("/ui/stop", { channel: state.channel.id, thread_ts: state.thread, user: state.me });
    renderSession();
  } }, "Stop");
  $("session").replaceChildren(el("span", { class: "pulse", "aria-hidden": "true" }), el("span", {}, `${state.people.get(state.bot).name} ${text}`), isWorking ? stop : "");
}

// ---- what arrives ----

function onItem(item) {
  if (item.kind === "status") {
    keepStatus(item);
    renderSession();
  } else if (item.kind === "home" || item.kind === "prompts") {
    if (item.channel === state.channel.id) home.refresh();
  } else if (item.kind === "channel" || item.kind === "state") {
    loadState();
  } else if (item.message) {
    onMessage(item.kind, item.message);
  }
}

function onMessage(kind, message) {
  const channel = state.channels.find((other) => other.id === message.channel);
  const isForMe = !message.ephemeral_to || message.ephemeral_to === state.me;
  if (!channel || !isMine(channel) || !isForMe) return;
  const isNew = kind === "posted" || kind === "ephemeral";
  if (message.channel !== state.channel.id) {
    if (isNew && message.user !== state.me) {
      state.unread.add(message.channel);
      renderSidebar();
    }
    return;
  }
  const isReply = message.thread_ts && message.thread_ts !== message.ts;
  if (!isReply) {
    main.upsert(message);
    $("hint")?.remove();
  }
  if (state.thread && (message.thread_ts === state.thread || message.ts === state.thread)) side.upsert(message);
  if (isNew && message.user !== state.me) announce(`${state.people.get(message.user).name}: ${message.text.slice(0, 120)}`);
}

function announce(text) {
  $("announcer").textContent = text;
}

async function loadState() {
  const answer = await get("/ui/state");
  state.bot = answer.bot;
  state.me = state.me || sessionStorage.getItem("orion-me") || answer.me;
  state.people = new Map(answer.people.map((person) => [person.id, person]));
  state.channels = answer.channels;
  if (state.channel) state.channel = state.channels.find((channel) => channel.id === state.channel.id);
  renderFrame(answer);
  renderSidebar();
}

async function refresh() {
  await loadState();
  await Promise.all([loadMain({ fresh: false }), loadThread({ fresh: false })]);
  document.body.dataset.live = "true";
}

async function become(user) {
  state.me = user;
  sessionStorage.setItem("orion-me", user);
  state.unread.clear();
  announce("");
  renderSidebar();
  const stay = state.channel && isMine(state.channel) ? state.channel : state.channels.find(isMine);
  await openChannel(stay.id);
}

setUpTheme($("theme"));
$("me").addEventListener("change", (event) => become(event.target.value));
$("menu").addEventListener("click", () => showMenu(!document.body.classList.contains("menu-open")));
$("close-thread").addEventListener("click", () => {
  closeThread();
  mainComposer.focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.defaultPrevented) return;
  if (document.body.classList.contains("menu-open")) {
    showMenu(false);
    $("menu").focus();
  } else if (state.thread) {
    closeThread();
    mainComposer.focus();
  }
});

await loadState();
// A permalink names a channel and a thread.
const asked = new URLSearchParams(location.search);
const named = state.channels.find((channel) => isMine(channel) && channel.id === asked.get("channel"));
await openChannel((named || state.channels.find(isMine) || state.channels[0]).id);
if (named && asked.get("thread")) await openThread(asked.get("thread"));
listen({ onItem, onRefresh: refresh, onState: (text) => ($("connection").textContent = text) });
