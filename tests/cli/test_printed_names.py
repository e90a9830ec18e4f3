"""Control characters in names are escaped before printing, and commands can be pasted."""

import shlex
import unicodedata
from pathlib import Path

import pytest

from surestep.base.text import escape_control_chars
from surestep.base.warn import warn
from surestep.record.progress_display import PlainProgress, TqdmProgress
from tests import tiny
from tests.cli.conftest import RECIPE
from tests.tuning.studies_on_disk import make_study

RAW = "\x1b[2J\x1b]0;owned\x07\r\x9b31m\u202egnp"
ESCAPED = escape_control_chars(RAW)
SPACED = "my runs/it's one"

NAMES = RECIPE.replace(
    "    return surestep.Task(",
    f"    RAW = {RAW!r}\n"
    "    def model():\n"
    "        made = nn.Sequential()\n"
    "        made.add_module(RAW, nn.Linear(4, 3))\n"
    "        return made\n"
    "    return surestep.Task(",
)
NAMES = NAMES.replace(
    "model=lambda: nn.Sequential(nn.Linear(4, hidden, bias), acts[act](), nn.Linear(hidden, 3)),",
    "model=model,",
).replace('metrics={"accuracy": accuracy}', "metrics={RAW: accuracy}")

BAD_SAMPLE = NAMES.replace(
    "train=(x[:24], y[:24])",
    "train=Rows()",
).replace(
    "def task(",
    f"""
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        if index == 13:
            raise OSError({RAW!r})
        return x[index], y[index]

def task(""",
)

BAD_CALLBACK = (
    NAMES
    + f"""
Odd = type({RAW!r}, (), {{}})
callbacks = [Odd()]
"""
)


def is_clean(text):
    return all(c == "\n" or unicodedata.category(c) not in ("Cc", "Cf") for c in text)


@pytest.fixture
def answers(surestep):
    """Run a command; check that its output has no control character."""

    def call(*words):
        answer = surestep(*words)
        assert is_clean(answer.out), ascii(answer.out)
        assert is_clean(answer.err), ascii(answer.err)
        return answer

    return call


def test_every_command_escapes_names(answers, recipe):
    Path(f"odd{RAW}").mkdir()
    name = recipe(NAMES, f"odd{RAW}/mine.py")
    run = f"run{RAW}"
    trained = answers("train", name, "--run", run)
    assert trained.code == 0, trained.err
    assert ESCAPED in trained.out
    assert ESCAPED in trained.err
    for words in (
        ("train", name, "--run", run),
        ("train", name, "--dry-run"),
        ("plan", name, "--all"),
        ("plan", name, "--all", "--json"),
        ("evaluate", run),
        ("evaluate", run, "--json"),
        ("predict", run, "--out", f"out{RAW}.npz"),
        ("ckpt", "list", run),
        ("ckpt", "list", run, "--json"),
        ("ckpt", "verify", run),
        ("ckpt", "export", run, f"weights{RAW}.safetensors"),
    ):
        answer = answers(*words)
        assert answer.code == 0, words
    diff = answers("ckpt", "diff", f"{run}@3", f"{run}@last")
    assert diff.code == 1
    assert ESCAPED in diff.out
    newest = sorted((Path(run) / "checkpoints").iterdir())[-1]
    (newest / "state.json").write_text("{}")
    verified = answers("ckpt", "verify", run)
    assert verified.code == 1
    assert ESCAPED in verified.out


@pytest.mark.parametrize(
    "words",
    [
        (RAW,),
        ("ckpt", RAW),
        ("train", RAW),
        ("train", "mine.py", "--optim.name", RAW),
        ("train", "mine.py", "--optim.lr", RAW),
        ("train", "mine.py", f"--{RAW}", "1"),
        ("train", "mine.py", "--epochs", "1", RAW),
        ("ckpt", "list", "r", RAW),
        ("train", "mine.py", "--device", RAW),
        ("train", "mine.py", "--from", RAW),
        ("evaluate", RAW),
        ("evaluate", "r", "--split", RAW),
        ("replay", RAW),
        ("ckpt", "list", RAW),
        ("schedules", RAW),
        ("losses", RAW),
    ],
)
def test_errors_escape_the_typed_text(answers, recipe, words):
    recipe()
    answer = answers(*words)
    assert answer.code != 0
    assert answer.err + answer.out


@pytest.mark.parametrize("workers", ["0", "1"])
def test_errors_of_samples_are_escaped(answers, recipe, workers):
    answer = answers("train", recipe(BAD_SAMPLE), "--run", "r", "--data.num-workers", workers)
    assert answer.code == 1
    assert ESCAPED in answer.err


