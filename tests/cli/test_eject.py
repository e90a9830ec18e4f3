"""`surestep eject`."""

import ast
from io import StringIO
from tokenize import COMMENT, generate_tokens

from tests.cli.conftest import RECIPE

OPTIONS = ("--task.hidden", "8", "--epochs", "2")


def test_script_is_printed_and_written(surestep, folder):
    printed = surestep("eject", "spiral", *OPTIONS)
    assert (printed.code, printed.err) == (0, "")
    written = surestep("eject", "spiral", *OPTIONS, "--out", "script.py")
    assert written.out == "script.py is written. Next: python script.py\n"
    text = (folder / "script.py").read_text()
    assert text.split() == printed.out.split()
    ast.parse(text)
    assert "import surestep" not in text
    assert "    parts = task(hidden=8)\n" in text
    assert "`surestep train spiral --task.hidden 8 --epochs 2`" in text.partition("import")[0]


def test_script_of_two_ranks_is_started_by_torchrun(surestep, folder):
    written = surestep("eject", "spiral", "--ranks", "2", "--batch_size", "80", "--out", "two.py")
    assert written.out == "two.py is written. Next: torchrun --nproc-per-node 2 two.py\n"
    text = (folder / "two.py").read_text()
    assert "RANKS = 2" in text
    assert "with 2 processes, within rounding.\nStart it with torchrun --nproc" in text
    assert "`surestep train spiral --batch_size 80`" in text
    answer = surestep("eject", "spiral", "--ranks", "0")
    assert "--ranks 0 is not allowed: it is 1 or more." in answer.err


def test_recipe_of_a_notebook_is_rejected(surestep, folder):
    (folder / "mine.ipynb").write_text("{}")
    assert "Give a .py file." in surestep("eject", "mine.ipynb").err


def test_existing_file_is_not_overwritten(surestep, folder):
    (folder / "mine.py").write_text("mine")
    answer = surestep("eject", "spiral", "--out", "mine.py")
    assert answer.code != 0
    assert "mine.py already exists. Pass --out FILE, or delete it." in answer.err
    assert (folder / "mine.py").read_text() == "mine"


def test_comments_can_be_left_out_and_assertions_added(surestep, folder):
    surestep("eject", "spiral", "--plain", "--out", "plain.py")
    plain = (folder / "plain.py").read_text()
    tokens = generate_tokens(StringIO(plain).readline)
    assert [token.string for token in tokens if token.type == COMMENT] == []
    surestep("eject", "spiral", "--with-checks", "--out", "checked.py")
    checked = ast.parse((folder / "checked.py").read_text())
    assert sum(isinstance(node, ast.Assert) for node in ast.walk(checked)) == 3
    assert "assert" not in plain


def test_script_of_a_run_has_the_options_of_the_run(surestep):
    assert surestep("train", "spiral", "--max-steps", "3", "--run", "r").code == 0
    answer = surestep("eject", "r", "--plain")
    assert answer.code == 0
    assert "STEPS = 3\n" in answer.out
    assert "\nthe run r, bit for bit.\n" in answer.out


def test_run_whose_options_are_not_those_of_all_its_steps_is_rejected(surestep):
    options = ("--validation.every", "2 steps", "--checkpoint.every", "2 steps")
    assert surestep("train", "spiral", "--max-steps", "2", "--run", "r", *options).code == 0
    more = ("--max-steps", "4", "--allow", "max_steps")
    assert surestep("train", "spiral", "--run", "r", *options, *more).code == 0
    assert "was resumed with other options" in surestep("eject", "r").err
    assert surestep("train", "spiral", *options, *more[:2], "--run", "s", "--from", "r@2").code == 0
    assert "started from a checkpoint of another run" in surestep("eject", "s").err


def test_recipe_that_cannot_be_printed_is_rejected_and_nothing_is_written(surestep, folder, recipe):
    answer = surestep("eject", recipe(RECIPE), "--compile", "default", "--out", "x.py")
    assert answer.code != 0
    assert "Set compile='off'" in answer.err
    assert not (folder / "x.py").exists()
