"""The HTML file around a page: its data, style and scripts, and the policy that protects it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

_ASSETS = files("surestep.reports") / "assets"
_SHARED = ("dom.js", "table.js", "page.js")  # of each page, in the order of their use
_STYLE = "page.css"
CHARTS = ("uplot/uPlot.min.css", "uplot/uPlot.iife.min.js", "charts.js")


def render_page(title: str, data: Mapping[str, Any], assets: Sequence[str]) -> str:
    """Return a page, which its scripts draw from the data.

    No file of a run can run code in it: the data are JSON in an element that is not a script, the
    scripts set text and never HTML, and the policy has the browser run no script but these, apply
    no other style, and request nothing.

    Args:
        title: of the page.
        data: what JSON can hold; numbers that are not finite are null.
        assets: scripts and styles in the folder of assets, besides those of each page.
    """
    code, style = _read_assets(assets)
    policy = build_policy(assets, is_live="live" in data)
    # "<" in JSON is only in texts. Without it, nothing can end the element or begin a comment.
    text = encode_json(data).replace("<", "\\u003c")
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            '<link rel="icon" href="data:,">',
            f"<title>{_as_html(title)}</title><style>{style}</style></head><body>",
            "<noscript>This page draws its numbers with JavaScript, which is turned off. surestep "
            "report RUN --json prints those of a run, and search show STUDY --json those of a "
            "search.</noscript>",
            f'<script type="application/json" id="data">{text}</script>',
            f"<script>{code}</script></body></html>\n",
        ]
    )


def encode_json(data: Mapping[str, Any]) -> str:
    """Return the data as JSON, in ASCII, since a file name need not be text."""
    return json.dumps(data, allow_nan=False, separators=(",", ":"))


def build_policy(assets: Sequence[str], *, is_live: bool) -> str:
    """Return what the browser may do for a page with these scripts and styles.

    A live page may ask the server that it comes from; another requests nothing.
    """
    code, style = _read_assets(assets)
    connect = "connect-src 'self'; " if is_live else ""
    return (
        f"default-src 'none'; script-src {_hash(code)}; style-src {_hash(style)}; "
        f"img-src data:; {connect}base-uri 'none'; form-action 'none'"
    )


def _read_assets(names: Sequence[str]) -> tuple[str, str]:
    """Return the script and the style of a page."""
    scripts = [*_SHARED, *(name for name in names if name.endswith(".js"))]
    return _read(scripts), _read([_STYLE, *(name for name in names if name.endswith(".css"))])


def _read(names: Sequence[str]) -> str:
    return "\n".join(_ASSETS.joinpath(name).read_text(encoding="utf-8") for name in names)


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _as_html(text: str) -> str:
    return escape(text).encode("ascii", "xmlcharrefreplace").decode()
