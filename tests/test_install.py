"""surestep in a separate environment, as pip and pre-commit install it: without torch."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.needs import report_missing

ROOT = Path(__file__).parent.parent
BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", "src", "docs")
NO_INDEX = re.compile(r"No matching distribution|Connection|Temporary failure|timed out|HTTP")
REPORT = """
import importlib.metadata as metadata, json
import surestep

try:
    from surestep import Task
except ImportError as error:
    text = str(error)
names = [found.metadata["Name"] for found in metadata.distributions()]
print(json.dumps([text, sorted(map(str.lower, names)), metadata.requires("surestep")]))
"""


def run(folder, *words):
    """Run a command of the environment, which sees no other."""
    own = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    command = [folder / "bin" / words[0], *words[1:]]
    return subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=False)


@pytest.fixture
def environment(tmp_path):
    """A virtual environment with `pip install .` of a copy of the repository."""
    clone, home = tmp_path / "clone", tmp_path / "venv"
    clone.mkdir()
    for name in BUILT_FROM:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, clone / name)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    pip = [sys.executable, "-m", "pip", "--python", home / "bin" / "python", "install"]
    done = subprocess.run(
        [*pip, "-q", "--no-compile", clone], capture_output=True, text=True, check=False
    )
    if done.returncode and NO_INDEX.search(done.stderr):
        report_missing(f"needs an index of packages: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return home


@pytest.mark.slow("installs packages")
def test_bare_installation_has_no_torch_and_runs_the_hook(environment):
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert hook["language"] == "python"
    script = min((ROOT / "tests/doctor/rules/ss101").glob("bad_*.py"))
    shutil.copy(script, environment / "train.py")
    found = run(environment, *hook["entry"].split(), "train.py")
    assert (found.returncode, found.stderr) == (1, "")
    assert "SS101" in found.stdout
    explained = run(environment, "surestep", "explain", "SS101")
    assert explained.returncode == 0
    assert "zero_grad" in explained.stdout
    trained = run(environment, "surestep", "train", "digits")
    assert (trained.returncode, trained.stdout) == (2, "")
    assert len(trained.stderr.splitlines()) == 1
    assert "pip install 'surestep[torch]'" in trained.stderr
    text, names, required = json.loads(run(environment, "python", "-c", REPORT).stdout)
    assert text.startswith("surestep.Task needs torch, which is not installed.")
    assert {"numpy", "safetensors", "surestep"} <= set(names)
    assert not any(re.search("torch|nvidia|triton", name) for name in names)
    assert len(names) <= 20  # 16 on 2026-11-29
    assert any(text.startswith("torch>=") and "extra" in text for text in required)
