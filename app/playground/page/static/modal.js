// The app's modals: opened by a press, sent by the person, kept open while the app finds something wrong.

import { post, toast } from "./api.js";
import { el, mrkdwn } from "./text.js";

function field(block) {
  const { element, label, hint, block_id: id } = block;
  const says = hint ? el("p", { class: "note", id: `hint-${id}` }, hint.text) : null;
  const problem = el("p", { class: "problem", role: "alert", "data-problem": id });
  if (element.type === "checkboxes") {
    const boxes = element.options.map((option) => el("label", { class: "check" },
      el("input", { type: "checkbox", name: id, value: option.value }), el("span", {}, option.text.text)));
    return el("fieldset", { class: "field" }, el("legend", {}, label.text), ...boxes, says, problem);
  }
  const input = el(element.multiline ? "textarea" : "input", {
    id: `input-${id}`, type: element.multiline ? null : "text", name: id, autocomplete: "off", spellcheck: "false",
    maxlength: element.max_length || 3000, required: !block.optional, "aria-describedby": hint ? `hint-${id}` : null,
  });
  return el("div", { class: "field" }, el("label", { for: `input-${id}` }, label.text, block.optional ? el("span", { class: "note" }, " (optional)") : null), input, says, problem);
}

function draw(block, people) {
  if (block.type === "input") return field(block);
  if (block.type === "section") return el("div", { class: "section" }, mrkdwn(block.text.text, people));
  return el("p", { class: "note" }, `A "${block.type}" block, which this page does not draw.`);
}

function written(form, blocks) {
  const values = {};
  for (const block of blocks.filter((one) => one.type === "input")) {
    const fields = [...form.querySelectorAll(`[name="${CSS.escape(block.block_id)}"]`)];
    values[block.block_id] = block.element.type === "checkboxes"
      ? fields.filter((one) => one.checked).map((one) => one.value)
      : fields[0].value;
  }
  return values;
}

// Shows a view until it is sent or closed.
export function openModal(view, state) {
  const send = el("button", { type: "submit", class: "block-button primary" }, view.submit ? view.submit.text : "Submit");
  const dialog = el("dialog", { class: "modal", "aria-labelledby": "modal-title" });
  const form = el("form", { method: "dialog" },
    el("h2", { id: "modal-title" }, view.title.text),
    ...view.blocks.map((block) => draw(block, state.people)),
    el("div", { class: "actions" },
      el("button", { type: "button", class: "block-button", onclick: () => dialog.close() }, view.close ? view.close.text : "Cancel"),
      view.submit ? send : null));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    send.disabled = true;
    const answer = await post("/ui/views", { view_id: view.id, values: written(form, view.blocks), user: state.me });
    send.disabled = false;
    if (!answer) return;
    for (const node of form.querySelectorAll("[data-problem]")) node.textContent = answer.errors[node.dataset.problem] || "";
    if (!answer.ok) toast("We had some trouble connecting. Try again?");
    else if (!Object.keys(answer.errors).length) dialog.close();
  });
  dialog.append(form);
  dialog.addEventListener("close", () => dialog.remove());
  // The page's own Escape closes the thread behind it.
  dialog.addEventListener("keydown", (event) => event.stopPropagation());
  document.body.append(dialog);
  dialog.showModal();
}
