"""Every block of code in README.md and docs/ runs as shown.

Of each page, in order and in a fresh folder: ```python blocks are run in one namespace; in ```sh
blocks the lines that start with `surestep`, in ```console blocks those that start with
`$ surestep`, are typed; ```toml blocks hold options that exist, or a search space. A block whose
first line is a comment with nothing but a file's name, such as "# my_recipe.py", is written to that
file too.

`<!-- not run: reason -->` on a line before a block keeps it from being run.
"""

import re
import shlex
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

from surestep.cli.main import main
from surestep.config.config import Config
from surestep.tuning.space import Space

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
QUICK_PAGES = ["README.md", "checkpoints.md", "data.md", "evaluation.md", "losses.md", "running.md"]
FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>\S[^\n]*?) -->\n+)?"
    r"(?P<indent>[ ]*)```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^(?P=indent)```[ ]*$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """A block of code, and the line of the page that its code starts on."""

    language: str
    code: str
    line: int
    reason: str | None


def blocks(text):
    return [
        Block(
            found["language"],
            textwrap.dedent(found["code"]),
            text.count("\n", 0, found.start("code")) + 1,
            found["reason"],
        )
        for found in FENCE.finditer(text)
    ]


SPACES = ("# space.toml\n", "# optimizers.toml\n")  # the first lines of spaces of a search


def commands(block):
    """Return the commands of a block with continued lines joined; the rest is their output."""
    lines = block.code.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return [line for line in lines if line.split()[:1] == ["surestep"]]


def run_page(text, name):
    names = {"__name__": "__main__"}
    for block in blocks(text):
        if block.reason is not None:
            continue
        if (file := re.match(r"# ([\w.-]+\.\w+)\n", block.code)) is not None:
            Path(file[1]).write_text(block.code)
        place = f"{name}, line {block.line}"
        if block.language == "python":
            code = compile("\n" * (block.line - 1) + block.code, name, "exec")
            exec(code, names)
        elif block.language == "toml" and block.code.startswith(SPACES):
            Space.from_json(flatten(tomllib.loads(block.code)))
        elif block.language == "toml" and not block.code.startswith("# points.toml\n"):
            check_options(tomllib.loads(block.code), place)
        elif block.language in ("sh", "console"):
            for command in commands(block):
                assert type_in(command) == 0, f"{place}: {command}"


def type_in(command):
    try:
        return main(shlex.split(command, comments=True)[1:])
    except SystemExit as left:
        return left.code or 0


def flatten(options):
    flat = {}
    for name, value in options.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{inner}": found for inner, found in flatten(value).items()}
        else:
            flat[name] = value
    return flat


def check_options(options, place):
    flat = flatten(options)
    known = {name: value for name, value in flat.items() if not name.startswith("task.")}
    assert known or flat, f"{place}: an empty file"
    Config.from_options(known)


def anchors(page):
    """Return the headings of a page as GitHub names them in links."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(
        "SURESTEP_CACHE_DIR", str(tmp_path / "cache")
    )  # of sizes that earlier runs found
    path, modules = list(sys.path), set(sys.modules)
    sys.path.insert(0, str(tmp_path))  # blocks may import the files of earlier ones
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page, marks=[] if page.name in QUICK_PAGES else pytest.mark.slow("runs a page")
        )
        for page in PAGES
    ],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_every_block_runs_as_shown(fresh, page):
    run_page(page.read_text(), str(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_resolves(page):
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", prose)
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_heading_resolves(page):
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\((?!https?://)([^)#\s]*\.md)?#([^)\s]+)\)", prose)
    linked = [(page.parent / file if file else page, anchor) for file, anchor in links]
    assert [(file, anchor) for file, anchor in linked if anchor not in anchors(file)] == []


def test_index_lists_every_common_question():
    index = (ROOT / "docs" / "README.md").read_text()
    questions = set(re.findall(r"\(questions\.md#([^)]+)\)", index))
    assert questions == anchors(ROOT / "docs" / "questions.md") - {"common-questions"}
    assert len(questions) >= 10


def test_readme_shows_python_and_the_command_line():
    languages = {block.language for block in blocks(PAGES[0].read_text())}
    assert "python" in languages
    assert languages & {"sh", "console"}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("```python\n1 / 0\n```", ZeroDivisionError),
        ("- here:\n\n  ```python\n  1 / 0\n  ```", ZeroDivisionError),
        ("```toml\nepoch = 3\n```", Exception),
        ("```toml\nepochs =\n```", tomllib.TOMLDecodeError),
        ("```sh\nsurestep trian\n```", AssertionError),
        ("```console\n$ surestep plan \\\n    nowhere\n```", AssertionError),
        ("```python\nx = 1\n```\n\n```python\nassert x == 2\n```", AssertionError),
        ("```python\n# a.py\nx = 1\n```\n```sh\nsurestep plan b.py\n```", AssertionError),
    ],
)
def test_wrong_block_is_reported(fresh, text, error):
    with pytest.raises(error):
        run_page(text, "page.md")


@pytest.mark.parametrize(
    "text",
    [
        "<!-- not run: it needs eight GPUs -->\n```python\n1 / 0\n```",
        "<!-- not run: it takes an hour -->\n\n```sh\nsurestep nothing\n```",
        "```text\n1 / 0\n```",
        "```sh\npip install surestep\n```",
        "```console\n$ surestep --version  # which one\nsurestep 0.1.0\n```",
        "```python\n# a.py\nx = 1\n```\n```python\nfrom os import stat\nstat('a.py')\n```",
    ],
)
def test_correct_block_and_block_that_is_not_run_pass(fresh, text):
    run_page(text, "page.md")


DRAW = re.compile(r"^\S.*torch\.(?:rand|randn|randint)\(", re.MULTILINE)
RUN_FOLDER = re.compile(r"""(?:run=["']|from_=["']|--run |--run-folder )(runs/[\w-]+)""")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_random_data_of_a_page_is_seeded(page):
    """The same script, run twice, has the same data: otherwise the run would not resume."""
    code = "".join(block.code for block in blocks(page.read_text()) if block.language == "python")
    first = DRAW.search(code)
    assert first is None or "manual_seed" in code[: code.index("\n", first.end())]


def test_no_two_pages_share_a_run_folder():
    pages = {}
    for page in PAGES:
        code = "\n".join(block.code for block in blocks(page.read_text()))
        for folder in RUN_FOLDER.findall(code):
            pages.setdefault(folder, set()).add(page.name)
    assert {folder: names for folder, names in pages.items() if len(names) > 1} == {}
