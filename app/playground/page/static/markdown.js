// Standard Markdown (the `markdown` block) to DOM nodes: headings, lists, quotes, tables, fences, inline marks.
// Builds elements and text nodes only, so raw HTML in the source is shown as text.

import { el, link, tokens } from "./text.js";

const MAX_DEPTH = 8;
const INLINE = [
  [/(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)/, (match) => el("code", {}, match[2].trim() || match[2])],
  [/!?\[([^\[\]]*)\]\(<?([^()\s<>]+(?:\([^()\s]*\)[^()\s<>]*)*)>?(?:\s+"[^"]*")?\)/, (match, more) => link(match[2], ...more(match[1] || match[2]))],
  [/<((?:https?:\/\/|mailto:)[^<>\s|]+)>/, (match) => link(match[1], match[1])],
  [/https?:\/\/[^\s<>|]*[^\s<>|.,;:!?)\]}'"*_]/, (match) => link(match[0], match[0])],
  [/\*\*\*(?=\S)([^*]*[^\s*])\*\*\*/, (match, more) => el("strong", {}, el("em", {}, ...more(match[1])))],
  [/\*\*(?=\S)([\s\S]*?\S)\*\*|__(?=\S)([\s\S]*?\S)__(?!\w)/, (match, more) => el("strong", {}, ...more(match[1] || match[2]))],
  [/~~(?=\S)([\s\S]*?\S)~~/, (match, more) => el("s", {}, ...more(match[1]))],
  [/\*(?=[^\s*])([^*\n]*[^\s*])\*|(?<!\w)_(?=[^\s_])([^_\n]*[^\s_])_(?!\w)/, (match, more) => el("em", {}, ...more(match[1] || match[2]))],
  [/\\([\\`*_{}[\]()#+\-.!~|<>])/, (match) => document.createTextNode(match[1])],
];

function inline(text, people, depth = 0) {
  if (depth > MAX_DEPTH || !text) return text ? [text] : [];
  const nodes = [];
  let rest = text;
  while (rest) {
    let first = null;
    for (const [pattern, make] of INLINE) {
      const match = pattern.exec(rest);
      if (match && (!first || match.index < first.match.index)) first = { match, make };
    }
    if (!first) break;
    const { match, make } = first;
    nodes.push(...tokens(rest.slice(0, match.index), people, (plain) => plain));
    nodes.push(make(match, (inner) => inline(inner, people, depth + 1)));
    rest = rest.slice(match.index + match[0].length);
  }
  nodes.push(...tokens(rest, people, (plain) => plain));
  return nodes;
}

function withBreaks(text, people) {
  const nodes = [];
  for (const [index, line] of text.split("\n").entries()) {
    if (index) nodes.push(el("br"));
    nodes.push(...inline(line.replace(/ +$|\\$/, ""), people));
  }
  return nodes;
}

const FENCE = /^\s{0,3}(```+(?=[^`]*$)|~~~+)\s*(\S*)/;
const INDENTED = /^(?: {4}|\t)/;
const UNDERLINE = /^\s{0,3}(=+|-+)\s*$/;
const HEADING = /^\s{0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^\s{0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

export function markdown(source, people) {
  return el("div", { class: "text markdown" }, ...blocks(source.replaceAll("\r", "").split("\n"), people, 0));
}

function blocks(lines, people, depth) {
  const nodes = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const isTable = line.includes("|") && at + 1 < lines.length && lines[at + 1].includes("-") && TABLE_RULE.test(lines[at + 1]);
    let taken = null;
    if (!line.trim()) at += 1;
    else if (FENCE.test(line)) taken = fence(lines, at);
    else if (HEADING.test(line)) taken = heading(lines, at, people);
    else if (RULE.test(line)) taken = { node: el("hr"), next: at + 1 };
    else if (/^\s{0,3}>/.test(line)) taken = quote(lines, at, people, depth);
    else if (ITEM.test(line) && depth < MAX_DEPTH) taken = list(lines, at, people, depth);
    else if (isTable) taken = table(lines, at, people);
    else if (INDENTED.test(line)) taken = indented(lines, at);
    else taken = paragraph(lines, at, people);
    if (taken) {
      nodes.push(taken.node);
      at = taken.next;
    }
  }
  return nodes;
}

function fence(lines, at) {
  const [, mark, language] = FENCE.exec(lines[at]);
  let end = at + 1;
  const isEnd = (line) => line.trim().startsWith(mark) && !line.trim().replaceAll(mark[0], "");
  while (end < lines.length && !isEnd(lines[end])) end += 1;
  const code = el("code", {}, lines.slice(at + 1, end).join("\n"));
  return { node: el("pre", { "data-language": language || null }, code), next: end + 1 };
}

function indented(lines, at) {
  let end = at;
  while (end < lines.length && (INDENTED.test(lines[end]) || !lines[end].trim())) end += 1;
  const text = lines.slice(at, end).map((line) => line.replace(INDENTED, "")).join("\n").trimEnd();
  return { node: el("pre", {}, el("code", {}, text)), next: end };
}

function heading(lines, at, people) {
  const [, marks, text] = HEADING.exec(lines[at]);
  // The page owns h1 and h2.
  return { node: el(`h${Math.min(marks.length + 2, 6)}`, {}, ...inline(text, people)), next: at + 1 };
}

function quote(lines, at, people, depth) {
  let end = at;
  while (end < lines.length && /^\s{0,3}>/.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(/^\s{0,3}> ?/, ""));
  const content = depth < MAX_DEPTH ? blocks(inner, people, depth + 1) : [inner.join("\n")];
  return { node: el("blockquote", {}, ...content), next: end };
}

function list(lines, at, people, depth) {
  const [, indent, marker] = ITEM.exec(lines[at]);
  const ordered = /\d/.test(marker);
  const node = el(ordered ? "ol" : "ul", ordered ? { start: parseInt(marker, 10) } : {});
  let end = at;
  while (end < lines.length) {
    const match = ITEM.exec(lines[end]);
    if (!match || match[1].length > indent.length + 1 || match[2].at(-1) !== marker.at(-1)) break;
    const inner = [match[3]];
    const content = match[1].length + match[2].length + 1;
    end += 1;
    while (end < lines.length) {
      const line = lines[end];
      const width = line.length - line.trimStart().length;
      const isNested = width > indent.length + 1 || (line.trim() && width >= content);
      const isGap = !line.trim() && end + 1 < lines.length && /^\s/.test(lines[end + 1]) && lines[end + 1].trim();
      const isLazy = line.trim() && !ITEM.test(line) && lines[end - 1].trim() && !FENCE.test(line) && !HEADING.test(line) && !line.startsWith(">");
      if (!isNested && !isGap && !isLazy) break;
      inner.push(line.slice(Math.min(width, content)));
      end += 1;
    }
    node.append(el("li", {}, ...item(inner, people, depth)));
    while (end < lines.length && !lines[end].trim() && end + 1 < lines.length && ITEM.test(lines[end + 1])) end += 1;
  }
  return { node, next: end };
}

function item(lines, people, depth) {
  const nodes = blocks(lines, people, depth + 1);
  // A single paragraph needs no box of its own.
  return nodes.length && nodes[0].tagName === "P" ? [...nodes[0].childNodes, ...nodes.slice(1)] : nodes;
}

function cells(line) {
  const parts = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "").split(/(?<!\\)\|/);
  return parts.map((part) => part.trim().replaceAll("\\|", "|"));
}

function table(lines, at, people) {
  const head = cells(lines[at]);
  const align = cells(lines[at + 1]).map((rule) => (rule.endsWith(":") ? (rule.startsWith(":") ? "center" : "right") : null));
  let end = at + 2;
  const body = el("tbody");
  while (end < lines.length && lines[end].includes("|") && lines[end].trim()) {
    const row = cells(lines[end]);
    body.append(el("tr", {}, ...head.map((_, column) => el("td", { "data-align": align[column] }, ...inline(row[column] || "", people)))));
    end += 1;
  }
  const titles = head.map((title, column) => el("th", { scope: "col", "data-align": align[column] }, ...inline(title, people)));
  const node = el("div", { class: "table" }, el("table", {}, el("thead", {}, el("tr", {}, ...titles)), body));
  return { node, next: end };
}

function paragraph(lines, at, people) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !FENCE.test(lines[end]) && !HEADING.test(lines[end]) && !ITEM.test(lines[end]) && !/^\s{0,3}>/.test(lines[end]) && !RULE.test(lines[end])) {
    if (UNDERLINE.test(lines[end])) break;
    if (lines[end].includes("|") && end + 1 < lines.length && lines[end + 1].includes("-") && TABLE_RULE.test(lines[end + 1])) break;
    end += 1;
  }
  const under = end < lines.length ? UNDERLINE.exec(lines[end]) : null;
  if (under) return { node: el(under[1][0] === "=" ? "h3" : "h4", {}, ...inline(lines.slice(at, end).join(" "), people)), next: end + 1 };
  return { node: el("p", {}, ...withBreaks(lines.slice(at, end).join("\n"), people)), next: end };
}
