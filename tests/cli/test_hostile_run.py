"""Each command on a hostile run folder ends quickly with a sentence and runs no code in it."""

import shutil

import pytest

from tests.record.damage import change, in_time, spoil

INCIDENT = "incidents/step-00000003"
COMMANDS = {
    "evaluate": ("evaluate", "r"),
    "predict": ("predict", "r", "--out", "p.npz"),
    "resume": ("resume", "r"),
    "train": ("train", "{recipe}", "--run", "r", "--data.shuffle", "False"),
    "replay": ("replay", f"r/{INCIDENT}"),
    "diagnose": ("diagnose", "r"),
    "plot": ("plot", "r"),
    "report": ("report", "r"),
    "track": ("track", "replay", "r", "--to", "tensorboard"),
    "ckpt list": ("ckpt", "list", "r"),
    "ckpt verify": ("ckpt", "verify", "r"),
    "ckpt export": ("ckpt", "export", "r", "out.pt", "--overwrite"),
    "ckpt diff": ("ckpt", "diff", "r@best", "r@last"),
}
READ_BY = {
    "config.json": ("evaluate", "predict", "resume", "train", "replay", "diagnose", "track"),
    "status.json": ("evaluate", "ckpt export", "ckpt list", "ckpt diff", "diagnose"),
    "events.jsonl": ("resume", "train", "diagnose", "plot", "report", "track"),
    "signature.json": ("diagnose",),
    "plan.json": ("ckpt list", "track"),
    "environment.json": ("track",),
    f"{INCIDENT}/incident.json": ("replay",),
    f"{INCIDENT}/batch.safetensors": ("replay",),
    "lock": ("resume", "train"),
}
CODES = {"ckpt list": 0, "ckpt diff": 2}  # list shows what it can read; for diff, 1 means different
NOT_READ = ("environment.json", "skipped.json")


@pytest.fixture
def typed(made, folder, surestep):
    """Run a command on a fresh copy of the run after changing it by `corrupt`."""

    def call(name, corrupt):
        shutil.rmtree("r", ignore_errors=True)
        shutil.copytree(made / "r", "r")
        corrupt(folder / "r")
        words = [each.format(recipe=made / "spoiled_recipe.py") for each in COMMANDS[name]]
        with in_time():
            answer = surestep(*words)
        assert not list((folder / "r").rglob("unpickled"))
        assert "Traceback" not in answer.err
        return answer

    return call


@pytest.mark.parametrize("damage", ["list", "deep", "NaN", "pipe", "pickle", "huge", "link"])
@pytest.mark.parametrize("file", READ_BY)
def test_corrupt_file_is_named_by_every_command(typed, file, damage):
    for command in READ_BY[file]:
        answer = typed(command, lambda run: spoil(run / file, damage))
        if (file, damage) in HARMLESS:
            continue
        assert answer.code == CODES.get(command, 1), (command, answer.err)
        assert file.rpartition("/")[2] in answer.err


HARMLESS = {
    *(("lock", each) for each in ("list", "deep", "NaN", "pickle", "huge")),
    ("events.jsonl", "pickle"),  # no complete line
}


@pytest.mark.parametrize("renamed", ["first", "grad_norm", "seconds", "epoch", "lr"])
def test_event_with_a_damaged_name_is_set_aside_before_the_run_resumes(typed, folder, renamed):
    def corrupt(run):
        path = run / "events.jsonl"
        path.write_text(path.read_text().replace(f'"{renamed}": ', f'"_{renamed}": '))

    answer = typed("track", corrupt)
    assert answer.code == 1
    assert "events.jsonl" in answer.err
    assert "events.jsonl was damaged" in typed("resume", corrupt).err


@pytest.mark.parametrize("file", NOT_READ)
def test_corrupt_file_that_no_command_reads_is_ignored(typed, file):
    for command in ("evaluate", "ckpt list", "ckpt verify", "ckpt export"):
        assert typed(command, lambda run: (run / file).write_bytes(b"\x80\x04.")).code == 0


STRANGE = ([1], {"a": {}}, "x", None, -1, 10**400)
PLACES = {
    "config.json": [
        *(("recipe",), ("recipe", "path"), ("task",), ("config",), ("config", "optim")),
        *(("config", "optim.lr"), ("config", "self"), ("config", "epochs"), ("data",)),
        *(("decided",), ("decided", "total_steps"), ("loss",), ("model",), ("machine",), ("from",)),
    ],
    "status.json": [("status",), ("monitor",), ("step",)],
    "events.jsonl": [("format", "version")],
    "plan.json": [(0,), (0, "option"), (0, "value")],
    f"{INCIDENT}/incident.json": [
        *(
            ("step",),
            ("checkpoint",),
            ("run_config", "config"),
            ("progress", "position"),
            ("batch",),
        ),
        *(("batch", 0, "args"), ("batch", 0, "items"), ("norms",), ("diagnosis",), ("sha256",)),
    ],
}


@pytest.mark.parametrize("file", PLACES)
def test_unexpected_value_in_a_file_gives_no_traceback(typed, file):
    for number, where in enumerate(PLACES[file]):
        value = STRANGE[number % len(STRANGE)]
        for command in READ_BY[file][:2]:
            typed(command, lambda run: change(run / file, *where, value=value))  # noqa: B023
