// A list of messages that grows and changes without jumping.

import { messageItem, updateItem } from "./message.js";

const NEAR_BOTTOM_PX = 60;

export function createPane(scroller, list, state, { inThread }) {
  const isAtBottom = () => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < NEAR_BOTTOM_PX;
  let follows = true;
  const toBottom = () => {
    scroller.scrollTop = scroller.scrollHeight;
    follows = true;
  };
  scroller.addEventListener("scroll", () => (follows = isAtBottom()), { passive: true });
  // The pane shrinks when the status line appears or the window changes: whoever read the end still does.
  new ResizeObserver(() => follows && toBottom()).observe(scroller);
  const find = (ts) => list.querySelector(`[data-ts="${CSS.escape(ts)}"]`);

  // Runs a change and stays at the bottom if the reader was there.
  function keeping(change) {
    const follow = isAtBottom();
    change();
    if (follow) toBottom();
  }

  function upsert(message) {
    if (message.ephemeral_to && message.ephemeral_to !== state.me) return;
    const item = find(message.ts);
    keeping(() => {
      if (message.deleted) item?.remove();
      else if (item) updateItem(item, message, state, { inThread });
      else insert(message);
    });
  }

  function insert(message) {
    const later = [...list.children].find((other) => other.dataset.ts && after(other.dataset.ts, message.ts));
    list.insertBefore(messageItem(message, state, { inThread }), later || null);
  }

  // Brings the list to exactly `messages`, reusing what stands already.
  function show({ messages, as_of: asOf }, { fresh }) {
    const wanted = new Set(messages.map((message) => message.ts));
    // What arrived live after the listing was made stays.
    for (const item of [...list.children]) if (!wanted.has(item.dataset.ts) && !after(item.dataset.ts, asOf)) item.remove();
    for (const message of messages) upsert(message);
    if (fresh) toBottom();
  }

  return { upsert, show, toBottom, clear: () => list.replaceChildren() };
}

// ts are "seconds.micros", compared as text of equal length.
function after(left, right) {
  return left.length === right.length ? left > right : left.length > right.length;
}
