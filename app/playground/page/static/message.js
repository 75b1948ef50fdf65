// One message as a list item that can be brought up to date in place.

import { post, press, tellOutcome } from "./api.js";
import { renderBlocks } from "./blocks.js";
import { openModal } from "./modal.js";
import { el, link, mrkdwn } from "./text.js";

const HUES = 8;
// Who is told as the author of a deleted message that has replies.
const GONE = { id: "USLACKBOT", name: "Slackbot", real_name: "Slackbot", is_bot: false };

export function avatar(person) {
  const hue = [...person.id].reduce((sum, char) => sum + char.charCodeAt(0), 0) % HUES;
  const initials = person.real_name.split(" ").map((word) => word[0]).slice(0, 2).join("").toUpperCase();
  return el("span", { class: person.is_bot ? "avatar bot" : `avatar hue-${hue}`, "aria-hidden": "true" }, person.is_bot ? "" : initials);
}

function time(ts) {
  const at = new Date(Number(ts.split(".")[0]) * 1000);
  const text = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return el("time", { datetime: at.toISOString(), title: at.toLocaleString() }, text);
}

function body(message, state) {
  const pressed = async (element, value, node) => {
    node.setAttribute("aria-busy", "true");
    const answer = await press(message, element, value, state.me);
    node.removeAttribute("aria-busy");
    if (answer && answer.view) openModal(answer.view, state);
    return Boolean(answer);
  };
  const nodes = renderBlocks(message, state.people, pressed) || (message.text ? [mrkdwn(message.text, state.people)] : []);
  nodes.push(...(message.attachments || []).map((one) => attachment(one, state, pressed)), ...(message.files || []).map(file));
  if (message.streaming_state === "in_progress") nodes.push(el("span", { class: "streaming", role: "img", "aria-label": "being written" }));
  if (message.streaming_state === "errored") nodes.push(el("span", { class: "stream-error" }, "Slack ended this message before it was complete."));
  if (message.edited) nodes.push(el("span", { class: "edited" }, "(edited)"));
  if (message.reactions) {
    nodes.push(el("div", { class: "reactions" }, ...message.reactions.map((reaction) => el("span", { class: "reaction" }, `:${reaction.name}: ${reaction.count}`))));
  }
  return nodes;
}

// One that cannot be drawn hides no other.
function shown(message, state) {
  try {
    return body(message, state);
  } catch (error) {
    return [el("span", { class: "stream-error" }, `The playground cannot show this message: ${error.message}`)];
  }
}

// The message shortcut of the app's manifest.
async function askAbout(message, state) {
  const answer = await post("/ui/shortcuts", { channel: message.channel, ts: message.ts, callback_id: "ask_about", user: state.me });
  tellOutcome(answer);
  if (answer && answer.view) openModal(answer.view, state);
}

function react(message, name, state) {
  return post("/ui/reactions", { channel: message.channel, ts: message.ts, name, user: state.me });
}

function remove(message, state) {
  return post("/ui/delete", { channel: message.channel, ts: message.ts, user: state.me });
}

function file(one) {
  return el("div", { class: "file" }, el("strong", {}, one.name), ` ${one.size} bytes`);
}

// A forwarded message, or another app's card.
function attachment(one, state, pressed) {
  const inner = one.message_blocks ? renderBlocks({ ...one.message_blocks[0].message, is_bot: true }, state.people, pressed) : null;
  const text = one.text && !inner ? mrkdwn(one.text, state.people) : null;
  const fields = (one.fields || []).map((field) => el("div", {}, el("strong", {}, field.title), " ", mrkdwn(String(field.value ?? ""), state.people)));
  const blocks = one.blocks ? renderBlocks({ blocks: one.blocks, is_bot: true }, state.people, pressed) : null;
  const head = one.author_name ? el("div", { class: "attachment-author" }, one.author_name) : null;
  const title = one.title ? el("strong", {}, one.title_link ? link(one.title_link, one.title) : one.title) : null;
  const files = (one.files || []).map(file);
  const nested = (one.attachments || []).map((other) => attachment(other, state, pressed));
  const foot = one.footer ? el("div", { class: "attachment-footer" }, one.footer) : null;
  const parts = [head, title, text, ...(inner || []), ...(blocks || []), ...fields, ...nested, ...files, foot];
  return el("blockquote", { class: "attachment" }, ...parts.filter(Boolean));
}

function summary(message, state) {
  if (!message.reply_count || message.thread_ts !== message.ts) return null;
  const people = message.reply_users.map((id) => state.people.get(id)).filter(Boolean);
  const count = `${message.reply_count} ${message.reply_count === 1 ? "reply" : "replies"}`;
  return el("button", { type: "button", class: "replies", onclick: () => state.openThread(message.ts) }, ...people.slice(0, 4).map(avatar), el("span", {}, count));
}

// What the person sees of a message; equal keys need no new nodes.
function key(message) {
  return JSON.stringify([message.text, message.blocks, message.streaming_state, message.edited, message.files, message.attachments, message.reactions, message.reply_count, message.latest_reply]);
}

export function messageItem(message, state, { inThread }) {
  const person = state.people.get(message.user) || GONE;
  const item = el("li", { class: "message", "data-ts": message.ts, tabindex: "-1" });
  const head = el("div", { class: "message-head" },
    el("span", { class: "author" }, person.name),
    person.is_bot ? el("span", { class: "badge" }, "App") : null,
    person !== GONE && person.team_id !== state.people.get(state.bot).team_id ? el("span", { class: "badge external" }, "External") : null,
    time(message.ts));
  const content = el("div", { class: "message-body" });
  const foot = el("div", { class: "message-foot" });
  const privacy = message.ephemeral_to ? el("div", { class: "only-you" }, "Only visible to you") : null;
  item.append(avatar(person), el("div", { class: "message-main" }, privacy, head, content, foot));
  if (!message.ephemeral_to) {
    const reply = inThread ? null : el("button", { type: "button", onclick: () => state.openThread(message.ts) }, "Reply in thread");
    const forward = el("button", { type: "button", onclick: () => state.forward(message) }, "Forward");
    const ask = el("button", { type: "button", onclick: () => askAbout(message, state) }, "Ask Orion about this");
    const cross = el("button", { type: "button", "aria-label": "React with :x:", title: "React with :x:", onclick: () => react(message, "x", state) }, ":x:");
    const own = message.user === state.me ? [
      el("button", { type: "button", onclick: () => state.edit(item.message) }, "Edit"),
      el("button", { type: "button", onclick: () => remove(message, state) }, "Delete")] : [];
    item.append(el("div", { class: "message-tools" }, ...[reply, forward, ask, cross, ...own].filter(Boolean)));
  }
  if (message.ephemeral_to) item.classList.add("ephemeral");
  updateItem(item, message, state, { inThread });
  return item;
}

export function updateItem(item, message, state, { inThread }) {
  const now = key(message);
  // A listing may arrive after a newer live update.
  if (item.dataset.key === now || message.version < Number(item.dataset.version || 0)) return;
  item.dataset.key = now;
  item.dataset.version = message.version;
  item.message = message;
  if (message.subtype === "tombstone") item.querySelector(".message-tools")?.remove();
  const content = item.querySelector(".message-body");
  const buttons = [...content.querySelectorAll("button")];
  const focused = buttons.indexOf(document.activeElement);
  content.replaceChildren(...shown(message, state));
  // Whoever stood on a button stands on its successor.
  if (focused >= 0) content.querySelectorAll("button")[focused]?.focus();
  if (!inThread) item.querySelector(".message-foot").replaceChildren(...[summary(message, state)].filter(Boolean));
}
