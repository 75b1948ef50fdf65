// What an empty channel offers to try.

import { el } from "./text.js";

const EXAMPLES = [
  ["@Orion hello", "A first answer"],
  ["@Orion run: ls -la", "A command in the sandbox"],
  ["@Orion !slow", "A long run, to watch and to stop"],
];

export function hint({ isDirect, say, sayDirect }) {
  const example = (text, what, send) => el("button", { type: "button", class: "example", onclick: () => send(text) }, el("span", { class: "example-text" }, text), el("span", { class: "example-what" }, what));
  const title = isDirect ? "Talk to Orion" : "Nothing here yet";
  const lead = isDirect ? "Every message here starts a conversation. The answer comes in its thread." : "Mention @Orion in a message. The answer comes in its thread.";
  return el("section", { id: "hint", "aria-label": "Things to try" },
    el("h2", {}, title), el("p", {}, lead),
    el("div", { class: "examples" },
      ...EXAMPLES.map(([text, what]) => (isDirect ? example(text.replace("@Orion ", ""), what, say) : example(text, what, say))),
      isDirect ? null : example("What can you do?", "A direct message to Orion", sayDirect)));
}
