// Text to DOM nodes: Slack's mrkdwn. Everything becomes text nodes and known elements; no string ever becomes HTML.

export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "onclick") node.addEventListener("click", value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

// Only these schemes may become links; everything else stays text.
export function link(url, ...children) {
  let parsed = null;
  try {
    parsed = new URL(url);
  } catch {
    return el("span", {}, ...children);
  }
  if (!["http:", "https:", "mailto:"].includes(parsed.protocol)) return el("span", {}, ...children);
  return el("a", { href: parsed.href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);
}

export function unescapeSlack(text) {
  return text.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
}

// <@U..>, <#C..|name>, <!here>, <https://..|label>
function token(inner, people) {
  const [target, label] = inner.split(/\|(.*)/s);
  if (target.startsWith("@")) {
    const person = people.get(target.slice(1));
    return el("span", { class: "mention" }, `@${person ? person.name : label || target.slice(1)}`);
  }
  if (target.startsWith("#")) return el("span", { class: "mention" }, `#${label || target.slice(1)}`);
  if (target.startsWith("!date^")) return date(target, label);
  if (target.startsWith("!")) {
    const word = target.slice(1).split("^")[0];
    return el("span", { class: "mention loud" }, label || `@${word}`);
  }
  return link(unescapeSlack(target), unescapeSlack(label || target));
}

// <!date^1795810113^until {time}|until 20:08 UTC>; of Slack's formats the time alone, else what it says for clients that know none.
function date(target, label) {
  const [, seconds, format] = target.split("^");
  const at = new Date(Number(seconds) * 1000);
  const time = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  const known = format.replace("{time}", time);
  return el("time", { datetime: at.toISOString() }, known.includes("{") ? label : known);
}

const TOKEN = /<(!date\^\d{1,12}\^[^<>]+|[@#!][^<>\s]+|(?:https?:|mailto:)[^<>]+)>/g;

export function tokens(text, people, unescape = unescapeSlack) {
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(TOKEN)) {
    nodes.push(unescape(text.slice(end, match.index)), token(match[1], people));
    end = match.index + match[0].length;
  }
  nodes.push(unescape(text.slice(end)));
  return nodes.filter((node) => node !== "");
}

const STYLES = [
  [/(^|[\s(["'])\*(\S(?:[^*\n]*\S)?)\*(?=$|[\s).,;:!?\]"'])/, "strong"],
  [/(^|[\s(["'])_(\S(?:[^_\n]*\S)?)_(?=$|[\s).,;:!?\]"'])/, "em"],
  [/(^|[\s(["'])~(\S(?:[^~\n]*\S)?)~(?=$|[\s).,;:!?\]"'])/, "s"],
];

// `leaf` draws what has no style.
function styled(text, leaf) {
  for (const [pattern, tag] of STYLES) {
    const match = pattern.exec(text);
    if (match) {
      const start = match.index + match[1].length;
      return [
        ...styled(text.slice(0, start), leaf),
        el(tag, {}, ...styled(match[2], leaf)),
        ...styled(text.slice(match.index + match[0].length), leaf),
      ];
    }
  }
  return leaf(text);
}

// Links and mentions are whole before anything else: a style may stand around one, and its label's signs are none.
function inline(text, people) {
  const held = [];
  const hold = (whole) => `\uE000${held.push(whole) - 1}\uE000`;
  const restore = (part) => part.replace(/\uE000(\d+)\uE000/g, (_, number) => held[number]);
  const leaf = (part) => tokens(restore(part), people);
  const plain = text.replaceAll("\uE000", "").replace(TOKEN, hold);
  const nodes = [];
  let end = 0;
  for (const match of plain.matchAll(/`([^`\n]+)`/g)) {
    nodes.push(...styled(plain.slice(end, match.index), leaf), el("code", {}, unescapeSlack(restore(match[1]))));
    end = match.index + match[0].length;
  }
  nodes.push(...styled(plain.slice(end), leaf));
  return nodes;
}

function lines(text, people) {
  const nodes = [];
  let quote = null;
  for (const [index, line] of text.split("\n").entries()) {
    const quoted = /^(?:&gt;|>) ?/.exec(line);
    if (quoted) {
      if (!quote) nodes.push((quote = el("blockquote")));
      else quote.append(el("br"));
      quote.append(...inline(line.slice(quoted[0].length), people));
      continue;
    }
    if (index > 0 && !quote) nodes.push(el("br"));
    quote = null;
    nodes.push(...inline(line, people));
  }
  return nodes;
}

export function mrkdwn(text, people) {
  const box = el("div", { class: "text" });
  let end = 0;
  for (const match of text.matchAll(/```\n?([\s\S]*?)\n?```/g)) {
    box.append(...lines(text.slice(end, match.index).replace(/\n$/, ""), people));
    box.append(el("pre", {}, el("code", {}, unescapeSlack(match[1]))));
    end = match.index + match[0].length;
  }
  box.append(...lines(text.slice(end).replace(end ? /^\n/ : /^(?!)/, ""), people));
  return box;
}
