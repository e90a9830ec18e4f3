// What each page does: read its data, follow the theme of the system, and print.

const readData = () => JSON.parse(document.getElementById("data").textContent);
const theme = matchMedia("(prefers-color-scheme: dark)");
const redrawn = new Set();  // functions that draw again, with other colors or another size

/** Return a color of the style. */
const colorOf = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function redraw() {
  for (const draw of redrawn) draw();
}

theme.addEventListener("change", redraw);
// Paper is white and has another width.
addEventListener("beforeprint", () => {
  document.documentElement.classList.add("printed");
  redraw();
});
addEventListener("afterprint", () => {
  document.documentElement.classList.remove("printed");
  redraw();
});

/** Show the parts of a page below its heading. */
function showPage(title, subtitle, ...parts) {
  document.body.append(make("main", {}, make("header", {}, make("h1", {}, title),
    make("p", {class: "soft"}, subtitle)), ...parts.flat().filter(Boolean)));
}

/** The parts of a page that show data, which can change. */
class Parts {
  constructor(data) {
    this.data = data;
    this.all = [];
  }

  /** Return a part; it is made again when what it shows has changed: some of the data, by name. */
  add(names, build) {
    const part = {names, build, node: build(this.data) ?? document.createTextNode("")};
    this.all.push(part);
    return part.node;
  }

  /** Take data that have changed, and show them. */
  update(changes) {
    Object.assign(this.data, changes);
    for (const part of this.all) {
      if (!part.names.some(name => name in changes)) continue;
      const before = part.node;
      part.node = part.build(this.data) ?? document.createTextNode("");
      const restore = rememberUse(before);
      before.replaceWith(part.node);
      restore(part.node);
    }
  }
}

/** Return a function that does to another element what the user did to this one. */
function rememberUse(before) {
  const find = (node, selector) => [...node.querySelectorAll?.(selector) ?? []];
  const summaries = new Set(find(before, "details[open] > summary").map(one => one.textContent));
  const sorted = find(before, "table").map(table => table.querySelector("[aria-sort]"));
  const scrolled = find(before, ".scroll").map(one => [one.scrollLeft, one.scrollTop]);
  const moved = find(before, "input[type=range]").map(one => one.value === one.max ? null : one.value);
  const focused = find(before, "button, input, summary").indexOf(document.activeElement);
  return node => {
    for (const summary of find(node, "summary"))
      if (summaries.has(summary.textContent)) summary.parentNode.open = true;
    find(node, "table").forEach((table, at) => {
      const head = sorted[at] && find(table, "th").find(one => one.textContent === sorted[at].textContent);
      if (!head) return;
      const button = head.querySelector("button");
      button.click();
      if (sorted[at].getAttribute("aria-sort") === "descending") button.click();
    });
    find(node, ".scroll").forEach((one, at) => one.scrollTo(...scrolled[at] ?? [0, 0]));
    find(node, "input[type=range]").forEach((one, at) => {
      if (moved[at] == null) return;
      one.value = moved[at];
      one.dispatchEvent(new Event("input"));
    });
    if (focused >= 0) find(node, "button, input, summary")[focused]?.focus({preventScroll: true});
  };
}

/** Return what is at the end of a page. */
function makeFooter(data) {
  const requests = data.live ? "This page asks its server for what is new, and requests nothing else."
    : "This page requests nothing.";
  return make("p", {class: "soft small"}, `Written by surestep ${data.version}. ${requests}`);
}

/** Return a number with its label. */
function makeNumber(number, label, kind = null) {
  return make("div", {class: kind ? `card ${kind}` : "card"}, make("div", {class: "number"}, number),
    make("div", {class: "soft small"}, label));
}
