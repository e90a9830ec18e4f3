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

/** Return a number with its label. */
function makeNumber(number, label, kind = null) {
  return make("div", {class: kind ? `card ${kind}` : "card"}, make("div", {class: "number"}, number),
    make("div", {class: "soft small"}, label));
}