def test_names_of_callbacks_are_escaped(answers, recipe):
    answer = answers("train", recipe(BAD_CALLBACK), "--run", "r")
    assert answer.code == 2
    assert ESCAPED in answer.err or RAW.encode("unicode_escape").decode() in answer.err


def test_notes_of_errors_are_escaped(answers, recipe):
    text = f"""
from surestep.base.errors import ConfigError
error = ConfigError("no")
error.add_note({RAW!r})
raise error
def task(): ...
"""
    answer = answers("train", recipe(text), "--run", "r")
    assert answer.code == 2
    assert ESCAPED in answer.err


def test_foreign_error_in_training_is_escaped(answers, recipe):
    class_ = f"""
class Odd(nn.Linear):
    def forward(self, x):
        if self.training:
            raise LookupError({RAW!r})
        return super().forward(x)

def task("""
    text = RECIPE.replace("def task(", class_, 1).replace("nn.Linear(hidden, 3)", "Odd(hidden, 3)")
    answer = answers("train", recipe(text), "--run", "r")
    assert answer.code == 1
    assert "Traceback (most recent call last)" in answer.err
    assert f"LookupError: {ESCAPED}" in answer.err


def test_names_in_a_received_study_are_escaped(answers):
    study = make_study(
        Path(f"study{RAW}"), space={f"task.{RAW}": [1, 2]}, objectives=((RAW, "min"),), trials=2
    )
    study.finish(study.claim_trial(), [0.5])
    shown = answers("search", "show", f"study{RAW}")
    assert shown.code == 0, shown.err
    assert shown.out.count(ESCAPED) == 3
    assert answers("search", "show", f"study{RAW}", "--json").code == 0


def test_line_breaks_in_names_are_escaped_in_tables_and_numbers(answers, recipe):
    text = RECIPE.replace('metrics={"accuracy": accuracy}', 'metrics={"a\\nb": accuracy}')
    trained = answers("train", recipe(text), "--run", "r")
    assert trained.code == 0, trained.err
    assert r"a\nb" in trained.out + trained.err
    assert "a\nb" not in trained.out + trained.err
    assert r"a\nb" in answers("evaluate", "r").out


@pytest.mark.parametrize("kind", ["plain", "bar"])
def test_progress_lines_of_a_run_are_escaped(capfd, caplog, kind):
    caplog.set_level("INFO", "surestep")
    plan = tiny.plan().plan
    shown = PlainProgress(plan) if kind == "plain" else TqdmProgress(plan, start=0, every_s=1000)
    shown.print_line(f"Note: {RAW}")
    assert f"Note: {ESCAPED}" in capfd.readouterr().err
    assert caplog.messages == [f"Note: {ESCAPED}"]


def test_warnings_are_escaped():
    with pytest.warns(UserWarning, match="owned") as caught:
        warn(RAW)
    assert str(caught[0].message) == ESCAPED


def command_in(text, start):
    """Return the words of the command that a text suggests, as a shell reads them."""
    return shlex.split(text[text.index(start) :].splitlines()[0].removesuffix("."))


def test_suggested_commands_can_be_pasted(surestep, recipe):
    Path("my recipe's").mkdir()
    name = recipe(name="my recipe's/mine.py")
    trained = surestep("train", name, "--run", SPACED)
    assert trained.code == 0, trained.err
    words = command_in(trained.out, "surestep evaluate")
    assert words == ["surestep", "evaluate", SPACED, "--split", "test"]
    assert surestep(*words[1:]).code == 0
    dry = surestep("train", name, "--dry-run")
    assert command_in(dry.out, "surestep train") == ["surestep", "train", name]
    new = surestep("new", name)
    assert command_in(new.err, "surestep new --slurm") == ["surestep", "new", "--slurm", name]
    options = surestep("resume", SPACED, "--epochs", "3")
    assert command_in(options.err, "surestep train")[-2:] == ["--epochs", "3"]
    assert SPACED in command_in(options.err, "surestep train")
    Path(name).unlink()
    gone = surestep("resume", SPACED)
    words = ["surestep", "train", "RECIPE", "--run", SPACED]
    assert command_in(gone.err, "surestep train") == words


def test_command_for_a_run_without_status_can_be_pasted(surestep, recipe):
    surestep("train", recipe(), "--run", SPACED)
    (Path(SPACED) / "status.json").unlink()
    answer = surestep("ckpt", "diff", f"{SPACED}@best", f"{SPACED}@last")
    words = ["surestep", "train", "RECIPE", "--from", f"{SPACED}@last", "--run", "NEW"]
    assert command_in(answer.err, "surestep train") == words
