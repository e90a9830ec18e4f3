"""The pages about rules show what the rules are."""

import re
import sys
from pathlib import Path

import yaml

from surestep.cli.main import main
from tests.doctor.write_pages import FOLDER, HEADER, render_pages

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/doctor.md").read_text(encoding="utf-8")
STALE = "Write the pages of the rules again: python -m tests.doctor.write_pages"


def test_pages_of_rules_are_up_to_date():
    pages = render_pages()
    texts = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    found = {name: text for name, text in texts.items() if text.startswith(HEADER)}
    stale = sorted(name for name in {*pages, *found} if pages.get(name) != found.get(name))
    assert stale == [], STALE


def test_page_of_check_shows_its_output(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SURESTEP_CACHE_DIR", str(tmp_path / "cache"))
    (script,) = re.findall(r"```python\n(# train\.py\n.*?)```", PAGE, re.DOTALL)
    (shown,) = re.findall(r"```console\n\$ surestep check train\.py\n(.*?)```", PAGE, re.DOTALL)
    Path("train.py").write_text(script)
    assert main(["check", "train.py"]) == 1
    assert capsys.readouterr().out == shown


def test_page_of_watch_shows_its_output(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (script,) = re.findall(r"```python\n(# train\.py\n.*?)```", PAGE, re.DOTALL)
    (shown,) = re.findall(r"```console\n\$ surestep watch train\.py\n(.*?)```", PAGE, re.DOTALL)
    Path("train.py").write_text(script)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    assert main(["watch", "train.py"]) == 0
    assert capsys.readouterr().err == shown


def test_hook_of_the_page_is_the_hook_of_the_repository():
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert f"- id: {hook['id']}\n" in PAGE
    assert hook["entry"] == "surestep check"
