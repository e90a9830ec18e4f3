import sys

import pytest

import surestep
from surestep.cli import losses
from surestep.cli.main import main

LINE = (
    "needs torch, which is not installed. Install it: pip install 'surestep[torch]', or a build "
    "for your GPU from https://pytorch.org/get-started/locally/"
)


@pytest.fixture
def without(monkeypatch, tmp_path):
    """Return a function that lets `surestep.Probe` be in a module that imports another one."""

    def define(missing):
        (tmp_path / "own_probe.py").write_text(f"import {missing}\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setitem(surestep._HOMES, "Probe", "own_probe")
        monkeypatch.setitem(sys.modules, missing, None)

    return define


def test_public_name_that_needs_torch_says_what_to_install(without):
    without("torch")
    with pytest.raises(ImportError) as raised:
        from surestep import Probe  # noqa: F401
    assert str(raised.value) == f"surestep.Probe {LINE}"
    assert raised.value.name == "torch"


def test_other_missing_module_of_a_public_name_is_not_taken_for_torch(without):
    without("torchgone")
    with pytest.raises(ImportError, match="torchgone"):
        _ = surestep.Probe


def test_command_that_misses_another_module_prints_its_traceback(monkeypatch, capsys):
    def run(words):
        raise ModuleNotFoundError(f"No module named {words[0]!r}", name=words[0])

    monkeypatch.setattr(losses, "run", run)
    assert main(["losses", "torch"]) == 2
    assert capsys.readouterr().err == f"ConfigError: surestep losses {LINE}\n"
    assert main(["losses", "numpy"]) == 1
    assert "Traceback" in capsys.readouterr().err
