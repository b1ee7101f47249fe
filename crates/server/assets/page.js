// Forms send requests to the API. Their fields replace the braces in the path and become the JSON body.
"use strict";

const message = document.getElementById("message");
// Time for which a success message is shown, in milliseconds.
const MESSAGE_MS = 4000;
let hideTimer = 0;

function showMessage(text, isWrong) {
  clearTimeout(hideTimer);
  message.replaceChildren();
  if (!isWrong) hideTimer = setTimeout(() => message.replaceChildren(), MESSAGE_MS);
  if (!text) return;
  const line = document.createElement("div");
  line.className = isWrong ? "wrong" : "";
  line.textContent = text;
  message.append(line);
}

// The values of a form, converted according to their data-type.
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

// Handles the answer to a request.
document.body.addEventListener("htmx:afterRequest", (event) => {
  const { elt, xhr, requestConfig, successful } = event.detail;
  if (!requestConfig || requestConfig.verb === "get") return;
  let answer = null;
  try {
    answer = JSON.parse(xhr.responseText);
  } catch {
    // The server did not answer.
  }
  if (xhr.status === 401) return location.assign("/admin/login");
  if (!successful) {
    const why = answer?.message ?? "The server does not answer.";
    elt.dispatchEvent(new CustomEvent("refused", { bubbles: true, detail: why }));
    return showMessage(why, true);
  }
  // A new key is shown instead of a message.
  showMessage(elt.dataset.show ? "" : (elt.dataset.done ?? "Done."));
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

// A policy can be saved only after a check, which shows its changes.
const editor = document.getElementById("policy");
if (editor) {
  const text = editor.elements.policy;
  const save = document.getElementById("save");
  const difference = document.getElementById("difference");
  text.addEventListener("input", () => (save.disabled = true));
  editor.addEventListener("answered", (event) => {
    const { difference: { lines, left_off, routes }, warnings } = event.detail;
    const more = left_off ? [`and ${left_off} more`] : [];
    const approved = routes.map((route) => `approved automatically: ${route}`);
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

// The server notifies the page of changes, and the page requests its content again.
if (document.body.dataset.events) {
  const events = new EventSource(document.body.dataset.events);
  events.addEventListener("changed", () => htmx.trigger(document.body, "changed"));
  addEventListener("pagehide", () => events.close());
}
