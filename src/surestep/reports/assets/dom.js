"use strict";
// Elements and texts. Values of a run become text nodes, never HTML.

/** Return an element; attributes that are null are left out, and functions listen to events. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter(child => child !== null && child !== undefined));
  return element;
}

/** Return a card with a heading; null if it would be empty. */
function makeSection(title, ...children) {
  const content = children.flat().filter(Boolean);
  const id = title.toLowerCase().replace(/[^a-z0-9]+/g, "-");
  if (!content.length) return null;
  return make("section", {class: "card", id}, make("h2", {}, title), content);
}

/** Return a button that copies a text. */
function makeCopyButton(read, label = "Copy") {
  const copy = async () => {
    const text = read();
    try {
      await navigator.clipboard.writeText(text);
    } catch {  // not allowed in this browser
      const area = make("textarea", {class: "offscreen"});
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = label; }, 1500);
  };
  const button = make("button", {type: "button", class: "copy", click: copy}, label);
  return button;
}

/** Return a command that can be copied. */
function makeCommand(command) {
  return make("div", {class: "command"}, make("code", {}, command), makeCopyButton(() => command));
}

/** Return a number with few digits. */
function formatNumber(value, digits = 4) {
  if (value === null || value === undefined) return "not finite";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en-US");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(digits - 1).replace(/\.?0+e/, "e");
  return String(Number(value.toPrecision(digits)));
}

function formatBytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const at = value > 0 ? Math.min(4, Math.floor(Math.log2(value) / 10)) : 0;
  return `${Number((value / 1024 ** at).toPrecision(3))} ${units[at]}`;
}

function formatDuration(seconds) {
  if (seconds < 59.95) return `${Number(seconds.toPrecision(3))} s`;
  const whole = Math.round(seconds), minutes = Math.floor(whole / 60);
  return minutes < 60 ? `${minutes} min ${whole % 60} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function formatShare(share) {
  return `${Number((100 * share).toPrecision(3))}%`;
}

const UNITS = {"bytes": formatBytes, "share": formatShare};

/** Return a value in its unit. */
function formatValue(value, unit) {
  return value === null || value === undefined ? "not finite" : (UNITS[unit] ?? formatNumber)(value);
}
