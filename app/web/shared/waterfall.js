// The steps of a run as a tree beside their times. A node: id, name, type, level, status, start_ms, end_ms, children, and what else its page shows.

import { el, took } from "./dom.js";

const SHAPES = {
  agent: ["M5 8h8v6H5z", "M9 8V5", "M9 4.2v.1", "M7.4 11v.1M10.6 11v.1", "M3 10v2M15 10v2"],
  generation: ["M9 3l1.6 4.4L15 9l-4.4 1.6L9 15l-1.6-4.4L3 9l4.4-1.6z"],
  tool: ["M11.5 3.5a3.6 3.6 0 0 0-4.4 4.6L3.5 11.700a1.700 1.700 0 1 0 2.700 2.700l3.700-3.600a3.600 3.600 0 0 0 4.600-4.400l-2.200 2.200-2.300-.500-.500-2.300z"],
  span: ["M3 6h8M8.500 3.500L11 6 8.500 8.500", "M15 12H7M9.500 9.500L7 12l2.500 2.500"],
};

export function icon(type) {
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

export const kindOf = (type) => (type in SHAPES ? type : "span");
export const mood = (level) => (level === "ERROR" ? "error" : level === "WARNING" ? "warning" : "");


// `extra`: what stands behind a node's name. `onChange`: something was chosen or folded; the page draws anew.
export function createWaterfall({ extra = () => "", onChange }) {
  const state = { tree: null, selected: null, folded: new Set() };

  function* visible(nodes, depth = 0) {
    for (const node of nodes) {
      yield [node, depth];
      if (!state.folded.has(node.id)) yield* visible(node.children, depth + 1);
    }
  }

  function toggle(node) {
    if (state.folded.has(node.id)) state.folded.delete(node.id);
    else state.folded.add(node.id);
    onChange();
  }

  function select(id) {
    state.selected = id;
    onChange();
    const row = document.getElementById(`row-${id}`);
    if (row) { row.focus({ preventScroll: true }); row.scrollIntoView({ block: "nearest" }); }
  }

  function selected() {
    const stack = [...(state.tree || [])];
    while (stack.length) {
      const node = stack.pop();
      if (node.id === state.selected) return node;
      stack.push(...node.children);
    }
    return null;
  }

  // Shows a tree: from `start`, `span` milliseconds long.
  function draw(tree, { start, span, label }) {
    state.tree = tree;
    if (!state.selected && tree.length) state.selected = tree[0].id;
    const rows = [...visible(tree)].map(([node, depth]) => drawRow(node, depth, start, span));
    return el("div", { class: "fall", role: "tree", "aria-label": "Steps of the run" }, drawAxis(span, label), ...rows);
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
    }, "\u203a");
    const what = el("div", { class: "what" }, fold, icon(node.type), el("span", { class: "name" }, node.name),
      mood(node.level) ? el("span", { class: `badge ${mood(node.level)}`, title: node.status }, node.code || node.level) : null,
      el("span", { class: "extra" }, extra(node)));
    what.style.paddingLeft = `${12 + depth * 18}px`;
    return el("div", {
      class: "row", role: "treeitem", id: `row-${node.id}`, "aria-level": depth + 1, tabindex: node.id === state.selected ? 0 : -1,
      "aria-selected": String(node.id === state.selected), "aria-expanded": node.children.length ? String(!state.folded.has(node.id)) : null,
      onclick: () => select(node.id),
    }, what, el("div", { class: "lane" }, bar, label));
  }

  // The arrow keys; false: another one.
  function press(key) {
    const rows = [...visible(state.tree || [])].map(([node]) => node);
    const at = rows.findIndex((node) => node.id === state.selected);
    const node = rows[at];
    if (key === "ArrowDown" && rows[at + 1]) select(rows[at + 1].id);
    else if (key === "ArrowUp" && rows[at - 1]) select(rows[at - 1].id);
    else if (key === "ArrowLeft" && node && node.children.length) { state.folded.add(node.id); onChange(); }
    else if (key === "ArrowRight" && node) { state.folded.delete(node.id); onChange(); }
    else return false;
    return true;
  }

  function reset() {
    state.tree = state.selected = null;
    state.folded.clear();
  }

  return { draw, press, reset, selected };
}

function drawAxis(span, label) {
  const rough = span / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const ticks = el("div", { class: "ticks" });
  for (let at = 0; at < span; at += step) {
    const tick = el("span", { class: "tick" }, at ? took(at) : "0");
    tick.style.left = `${(at / span) * 100}%`;
    ticks.append(tick);
  }
  return el("div", { class: "axis" }, el("span", { class: "left" }, label), ticks);
}
