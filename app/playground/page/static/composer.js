// The message box: Enter sends, Shift+Enter breaks the line, "@O" offers the bot; files and a forwarded message go along; what was sent may be edited.

import { el } from "./text.js";

const MAX_HEIGHT_PX = 200;

export function createComposer(form, { label, send, edit, candidates }) {
  const id = `${form.id}-text`;
  const menu = el("ul", { class: "completion", role: "listbox", id: `${id}-options`, "aria-label": "People", hidden: true });
  const box = el("textarea", { id, rows: 1, "aria-label": label(), placeholder: label(), role: "combobox", "aria-expanded": "false", "aria-autocomplete": "list", "aria-controls": menu.id, enterkeyhint: "send", maxlength: 40000 });
  const button = el("button", { type: "submit", class: "send", "aria-label": "Send" }, "Send");
  const hint = el("div", { class: "composer-hint" }, el("kbd", {}, "Enter"), " sends, ", el("kbd", {}, "Shift Enter"), " starts a new line, ", el("kbd", {}, "@"), " mentions");
  const chips = el("ul", { class: "chips", "aria-label": "Goes along" });
  const picker = el("input", { type: "file", multiple: true, class: "picker", "aria-label": "Attach files" });
  const clip = el("button", { type: "button", class: "clip", "aria-label": "Attach files", onclick: () => picker.click() }, "+");
  form.append(menu, chips, el("div", { class: "composer-row" }, clip, box, button), picker, hint);
  let along = [];
  let options = [];
  let chosen = 0;

  function grow() {
    box.style.height = "auto";
    box.style.height = `${Math.min(box.scrollHeight, MAX_HEIGHT_PX)}px`;
    button.disabled = !box.value.trim() && !along.length;
  }

  function renderChips() {
    chips.replaceChildren(...along.map((one) => el("li", { class: "chip" }, one.label,
      el("button", { type: "button", "aria-label": `Leave out ${one.label}`, onclick: () => leave(one) }, "\u00d7"))));
    grow();
  }

  function leave(one) {
    along = along.filter((other) => other !== one);
    renderChips();
    box.focus();
  }

  function add(...ones) {
    along.push(...ones);
    renderChips();
    box.focus();
  }

  async function attach(files) {
    add(...(await Promise.all([...files].map(async (file) => ({ label: file.name, file: { name: file.name, mimetype: file.type || "application/octet-stream", content_base64: await base64(file) } })))));
    picker.value = "";
  }

  function close() {
    options = [];
    menu.hidden = true;
    box.setAttribute("aria-expanded", "false");
    box.removeAttribute("aria-activedescendant");
  }

  function offer() {
    const word = /(?:^|\s)@([\w]*)$/.exec(box.value.slice(0, box.selectionStart));
    options = word ? candidates().filter((person) => person.name.toLowerCase().startsWith(word[1].toLowerCase())) : [];
    if (!options.length) return close();
    chosen = Math.min(chosen, options.length - 1);
    menu.replaceChildren(...options.map((person, index) =>
      el("li", { role: "option", id: `${id}-option-${index}`, "aria-selected": String(index === chosen), onclick: () => complete(person) }, `@${person.name}`)));
    menu.hidden = false;
    box.setAttribute("aria-expanded", "true");
    box.setAttribute("aria-activedescendant", `${id}-option-${chosen}`);
  }

  function complete(person) {
    const before = box.value.slice(0, box.selectionStart).replace(/@\w*$/, `@${person.name} `);
    box.setRangeText(before, 0, box.selectionStart, "end");
    close();
    grow();
    box.focus();
  }

  async function submit() {
    const [text, sent] = [box.value.trim(), along];
    if (!text && !sent.length) return;
    [box.value, along] = ["", []];
    close();
    renderChips();
    const files = sent.filter((one) => one.file).map((one) => one.file);
    const forward = sent.find((one) => one.forward)?.forward ?? null;
    const edited = sent.find((one) => one.edited)?.edited;
    if (!(await (edited ? edit(text, edited) : send(text, { files, forward }))) && !box.value && !along.length) {
      [box.value, along] = [text, sent];
      renderChips();
    }
  }

  box.addEventListener("input", () => {
    grow();
    offer();
  });
  box.addEventListener("blur", () => setTimeout(close, 150));
  box.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (options.length && ["ArrowDown", "ArrowUp"].includes(event.key)) {
      chosen = (chosen + (event.key === "ArrowDown" ? 1 : options.length - 1)) % options.length;
      offer();
      event.preventDefault();
    } else if (options.length && (event.key === "Tab" || event.key === "Enter")) {
      complete(options[chosen]);
      event.preventDefault();
    } else if (options.length && event.key === "Escape") {
      close();
      event.stopPropagation();
    } else if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      submit();
    }
  });
  picker.addEventListener("change", () => attach(picker.files));
  form.addEventListener("dragover", (event) => event.preventDefault());
  form.addEventListener("drop", (event) => {
    event.preventDefault();
    attach(event.dataTransfer.files);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  grow();
  return {
    focus: () => box.focus(),
    forward(message, author) {
      along = along.filter((one) => !one.forward);
      add({ label: `Message of ${author}`, forward: { channel: message.channel, ts: message.ts } });
    },
    edit(message, text) {
      box.value = text;
      along = [];
      add({ label: "Edit of your message", edited: { channel: message.channel, ts: message.ts } });
    },
    relabel() {
      box.placeholder = label();
      box.setAttribute("aria-label", label());
    },
  };
}

async function base64(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let at = 0; at < bytes.length; at += 32768) text += String.fromCharCode(...bytes.subarray(at, at + 32768));
  return btoa(text);
}
