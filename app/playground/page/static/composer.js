// The message box: Enter sends, Shift+Enter breaks the line, "@O" offers the bot.

import { el } from "./text.js";

const MAX_HEIGHT_PX = 200;

export function createComposer(form, { label, send, candidates }) {
  const id = `${form.id}-text`;
  const menu = el("ul", { class: "completion", role: "listbox", id: `${id}-options`, "aria-label": "People", hidden: true });
  const box = el("textarea", { id, rows: 1, "aria-label": label(), placeholder: label(), role: "combobox", "aria-expanded": "false", "aria-autocomplete": "list", "aria-controls": menu.id, enterkeyhint: "send", maxlength: 40000 });
  const button = el("button", { type: "submit", class: "send", "aria-label": "Send" }, "Send");
  const hint = el("div", { class: "composer-hint" }, el("kbd", {}, "Enter"), " sends, ", el("kbd", {}, "Shift Enter"), " starts a new line, ", el("kbd", {}, "@"), " mentions");
  form.append(menu, el("div", { class: "composer-row" }, box, button), hint);
  let options = [];
  let chosen = 0;

  function grow() {
    box.style.height = "auto";
    box.style.height = `${Math.min(box.scrollHeight, MAX_HEIGHT_PX)}px`;
    button.disabled = !box.value.trim();
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
    const text = box.value.trim();
    if (!text) return;
    box.value = "";
    close();
    grow();
    if (!(await send(text)) && !box.value) {
      box.value = text;
      grow();
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
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  grow();
  return {
    focus: () => box.focus(),
    relabel() {
      box.placeholder = label();
      box.setAttribute("aria-label", label());
    },
  };
}
