"""The files around the source agree with each other and with the source."""

import re
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from surestep.base.version import VERSION
from surestep.recipes.load import PACKAGES

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))


def load(path):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_license_of_the_metadata_is_the_license_file():
    (name,) = PROJECT["project"]["license-files"]
    text = (ROOT / name).read_text(encoding="utf-8")
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert "Apache License\n" in text
    assert "Version 2.0, January 2004" in text
    assert "The surestep authors" in text
    assert PROJECT["project"]["authors"] == [{"name": "The surestep authors"}]


def test_citation_has_the_required_fields():
    citation = load("CITATION.cff")
    assert citation.keys() >= {"cff-version", "message", "title", "authors"}
    assert str(citation["version"]) == VERSION == PROJECT["project"]["version"]
    assert citation["license"] == PROJECT["project"]["license"]
    assert [author["name"] for author in citation["authors"]] == ["The surestep authors"]


def test_hooks_need_no_network():
    (repo,) = load(".pre-commit-config.yaml")["repos"]
    assert repo["repo"] == "local"
    assert {hook["language"] for hook in repo["hooks"]} == {"system"}


def test_every_hook_runs_a_tool_of_the_dev_extra():
    installed = " ".join(PROJECT["project"]["optional-dependencies"]["dev"])
    for hook in load(".pre-commit-config.yaml")["repos"][0]["hooks"]:
        tool = hook["entry"].removeprefix("python -m ").split()[0]
        assert re.search(rf"\b{tool}\b", installed), tool


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_form_has_the_fields_of_its_format(path):
    form = load(path)
    if path.stem == "config":
        assert form.keys() <= {"blank_issues_enabled", "contact_links"}
        return
    assert form.keys() >= {"name", "description", "body"}
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    identifiers = [field["id"] for field in fields]
    assert len(set(identifiers)) == len(identifiers) > 1
    assert all(field["attributes"]["label"] for field in fields)


def test_each_kind_of_report_has_a_form():
    assert {path.stem for path in FORMS} == {"bug", "config", "feature", "wrong_numbers"}


def test_every_changelog_fragment_has_a_name_and_a_type():
    types = {kind["directory"] for kind in PROJECT["tool"]["towncrier"]["type"]}
    fragments = [path.name for path in (ROOT / "changelog").iterdir()]
    fragments = sorted(set(fragments) - {"README.md", "template.md.jinja"})
    fits = re.compile(rf"[a-z0-9-]+\.({'|'.join(types)})\.md")
    assert [name for name in fragments if not fits.fullmatch(name)] == []


def test_packages_that_messages_say_to_install_are_those_of_the_extras():
    extras = PROJECT["project"]["optional-dependencies"]
    packages = {re.match(r"[\w-]+", entry)[0] for entries in extras.values() for entry in entries}
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    named = [*re.findall(r"Install it: pip install ([\w-]+)", text), *PACKAGES.values()]
    assert len(named) >= 4
    assert set(named) <= packages
    # `pip install 'surestep[plot]'` brings a torch too.
    assert set(re.findall(r"surestep\[(\w+)", text)) == {"torch"}


def test_torch_is_in_every_extra_but_those_that_work_without_it():
    assert not [entry for entry in PROJECT["project"]["dependencies"] if "torch" in entry]
    extras = PROJECT["project"]["optional-dependencies"]
    having = {name for name, entries in extras.items() if "surestep[torch]" in entries}
    assert extras.keys() - having == {"torch", "s3", "ssh", "wandb", "dev", "dev-all"}
    assert extras["dev"][0].startswith("surestep[demo,")
    assert extras["dev-all"][0].startswith("surestep[dev,")


def test_changelog_has_this_version_and_the_marker_of_towncrier():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    marker = "<!-- towncrier release notes start -->"
    assert text.count(marker) == 1
    assert f"\n## {VERSION} " in text[text.index(marker) :]


def test_index_of_the_docs_lists_every_page():
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"^- \[.*?\]\(([\w-]+\.md)\)", index, re.MULTILINE))
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert linked == pages


def test_architecture_page_names_every_package_and_only_existing_paths():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:src|tests|benchmarks|docs)/[^`]*)`", text))
    initial = ROOT / "src/surestep/__init__.py"
    found = set((ROOT / "src/surestep").rglob("__init__.py")) - {initial}
    packages = {f"{path.parent.relative_to(ROOT).as_posix()}/" for path in found}
    packages = {name for name in packages if not re.search(r"/rules/ss\d+", name)}  # one rule each
    assert packages - named == set()
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_contributing_names_only_existing_paths():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:src|tests|benchmarks|docs|changelog)/[^`A-Z]*)`", text)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_every_make_target_that_a_page_names_exists(page):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = re.findall(r"\bmake ([a-z-]+)\b  ", (ROOT / page).read_text(encoding="utf-8"))
    assert named
    assert set(named) <= set(targets)


def test_source_distribution_has_every_file():
    """So that its tests pass."""
    lines = (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()
    patterns = [word for line in lines if line[0] == "i" for word in line.split()[1:]]
    patterns += [line.split()[1] for line in lines if line.startswith("graft ")]
    if not (ROOT / ".git").exists():
        pytest.skip("this is a source distribution")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout
    top = {path.partition("/")[0] for path in tracked.splitlines()}
    assert len(top) > 10
    assert [name for name in sorted(top) if not any(fnmatch(name, p) for p in patterns)] == []
