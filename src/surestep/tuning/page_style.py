"""The style and the script of the page of a report, and the colors of its plots."""

from typing import Any

# The browser itself keeps the page from any request. plotly.js compiles the shaders of 3-D plots
# with Function().
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data: blob:"
)

STYLE = """
:root { color-scheme: light dark; --page: #f5f7fa; --card: #fff; --text: #1b2430; --soft: #5d6b7e;
  --line: #e2e7ee; --accent: #2563eb; --mark: #fff7ed; --row: #f8fafc; --good: #15803d;
  --off: #64748b; --bad: #dc2626; --live: #0f766e }
@media (prefers-color-scheme: dark) { :root { --page: #0e131a; --card: #161d27; --text: #e5eaf1;
  --soft: #98a5b7; --line: #283242; --accent: #7db0ff; --mark: #2b2116; --row: #1a222d;
  --good: #4ade80; --off: #94a3b8; --bad: #f87171; --live: #2dd4bf } }
* { box-sizing: border-box }
body { margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif }
main { max-width: 1240px; margin: 0 auto; padding: 32px 20px 48px }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 6px }
h2 { font-size: 16px; margin: 0 0 2px }
p { margin: 0 } .soft { color: var(--soft) } .small { font-size: 13px }
header { margin-bottom: 20px }
.grid { display: grid; grid-template-columns: repeat(6, minmax(0, 1fr)); gap: 16px;
  margin-bottom: 16px }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 12px;
  padding: 16px 18px; min-width: 0 }
.full { grid-column: span 6 } .half { grid-column: span 3 } .third { grid-column: span 2 }
@media (max-width: 860px) { .half, .third { grid-column: span 6 } }
.numbers { display: flex; flex-wrap: wrap; gap: 16px; margin-bottom: 16px }
.numbers .card { flex: 1 1 auto } .numbers .card.main { flex: 3 1 auto }
.number { font-size: 20px; font-weight: 650; line-height: 1.3; white-space: nowrap }
.main .number { color: var(--accent); font-size: 26px }
table { border-collapse: collapse; width: 100%; font-size: 14px }
th, td { text-align: left; padding: 6px 12px 6px 0; border-bottom: 1px solid var(--line);
  vertical-align: top }
tr:last-child td { border-bottom: 0 }
.pairs { margin-top: 8px } .pairs td { overflow-wrap: anywhere }
.pairs td:first-child { color: var(--soft); width: 40%; padding-right: 16px }
code { font: 13px ui-monospace, "SFMono-Regular", Menlo, Consolas, monospace;
  overflow-wrap: anywhere }
.trials { max-height: 640px; overflow: auto; margin: 10px -18px -16px;
  border-top: 1px solid var(--line); border-radius: 0 0 12px 12px }
.trials table { font-variant-numeric: tabular-nums }
.trials th, .trials td { padding: 7px 12px; white-space: nowrap }
.trials th { position: sticky; top: 0; background: var(--card); cursor: pointer; z-index: 1;
  box-shadow: 0 1px 0 var(--line); border: 0; user-select: none }
.trials th[aria-sort="ascending"]::after { content: " \\2191" }
.trials th[aria-sort="descending"]::after { content: " \\2193" }
.trials tbody tr:nth-child(even) { background: var(--row) }
.trials tbody tr.best { background: var(--mark) } .trials tr.best td { font-weight: 600 }
.trials td.text { white-space: normal; min-width: 320px; max-width: 520px; color: var(--soft) }
.num { text-align: right }
.state { font-weight: 600 } .state::before { content: "\\25CF"; margin-right: 6px }
.finished { color: var(--good) } .pruned, .waiting { color: var(--off) }
.failed { color: var(--bad) } .running { color: var(--live) }
.plot { margin: 4px -8px -8px }
"""

_FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif'

SCRIPT = """
"use strict";
const dark = matchMedia("(prefers-color-scheme: dark)");
const plots = [...document.querySelectorAll(".plot")];
const template = () => TEMPLATES[dark.matches ? "dark" : "light"];
for (const plot of plots) {
  const figure = JSON.parse(plot.nextElementSibling.textContent);
  const layout = {...figure.layout, template: template(), height: Number(plot.dataset.height)};
  Plotly.newPlot(plot, figure.data, layout, {
    displaylogo: false, displayModeBar: "hover", responsive: true,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  });
}
dark.addEventListener("change", () => {
  for (const plot of plots) Plotly.relayout(plot, {template: template()});
});
for (const head of document.querySelectorAll(".trials th")) {
  head.addEventListener("click", () => {
    const body = head.closest("table").tBodies[0];
    const down = head.getAttribute("aria-sort") === "ascending";
    const value = row => row.cells[head.cellIndex].dataset.value ?? "";
    const order = (a, b) => {
      if (a === "" || b === "") return (a === "") - (b === "");  // empty cells come last
      const both = a !== "" && b !== "" && !isNaN(a) && !isNaN(b);
      return (both ? a - b : a.localeCompare(b)) * (down ? -1 : 1);
    };
    const rows = [...body.rows].sort((a, b) => order(value(a), value(b)));
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...rows);
  });
}
"""


def _make_template(text: str, line: str, card: str) -> dict[str, Any]:
    axis = {
        "gridcolor": line,
        "linecolor": line,
        "zeroline": False,
        "automargin": True,
        "title": {"standoff": 10, "font": {"size": 13}},
    }
    axis_3d = {"gridcolor": line, "zerolinecolor": line, "backgroundcolor": card, "color": text}
    layout = {
        "font": {"family": _FONT, "size": 13, "color": text},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 56, "r": 20, "t": 24, "b": 48},
        "legend": {"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom"},
        "hoverlabel": {"bgcolor": card, "bordercolor": line, "font": {"color": text}},
        "hovermode": "closest",
        "annotationdefaults": {"bgcolor": card, "borderpad": 0},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": line, "activecolor": text},
        "xaxis": axis,
        "yaxis": axis,
        "scene": {"xaxis": axis_3d, "yaxis": axis_3d, "zaxis": axis_3d},
    }
    return {"layout": layout}


TEMPLATES = {
    "light": _make_template("#1b2430", "#dde3eb", "#ffffff"),
    "dark": _make_template("#e5eaf1", "#2d3848", "#161d27"),
}
