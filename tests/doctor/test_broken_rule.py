"""A rule that cannot be loaded is named, and the others are used."""

import subprocess
import sys

import pytest

from surestep.cli.main import main
from surestep.doctor import rule as module

SCRIPT = """\
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
BROKEN = (
    "SS101 missing-zero-grad is not used, since it cannot be loaded: ImportError: no such name."
)


@pytest.fixture(autouse=True)
def broken(tmp_path, monkeypatch):
    """Make the module of SS101 raise an error when it is imported."""
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    load, forget = module.import_module, (module._load_all, module.load_rule)

    def spoiled(name):
        if "ss101" in name:
            raise ImportError("no such name")
        return load(name)

    monkeypatch.setattr(module, "import_module", spoiled)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # watch replaces it
    for function in forget:
        function.cache_clear()
    yield
    for function in forget:
        function.cache_clear()


def test_check_names_it_once_and_uses_the_others(tmp_path, capsys):
    (tmp_path / "other.py").write_text(SCRIPT)
    assert main(["check", ".", "--no-cache"]) == 1
    shown = capsys.readouterr()
    assert shown.err.count(BROKEN) == 1
    assert shown.out.count("SS103 clip-before-backward") == 2


def test_check_of_other_rules_says_nothing(capsys):
    assert main(["check", ".", "--no-cache", "--select", "SS103"]) == 1
    assert "SS101" not in capsys.readouterr().err


@pytest.mark.parametrize("how", [(), ("--diff",), ("--write-baseline", "baseline.json")])
def test_check_without_findings_fails_unless_the_rule_is_ignored(tmp_path, capsys, how):
    (tmp_path / "train.py").write_text("import torch\n")
    assert main(["check", ".", "--no-cache", *how]) == 1
    assert BROKEN in capsys.readouterr().err
    assert main(["check", ".", "--no-cache", *how, "--ignore", "SS101"]) == 0


def test_result_without_it_is_not_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SURESTEP_CACHE_DIR", str(tmp_path / "cache"))
    for _ in range(2):
        main(["check", "."])
        assert BROKEN in capsys.readouterr().err


def test_watch_names_it_and_verifies_nothing_by_it(capfd):
    assert main(["watch", "--fail-on", "error", "--select", "SS1,SS506", "train.py"]) == 1
    assert main(["watch", "--fail-on", "error", "--select", "SS506", "train.py"]) == 0
    shown = capfd.readouterr().err
    assert shown.count(BROKEN) == 1


def test_explain_lists_the_others(capsys):
    assert main(["explain", "SS1"]) == 0
    shown = capsys.readouterr()
    assert BROKEN in shown.err
    assert "SS102" in shown.out
    assert "SS101 " not in shown.out
    assert main(["explain", "SS101"]) == 1
    assert BROKEN in capsys.readouterr().err


def test_python_without_docstrings_has_all_rules():
    program = "from surestep.doctor import rule; print(len(rule.load_rules()), rule.list_broken())"
    done = subprocess.run([sys.executable, "-OO", "-c", program], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.split() == [str(len(module.list_codes())), "{}"]
