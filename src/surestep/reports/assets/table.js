// Tables that can be sorted, filtered and copied.

/** Return what a cell shows; it is a text, a number, null, or {value, text}, where text may be an element. */
const textOf = cell => cell === null ? "" : typeof cell === "object" ? cell.text
  : typeof cell === "number" ? formatNumber(cell) : cell;
// The exact value of a cell that shows fewer digits, or null.
const hintOf = cell => typeof valueOf(cell) === "number" && textOf(cell) !== String(valueOf(cell))
  ? String(valueOf(cell)) : null;
const valueOf = cell => cell !== null && typeof cell === "object" ? cell.value : cell;

/** Compare two cells; empty ones come last in both orders. */
function compareCells(one, other, sign) {
  const [a, b] = [valueOf(one), valueOf(other)];
  const [isEmpty, isOtherEmpty] = [a === null || a === "", b === null || b === ""];
  if (isEmpty || isOtherEmpty) return isEmpty - isOtherEmpty;
  const isNumber = typeof a === "number" && typeof b === "number";
  return sign * (isNumber ? a - b : String(a).localeCompare(String(b)));
}

/**
 * Return a table.
 * columns: headings. rows: lists of cells. mark: returns the class of a row by its index, or null.
 */
function makeTable(columns, rows, {mark = () => null, caption = null} = {}) {
  const body = make("tbody");
  const order = rows.map((_, index) => index);
  const elements = rows.map((row, index) => make("tr", {class: mark(index)}, row.map((cell, at) =>
    make(at ? "td" : "th", {scope: at ? null : "row",
      title: hintOf(cell),
      class: typeof valueOf(cell) === "number" ? "number-cell" : null}, textOf(cell)))));
  const fill = () => body.replaceChildren(...order.map(index => elements[index]));
  const heads = columns.map((column, at) => {
    const sort = () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      order.sort((a, b) => compareCells(rows[a][at], rows[b][at], sign));
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      fill();
    };
    const head = make("th", {scope: "col"}, make("button", {type: "button", click: sort}, column));
    return head;
  });
  fill();
  const copy = () => [columns, ...order.map(index => rows[index].map(
    cell => String(valueOf(cell) ?? "").replace(/[\t\r\n]+/g, " ")))].map(
    row => row.join("\t")).join("\n");
  return make("div", {class: "table"},
    make("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": caption ?? "table"},
      make("table", {}, caption ? make("caption", {}, caption) : null,
        make("thead", {}, make("tr", {}, heads)), body)),
    makeCopyButton(copy, "Copy table"));
}

/** Return a table of labels and texts. */
function makePairs(pairs) {
  return make("table", {class: "pairs"}, make("tbody", {}, pairs.map(([label, text]) =>
    make("tr", {}, make("th", {scope: "row"}, label), make("td", {}, text)))));
}

/** Return a table with a field that hides the rows without a text. */
function makeFilteredTable(columns, rows, label) {
  const table = makeTable(columns, rows, {caption: label});
  const filter = () => {
    const wanted = field.value.toLowerCase();
    for (const row of table.querySelectorAll("tbody tr"))
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
  };
  const field = make("input", {type: "search", placeholder: "Filter", input: filter,
    "aria-label": `Filter ${label}`});
  return make("div", {}, field, table);
}

/** Return what is shown when it is opened; it is made then. */
function makeDetails(summary, build) {
  const details = make("details", {toggle: () => {
    if (details.open && details.children.length === 1) details.append(build());
  }}, make("summary", {}, summary));
  return details;
}
