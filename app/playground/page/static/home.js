// What a direct message with the app has besides messages: its home tab, and the prompts that it suggests.

import { get, post, tellOutcome } from "./api.js";
import { renderBlocks } from "./blocks.js";
import { openModal } from "./modal.js";
import { el } from "./text.js";

const TABS = [["messages", "Messages"], ["home", "Home"]];

export function createHome({ tabs, home, messages, composer, prompts }, state, { say }) {
  let chosen = "messages";

  function drawTabs() {
    tabs.replaceChildren(...TABS.map(([tab, label]) => el("button", {
      type: "button", role: "tab", id: `tab-${tab}`, "aria-selected": String(tab === chosen), onclick: () => choose(tab),
    }, label)));
  }

  // Slack tells the app of every opening, whichever tab it is.
  async function choose(tab) {
    chosen = tab;
    drawTabs();
    const isHome = tab === "home";
    home.hidden = !isHome;
    for (const one of [messages, composer]) one.hidden = isHome;
    await post("/ui/home", { user: state.me, tab });
    await refresh();
  }

  async function pressed(element, value, node) {
    node.setAttribute("aria-busy", "true");
    const answer = await post("/ui/home/actions", { action_id: element.action_id, user: state.me });
    node.removeAttribute("aria-busy");
    tellOutcome(answer);
    if (answer && answer.view) openModal(answer.view, state);
    return Boolean(answer);
  }

  async function refresh() {
    const [channel, user] = [state.channel, state.me];
    if (!channel || !channel.im_user) return;
    const answer = await get("/ui/home", { user });
    if (channel.id !== state.channel.id || user !== state.me) return;
    const drawn = answer.view && renderBlocks({ blocks: answer.view.blocks, is_bot: true }, state.people, pressed);
    home.replaceChildren(...(drawn || [el("p", { class: "note" }, "The app shows nothing here yet.")]));
    const suggested = answer.prompts;
    prompts.hidden = !suggested || chosen === "home";
    prompts.replaceChildren(...(suggested ? [
      el("span", { class: "note" }, suggested.title),
      ...suggested.prompts.map((one) => el("button", { type: "button", class: "block-button", title: one.message, onclick: () => say(one.message) }, one.title)),
    ] : []));
  }

  function open() {
    tabs.hidden = !state.channel.im_user;
    prompts.hidden = true;
    if (state.channel.im_user) return choose("messages");
    home.hidden = true;
    for (const one of [messages, composer]) one.hidden = false;
    return null;
  }

  return { open, refresh };
}
