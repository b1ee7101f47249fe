// Commands of the page are the API's: a form's fields fill the braces of its path and become JSON.
"use strict";

const said = document.getElementById("said");

function say(text, isWrong) {
  said.replaceChildren();
  if (!text) return;
  const line = document.createElement("div");
  line.className = isWrong ? "wrong" : "";
  line.textContent = text;
  said.append(line);
}

// The values of a form, each as its data-type says.
function values(form) {
  const out = {};
  for (const field of form.elements ?? []) {
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
    return element.elements ? JSON.stringify(values(element)) : "";
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
  if (!successful) return say(answer?.message ?? "The server does not answer.", true);
  say(elt.dataset.done ?? "Done.");
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

// Live: the server says that something changed, and what shows it is asked for again.
if (document.body.dataset.events) {
  const events = new EventSource(document.body.dataset.events);
  events.addEventListener("changed", () => htmx.trigger(document.body, "changed"));
  addEventListener("pagehide", () => events.close());
}
