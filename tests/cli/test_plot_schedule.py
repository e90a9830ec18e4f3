import sys

import pytest

from surestep.cli import plot_schedule as module
from tests.needs import needs

needs("matplotlib")
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    "words",
    [
        ("--schedule.name", "cosine"),
        ("--schedule.name", "one_cycle", "--schedule.warmup", "0"),
        ("--schedule.name", "reduce_on_plateau"),
    ],
)
def test_plan_draws_its_schedule(surestep, recipe, folder, words):
    answer = surestep("plan", recipe(), *words, "--plot", "rate.png")
    assert (answer.code, answer.err) == (0, "Drawn: rate.png\n")
    assert (folder / "rate.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("rate.jpeg", "has the suffix '.jpeg'. Use one of .png"),
        ("rate", "has the suffix ''. Use one of .png"),
        ("nowhere/rate.png", "there is no folder nowhere"),
        ("dir.png", "is a folder. Name a file in it"),
    ],
)
def test_unwritable_plot_path_is_rejected_first(surestep, folder, recipe, path, sentence):
    (folder / "dir.png").mkdir()
    text = "import surestep\nconfig = surestep.Config(epochs=1)\ndef task(): 1 / 0\n"
    answer = surestep("plan", recipe(text), "--plot", path)
    assert answer.code == 2
    assert sentence in answer.err


def test_missing_matplotlib_is_named_with_the_command_to_install_it(surestep, recipe, monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    answer = surestep("plan", recipe(), "--plot", "rate.png")
    assert answer.code == 2
    assert "Install it: pip install matplotlib." in answer.err


def test_plan_without_a_plot_does_not_import_matplotlib(surestep, recipe, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    assert surestep("plan", recipe()).code == 0
    assert "matplotlib" not in sys.modules
