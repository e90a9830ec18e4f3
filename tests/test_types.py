"""Type checkers accept a user's script, each form of an option, and the Python blocks of the docs.

All of it is checked in one call of each checker. The blocks have few annotations, so they may leave
them out.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import surestep
from tests.config.forms import ROWS
from tests.needs import require
from tests.test_docs import PAGES, blocks

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "tests" / "typed" / "user_script.py"
HEADER = f"""
from datetime import timedelta
import numpy as np
import torch
from surestep import {", ".join(surestep.__all__)}
"""
# Words that are understood, and that the documentation does not list.
NOT_DOCUMENTED = (
    "Config(compile='reduce_overhead')",
    "Logging(progress='tqdm')",
    "Optim(betas=torch.tensor([0.5, 0.75]))",
)
# Lines of the docs that show a mistake, name what is not there, or that the types of torch reject.
EXCEPTIONS = (
    "from csv_tracker import CsvTracker",
    "self.noise = MyNoise()  # a library that keeps its own state",
    "surestep.Config(batch_size=64, gradient_accumulation_steps=4, learning_rate=1e-3)",
    'net.qconfig = quantization.get_default_qat_qconfig("fbgemm")',
    "def step(self, closure=None):",
)
# Libraries that take 12 s to read, for two blocks; what they return may be anything.
WITHOUT_TYPES = ("peft", "transformers")
OF_UNANNOTATED_CODE = {"reportOptionalIterable": False, "reportRedeclaration": False}


def write_forms(folder: Path) -> Path:
    """Write the forms of options that Python accepts."""
    typed = [line for kind, line, outcome in ROWS if kind == "python" and isinstance(outcome, dict)]
    assert set(NOT_DOCUMENTED) < set(typed)
    lines = [f"print({line})" for line in typed if line not in NOT_DOCUMENTED]
    path = folder / "forms.py"
    path.write_text(HEADER + "\n".join(lines) + "\n")
    return path


def write_pages(folder: Path) -> Path:
    """Write the Python of each page; below others, a block that names a file is a module."""
    package = folder / "docs_pages"
    package.mkdir()
    (package / "__init__.py").touch()
    for page in PAGES:
        name = re.sub(r"\W", "_", str(page.relative_to(ROOT).with_suffix("")))
        lines: list[str] = []
        for block in blocks(page.read_text()):
            if block.language != "python" or block.reason is not None:
                continue
            code = block.code.splitlines()
            if lines and re.match(r"# [\w.-]+\.py$", code[0]):
                (package / f"{name}_{block.line}.py").write_text(block.code)
                continue
            lines += [""] * (block.line - 1 - len(lines)) + code
        if lines:
            (package / f"{name}.py").write_text("\n".join(lines) + "\n")
    assert len(list(package.iterdir())) > 30
    return package


def run(*words: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *map(str, words)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": "src"},
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


# As users of pydantic configure mypy; what the forms do not need is not read.
WITH_PLUGIN = """
[mypy]
strict = true
plugins = pydantic.mypy
follow_imports = skip
disallow_any_unimported = false
[mypy-surestep,surestep.config.*,surestep.base.*,pydantic.*]
follow_imports = normal
"""


def check_with_mypy(folder: Path) -> list[tuple[str, int, str]]:
    """Return errors as (file, line, text)."""
    errors = run("mypy", "--no-error-summary", "--output=json", *write_all(folder)).splitlines()
    found = map(json.loads, errors)
    return [
        (each["file"], each["line"], each["message"])
        for each in found
        if each["severity"] == "error"
    ]


def check_with_basedpyright(folder: Path) -> list[tuple[str, int, str]]:
    require("basedpyright")
    stubs = folder / "stubs"
    for name in WITHOUT_TYPES:
        (stubs / name).mkdir(parents=True)
        (stubs / name / "__init__.pyi").write_text("def __getattr__(name: str): ...\n")
    options = {
        **{"typeCheckingMode": "standard", "strict": [str(SCRIPT)], "extraPaths": ["src"]},
        "stubPath": str(stubs),
        **{"include": list(map(str, write_all(folder))), **OF_UNANNOTATED_CODE},
    }
    config = folder / "pyrightconfig.json"
    config.write_text(json.dumps(options))
    words = ("--outputjson", "--project", config, "--pythonpath", sys.executable)
    report = json.loads(run("basedpyright", *words))
    assert report["summary"]["filesAnalyzed"] > 30
    return [
        (each["file"], each["range"]["start"]["line"] + 1, each["message"])
        for each in report["generalDiagnostics"]
        if each["severity"] == "error"
    ]


def write_all(folder: Path) -> list[Path]:
    return [SCRIPT, write_forms(folder), write_pages(folder)]


def is_exception(path: Path, line: int) -> bool:
    return path.read_text().splitlines()[line - 1].strip() in EXCEPTIONS


@pytest.mark.slow("type checkers take a minute")
@pytest.mark.parametrize(
    "check", [check_with_mypy, check_with_basedpyright], ids=["mypy", "basedpyright"]
)
def test_type_checkers_accept_what_users_write(tmp_path, check):
    found = check(tmp_path)
    # The checkers do report mistakes.
    assert any("gradient_accumulation_steps" in text for _, _, text in found)
    # From its cache, mypy returns an error with the path of the earlier call.
    files = {path.name: path for path in (SCRIPT, *tmp_path.rglob("*.py"))}
    located = [(files[Path(file).name], line, text) for file, line, text in found]
    wrong = [
        f"{path.name}:{line}: {text}"
        for path, line, text in located
        if not is_exception(path, line)
    ]
    assert "\n".join(wrong) == ""


@pytest.mark.slow("a type checker takes ten seconds")
def test_plugin_of_pydantic_accepts_each_form(tmp_path):
    (tmp_path / "mypy.ini").write_text(WITH_PLUGIN)
    forms = write_forms(tmp_path)
    forms.write_text(forms.read_text() + "print(Config(epoch=1))\n")
    words = ("--config-file", tmp_path / "mypy.ini", "--cache-dir", tmp_path / "cache")
    error, _ = run("mypy", *words, forms).splitlines()
    assert 'Unexpected keyword argument "epoch"' in error
