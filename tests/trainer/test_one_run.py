"""docs/one-run.md lists what a run calls, in order."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "one-run.md").read_text(encoding="utf-8")
LINK = re.compile(r"\[`([\w.]+)`\]\(\.\./(src/[\w/]+\.py)\)")


def test_page_lists_what_a_run_calls_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    called: dict[tuple[str, str], int] = {}

    def note(frame, event, _):
        if event == "call" and (name := frame.f_code.co_filename).startswith(f"{ROOT}/src/"):
            key = frame.f_code.co_qualname, name.removeprefix(f"{ROOT}/")
            called.setdefault(key, len(called))

    code = compile(program, "one-run.md", "exec")
    sys.setprofile(note)
    try:
        exec(code, {"__name__": "one_run"})
    finally:
        sys.setprofile(None)
    links = LINK.findall(PAGE)
    assert len(links) > 25
    assert [link for link in links if link not in called] == []
    order = [called[link] for link in links]
    assert links == [link for _, link in sorted(zip(order, links, strict=True))]
