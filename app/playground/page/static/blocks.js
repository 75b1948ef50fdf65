// A message's blocks to DOM nodes; `press(element, value)` is called for its buttons.

import { markdown } from "./markdown.js";
import { el, link, mrkdwn } from "./text.js";

function textObject(object, people) {
  if (!object) return "";
  return object.type === "mrkdwn" ? mrkdwn(object.text, people) : el("div", { class: "text plain" }, object.text);
}

function button(element, press, value = element.value) {
  const style = ["danger", "primary"].includes(element.style) ? element.style : "";
  const label = element.text ? element.text.text : element.action_id;
  return el("button", {
    type: "button",
    class: `block-button ${style}`,
    "aria-label": element.accessibility_label || null,
    onclick: (event) => press(element, value, event.currentTarget),
  }, label);
}

function feedback(element, press) {
  const box = el("span", { class: "feedback", role: "group", "aria-label": "Feedback" });
  for (const name of ["positive_button", "negative_button"]) {
    const choice = element[name];
    const node = el("button", {
      type: "button",
      class: `feedback-button ${name}`,
      "aria-label": choice.accessibility_label || choice.text.text,
      "aria-pressed": "false",
      title: choice.text.text,
      onclick: async () => {
        if (!(await press(element, choice.value, node))) return;
        for (const other of box.children) other.setAttribute("aria-pressed", String(other === node));
      },
    }, thumb(name === "negative_button"), el("span", { class: "feedback-label" }, choice.text.text));
    box.append(node);
  }
  return box;
}

function thumb(down) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 20 20");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", "M3 9h3v8H3zM6 9l3.500-6.500c1.600 0 2 1.200 1.700 2.500L10.500 8H15.500c1.200 0 1.800 1 1.500 2l-1.500 5.500c-.3 1-1 1.500-2 1.500H6");
  if (down) path.setAttribute("transform", "rotate(180 10 10)");
  svg.append(path);
  return svg;
}

function action(element, press) {
  if (element.type === "feedback_buttons") return feedback(element, press);
  if (element.url) return link(element.url, element.text ? element.text.text : element.url);
  if (element.type === "button" || element.type === "icon_button") return button(element, press);
  return el("span", { class: "note" }, `(${element.type})`);
}

function richText(block, people) {
  const inline = (item) => {
    if (item.type === "link") return link(item.url, item.text || item.url);
    if (item.type === "user") return mrkdwn(`<@${item.user_id}>`, people).firstChild;
    const style = item.style || {};
    let node = document.createTextNode(item.text || item.name || "");
    for (const [name, tag] of [["code", "code"], ["bold", "strong"], ["italic", "em"], ["strike", "s"]]) if (style[name]) node = el(tag, {}, node);
    return node;
  };
  const part = (item) => {
    const children = (item.elements || []).map((child) => (child.elements ? part(child) : inline(child)));
    if (item.type === "rich_text_list") return el(item.style === "ordered" ? "ol" : "ul", {}, ...children.map((child) => el("li", {}, child)));
    if (item.type === "rich_text_preformatted") return el("pre", {}, el("code", {}, ...children));
    return el(item.type === "rich_text_quote" ? "blockquote" : "div", { class: "plain" }, ...children);
  };
  return el("div", { class: "text" }, ...(block.elements || []).map(part));
}

const TASK_STATES = { pending: "to do", in_progress: "in progress", complete: "done", error: "failed" };

function task(card) {
  const state = TASK_STATES[card.status] ? card.status : "pending";
  const mark = el("span", { class: "task-mark", role: "img", "aria-label": TASK_STATES[state] });
  const body = el("span", { class: "task-title" }, card.title);
  return el("div", { class: `task ${state}` }, mark, body, typeof card.details === "string" ? el("span", { class: "task-details" }, card.details) : null);
}

function plan(block) {
  const tasks = block.tasks || [];
  const done = tasks.filter((card) => card.status === "complete" || card.status === "error").length;
  const head = el("summary", {}, el("strong", {}, block.title), el("span", { class: "note" }, ` ${done} of ${tasks.length}`));
  return el("details", { class: "plan", open: done < tasks.length ? "" : null }, head, ...tasks.map(task));
}

const RENDER = {
  section: (block, people, press) => el("div", { class: "section" },
    el("div", { class: "section-text" }, textObject(block.text, people), block.fields ? el("div", { class: "fields" }, ...block.fields.map((field) => textObject(field, people))) : null),
    block.accessory ? action(block.accessory, press) : null),
  markdown: (block, people) => markdown(block.text, people),
  header: (block) => el("h3", { class: "block-header" }, block.text.text),
  divider: () => el("hr"),
  context: (block, people) => el("div", { class: "context" }, ...block.elements.map((item) => (item.type === "image" ? el("span", {}, item.alt_text) : textObject(item, people)))),
  actions: (block, people, press) => el("div", { class: "actions" }, ...block.elements.map((item) => action(item, press))),
  context_actions: (block, people, press) => el("div", { class: "actions quiet" }, ...block.elements.map((item) => action(item, press))),
  image: (block) => el("p", {}, link(block.image_url, block.alt_text)),
  rich_text: (block, people) => richText(block, people),
  plan,
  task_card: task,
};

// Blocks as this page shows them, or null when the message's text should stand for it.
export function renderBlocks(message, people, press) {
  const shown = (message.blocks || []).filter((block) => message.is_bot || block.type !== "rich_text");
  if (!shown.length) return null;
  return shown.map((block) => {
    const render = RENDER[block.type];
    if (!render) return el("div", { class: "note" }, `A "${block.type}" block, which this page does not draw.`);
    return render(block, people, (element, value, node) => press(element, value, node));
  });
}
