// Commands of the page are the API's: a form's fields fill the braces of its path and become JSON.
"use strict";

const said = document.getElementById("said");
// How long it is said that something was done.
const SAID_MS = 4000;
let silence = 0;

function say(text, isWrong) {
  clearTimeout(silence);
  said.replaceChildren();
  if (!isWrong) silence = setTimeout(() => said.replaceChildren(), SAID_MS);
  if (!text) return;
  const line = document.createElement("div");
  line.className = isWrong ? "wrong" : "";
  line.textContent = text;
  said.append(line);
}

// The values of a form, each as its data-type says.
function values(element) {
  const out = {};
  for (const field of element.closest("form")?.elements ?? []) {
    if (!field.name || field.disabled) continue;
    const text = field.value.trim();
    switch (field.dataset.type) {
      case "list":
        out[field.name] ??= [];
        if (field.type !== "checkbox") out[field.name].push(...text.split(/[\s,]+/).filter(Boolean));
        else if (field.checked) out[field.name].push(text);
        break;
      case "flag":
        out[field.name] = field.checked;
        break;
      case "hours":
        out[field.name] = text === "0" ? null : new Date(Date.now() + text * 3600e3).toISOString();
        break;
      case "text":
        out[field.name] = field.value;
        break;
      case "time":
        out[field.name] = text && new Date(text).toISOString();
        break;
      default:
        if (text) out[field.name] = text;
    }
  }
  return out;
}

htmx.defineExtension("api", {
  onEvent(name, event) {
    if (name !== "htmx:configRequest" || event.detail.verb === "get") return true;
    event.detail.headers["Content-Type"] = "application/json";
    const filled = values(event.detail.elt);
    event.detail.path = event.detail.path.replace(/\{(\w+)\}/g, (_, key) => encodeURIComponent(filled[key] ?? ""));
    return true;
  },
  encodeParameters(xhr, _, element) {
    return element.closest("form") ? JSON.stringify(values(element)) : "";
  },
});

// What a command answered.
document.body.addEventListener("htmx:afterRequest", (event) => {
  const { elt, xhr, requestConfig, successful } = event.detail;
  if (!requestConfig || requestConfig.verb === "get") return;
  let answer = null;
  try {
    answer = JSON.parse(xhr.responseText);
  } catch {
    // A server that is gone says nothing.
  }
  if (xhr.status === 401) return location.assign("/admin/login");
  if (!successful) {
    const why = answer?.message ?? "The server does not answer.";
    elt.dispatchEvent(new CustomEvent("refused", { bubbles: true, detail: why }));
    return say(why, true);
  }
  // A key that was made speaks for itself.
  say(elt.dataset.show ? "" : (elt.dataset.done ?? "Done."));
  const shown = document.getElementById(elt.dataset.show ?? "");
  if (shown) {
    shown.hidden = false;
    shown.querySelector("code").textContent = answer.key;
    shown.querySelector("button")?.focus();
  }
  elt.dispatchEvent(new CustomEvent("answered", { bubbles: true, detail: answer }));
  if (elt.dataset.then) return location.assign(elt.dataset.then);
  if (elt.reset && !elt.dataset.keep) elt.reset();
  htmx.trigger(document.body, "changed");
});

document.body.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
  button.textContent = "Copied";
});

// A policy is saved as it was checked, once what it changes was shown.
const editor = document.getElementById("policy");
if (editor) {
  const text = editor.elements.policy;
  const save = document.getElementById("save");
  const difference = document.getElementById("difference");
  text.addEventListener("input", () => (save.disabled = true));
  editor.addEventListener("answered", (event) => {
    const { difference: { lines, left_off, routes }, warnings } = event.detail;
    const more = left_off ? [`and ${left_off} more`] : [];
    const approved = routes.map((route) => `approved at once: ${route}`);
    const all = [...warnings.map((warning) => `warning: ${warning}`), ...lines, ...more, ...approved];
    difference.hidden = false;
    difference.querySelector("pre").textContent = all.join("\n") || "No difference.";
    difference.scrollIntoView({ block: "nearest" });
    save.disabled = event.target !== document.getElementById("check");
  });
  editor.addEventListener("refused", (event) => {
    save.disabled = true;
    difference.hidden = true;
    const line = Number(event.detail.match(/line (\d+)/)?.[1]);
    if (!line) return;
    const lines = text.value.split("\n");
    const start = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
    text.focus();
    text.setSelectionRange(start, start + (lines[line - 1] ?? "").length);
  });
}

// Live: the server says that something changed, and what shows it is asked for again.
if (document.body.dataset.events) {
  const events = new EventSource(document.body.dataset.events);
  events.addEventListener("changed", () => htmx.trigger(document.body, "changed"));
  addEventListener("pagehide", () => events.close());
}
