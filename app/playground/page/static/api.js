// Talking to the fake Slack, and telling the person when it refuses.

const WORDS = {
  not_in_channel: "You are not in this channel.",
  is_archived: "This channel is archived.",
  no_text: "Write something first.",
  session_not_processing: "There is nothing to stop any more.",
  message_not_found: "That message is gone.",
  thread_not_found: "That thread is gone.",
  view_not_found: "That window is closed.",
  invalid_value: "Something in it is too long, or missing.",
  action_not_found: "That button is gone: the message has changed.",
  app_has_no_such_command: "The app's manifest has no such command.",
  already_reacted: "You have reacted so already.",
  422: "That is too long, or nothing at all.",
};

export function toast(text) {
  const node = document.createElement("div");
  node.className = "toast";
  node.textContent = text;
  document.getElementById("toasts").append(node);
  setTimeout(() => node.remove(), 6000);
}

const GET_TRIES = 5;
const GET_PAUSE_MS = 500;

// What only reads is tried again: browsers break off all that is on its way when a network of the machine changes.
export async function get(path, params = {}) {
  const query = new URLSearchParams(params);
  for (let left = GET_TRIES - 1; ; left -= 1) {
    try {
      const response = await fetch(`${path}?${query}`);
      if (!response.ok) throw new Error(`${path}: ${response.status}`);
      return await response.json();
    } catch (error) {
      if (left === 0 || !(error instanceof TypeError)) throw error;
      await new Promise((resolve) => setTimeout(resolve, GET_PAUSE_MS));
    }
  }
}

// The answer, or null after telling the person why not.
export async function post(path, body) {
  let response;
  try {
    response = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  } catch {
    toast("The playground does not answer. Is it still running?");
    return null;
  }
  if (response.ok) return response.json();
  const detail = await response.json().then((answer) => answer.detail).catch(() => null);
  const reason = typeof detail === "string" ? detail : response.status;
  toast(WORDS[reason] || `That did not work (${reason}).`);
  return null;
}

// Presses a message's button: the answer when the app acknowledged it, with the modal that it opened; else null.
export async function press(message, element, value, user) {
  const body = { channel: message.channel, ts: message.ts, action_id: element.action_id, value: value ?? null, user };
  const answer = await post("/ui/actions", body);
  tellOutcome(answer);
  return answer && answer.ok ? answer : null;
}

// Tells the person when the app has not acknowledged what they did.
export function tellOutcome(answer) {
  if (!answer || answer.ok) return;
  toast(answer.reason === "http_timeout" || answer.reason === "timeout"
    ? "The app did not answer within 3 seconds."
    : `The app did not take it (${answer.status || answer.reason}).`);
}
