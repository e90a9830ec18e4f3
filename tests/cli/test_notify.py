"""`--notify COMMAND` of `train`, `resume` and `search`, and `notify` of the user's settings."""

import os
import signal
import stat
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from surestep.cli import notify, search
from surestep.record.run import Run
from tests.cli.conftest import BAD, RECIPE

TELL = "env -0 | grep -az ^SURESTEP_ | tee -a told > /dev/null; printf 'end\\0' >> told"
ENDS = """
import os, signal, sys
class Ends(surestep.Callback):
    def on_step(self, state, result):
        if result.step == 2:
            os.environ.get("ENDS") and ends[os.environ["ENDS"]]()

def interrupt():
    raise KeyboardInterrupt
ends = {
    "Ctrl-C": interrupt,
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "exit": lambda: sys.exit(7),
    "error": lambda: 1 / 0,
}
callbacks = [Ends()]
"""


def told():
    """Return the facts of each notification."""
    text = Path("told").read_text() if Path("told").exists() else ""
    return [
        {
            name.removeprefix("SURESTEP_"): value
            for name, _, value in (entry.partition("=") for entry in part.split("\0") if entry)
            if name != "SURESTEP_CACHE_DIR"
        }
        for part in text.split("end\0")[:-1]
    ]


@pytest.fixture
def settings(folder, monkeypatch):
    """Write the user's configuration."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / ".config"))
    path = folder / ".config/surestep/config.toml"
    path.parent.mkdir(parents=True)

    def write(text):
        path.write_text(text)
        return path

    return write


def test_finished_run_is_reported_with_its_facts(surestep, recipe, folder):
    answer = surestep("train", recipe(), "--run", "r", "--notify", TELL, "--json")
    assert answer.code == 0
    run = Run(folder / "r")
    value = run.best.metrics["val/loss"]
    assert told() == [
        {
            **{"COMMAND": "train", "RUN": str(folder / "r"), "STATUS": "finished"},
            **{"REASON": run.status["reason"], "EXIT_CODE": "0", "STEP": "6", "TOTAL_STEPS": "6"},
            **{"METRIC": "val/loss", "BEST": str(value), "BEST_STEP": str(run.best.step)},
            "TRIALS": "",
        }
    ]
    assert float(told()[0]["BEST"]) == value
    recorded = [path for path in (folder / "r").rglob("*") if path.is_file()]
    assert not [path for path in recorded if b"SURESTEP_" in path.read_bytes()]  # may have a token
    assert surestep("resume", "r", "--notify", TELL).code == 0
    assert [facts["COMMAND"] for facts in told()] == ["train", "resume"]


@pytest.mark.parametrize(
    ("how", "code", "status", "reason"),
    [
        ("Ctrl-C", 130, "stopped", "Ctrl-C"),
        ("SIGTERM", 75, "stopped", "SIGTERM"),
        ("exit", 7, "stopped", "SystemExit after step 2 of 6"),
        ("error", 1, "failed", "ZeroDivisionError: division by zero"),
    ],
)
def test_run_that_does_not_finish_is_reported(
    surestep, recipe, folder, monkeypatch, how, code, status, reason
):
    monkeypatch.setenv("ENDS", how)
    words = ("train", recipe(RECIPE + ENDS), "--run", "r")
    answer = surestep(*words, "--notify", f"{TELL}; echo told")
    assert answer.code == code
    (facts,) = told()
    assert (facts["STATUS"], facts["EXIT_CODE"]) == (status, str(code))
    assert facts["REASON"].startswith(reason)
    assert facts["STEP"] == str(Run(folder / "r").status["step"])
    assert answer.err.endswith("told\n")  # after the messages of the run
    assert answer.out == ""


@pytest.mark.parametrize(
    ("text", "reason"),
    [(BAD, "NonFiniteError: Step 3 was not finite"), (RECIPE.replace("(4, ", "(5, "), "TaskError")],
)
def test_error_of_a_run_is_reported(surestep, recipe, text, reason):
    answer = surestep("train", recipe(text), "--run", "r", "--data.shuffle", "no", "--notify", TELL)
    assert answer.code == 1
    (facts,) = told()
    assert (facts["STATUS"], facts["EXIT_CODE"]) == ("failed", "1")
    assert facts["REASON"].startswith(reason)
    assert facts["RUN"] == str(Path("r").absolute())


def test_names_are_passed_as_values_and_run_nothing(surestep, recipe):
    bad = """$(touch ran)`touch ran`'; touch ran; "\\n\\x1b[31m"""
    text = RECIPE.replace('"accuracy": accuracy', f"{bad!r}: accuracy")
    folder = 'a "$(touch ran)" \'; touch ran; \nb'
    answer = surestep(
        *("train", recipe(text), "--run", folder, "--validation.metric", f"val/{bad}"),
        *("--validation.mode", "max", "--notify", TELL),
    )
    assert answer.code == 0, answer.err
    (facts,) = told()
    assert facts["RUN"] == str(Path(folder).absolute())
    assert facts["METRIC"] == f"val/{bad}".replace("\n", "\\n").replace("\x1b", "\\x1b")
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("exit 3", "The notification failed: its command ended with exit code 3."),
        ("kill -9 $$", "The notification failed: its command was killed by signal 9."),
        (
            "sleep 60 & echo $! > pid; wait",
            "The notification failed: its command was ended after 0.3 s.",
        ),
    ],
)
def test_command_that_fails_or_hangs_changes_nothing(
    surestep, recipe, monkeypatch, command, message
):
    monkeypatch.setattr(notify, "LIMIT_S", 0.3)
    answer = surestep("train", recipe(), "--run", "r", "--notify", command)
    assert answer.code == 0
    assert answer.err.splitlines()[-1] == message
    assert Run(Path("r")).status["status"] == "finished"
    if Path("pid").exists():  # what the command has started is ended too
        started = time.monotonic()
        while has_child(int(Path("pid").read_text())) and time.monotonic() < started + 60:
            time.sleep(0.01)
        assert not has_child(int(Path("pid").read_text()))


def has_child(pid):
    about = Path(f"/proc/{pid}/stat")
    with suppress(FileNotFoundError):
        return about.read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_signal_ends_the_wait_for_the_command(monkeypatch, capfd):
    monkeypatch.setattr(notify, "LIMIT_S", 60.0)
    started = time.monotonic()
    notified = notify.NotifiedCommand("train", f"kill -TERM {os.getpid()}; sleep 60")
    assert notified.run(lambda: 0) == 0
    assert "failed: its command was ended by SIGTERM." in capfd.readouterr().err
    assert time.monotonic() - started < 30
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_facts_that_cannot_be_read_do_not_keep_the_command_from_running(capfd):
    def fail():
        raise OSError("the disk is gone")

    notified = notify.NotifiedCommand("train", "echo $SURESTEP_STATUS")
    notified.describe = fail
    assert notified.run(lambda: 0) == 0
    assert capfd.readouterr().err == (
        "The notification lacks facts: OSError: the disk is gone\nfinished\n"
    )


def test_long_reason_is_shortened(capfd):
    def fail():
        raise ValueError("x\0" * 200_000)

    assert notify.NotifiedCommand("train", "echo ${#SURESTEP_REASON}").run(fail) == 1
    assert capfd.readouterr().err.endswith("\n4000\n")


def test_command_of_the_configuration_is_run(surestep, recipe, settings):
    settings(f'notify = """{TELL}"""\n'.replace("\\", "\\\\"))
    assert surestep("train", recipe(), "--run", "r").code == 0
    assert len(told()) == 1
    surestep("resume", "r", "--notify", "echo typed > typed")
    assert Path("typed").exists()
    surestep("resume", "r", "--notify", "none")
    surestep("train", "mine.py", "--dry-run")
    assert len(told()) == 1


@pytest.mark.parametrize("words", [("train", "mine.py"), ("resume", "r"), ("search", "mine.py")])
@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("", "--notify has no command. Write --notify 'notify-send \"$SURESTEP_STATUS\"'"),
        (" ", "--notify has no command."),
        ("notfy-snd hello", "--notify: there is no command 'notfy-snd' that can be run."),
        ("./gone.sh", "--notify: there is no command './gone.sh' that can be run."),
    ],
)
def test_wrong_command_is_explained_before_training(surestep, recipe, words, typed, message):
    recipe()
    answer = surestep(*words, "--notify", typed)
    assert (answer.code, answer.out) == (2, "")
    assert f"ConfigError: {message}" in answer.err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("notify = ", "is not TOML: Invalid value (at end of document). Write: notify = "),
        ('notfy = "x"', "has the key 'notfy'. Did you mean 'notify'?"),
        ("notify = 3", "has notify = 3, which is not a command. Write: notify = "),
        ('notify = ""', "has no command. Write: notify = "),
        (b"\xff", "is not text: invalid start byte."),
    ],
)
def test_wrong_configuration_is_explained(surestep, recipe, settings, text, message):
    path = settings("")
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    answer = surestep("train", recipe(), "--run", "r")
    assert answer.code == 2
    assert f"ConfigError: {path} {message}" in answer.err
    assert not Path("r").exists()


def test_configuration_that_cannot_be_read_is_explained(surestep, recipe, settings):
    path = settings("")
    path.unlink()
    path.mkdir()
    answer = surestep("train", recipe(), "--run", "r")
    assert answer.code == 2
    assert f"ConfigError: {path} cannot be read: Is a directory." in answer.err


def test_missing_command_of_the_configuration_is_named_and_the_run_trains(
    surestep, recipe, settings
):
    path = settings('notify = "notfy-snd hello"')
    answer = surestep("train", recipe(), "--run", "r")
    assert answer.code == 0
    assert f"{path}: there is no command 'notfy-snd' that can be run." in answer.err
    assert Run(Path("r")).status["status"] == "finished"


@pytest.mark.parametrize("home", ["", "settings", None])
def test_configuration_is_never_read_from_the_working_directory(monkeypatch, folder, home):
    (folder / "settings/surestep").mkdir(parents=True)
    (folder / "settings/surestep/config.toml").write_text('notify = "true"')
    (folder / ".config").symlink_to("settings")
    monkeypatch.setenv("HOME", str(folder / "nowhere") if home is not None else ".")
    monkeypatch.setenv("XDG_CONFIG_HOME", home or "")
    assert notify.choose_command(None) == ""
    monkeypatch.setenv("HOME", str(folder))
    assert notify.choose_command(None) == ("" if home else "true")


def test_only_the_first_rank_notifies(monkeypatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "1")
    assert notify.choose_command("true") == ""
    monkeypatch.setenv("RANK", "0")
    assert notify.choose_command("true") == "true"


def test_dry_run_takes_no_command(surestep, recipe):
    answer = surestep("train", recipe(), "--dry-run", "--notify", "true")
    assert (answer.code, "--from, --notify, --report and --animate." in answer.err) == (2, True)


@pytest.mark.parametrize(
    ("stopped", "states", "code", "facts"),
    [
        ("", ["finished", "pruned"], 0, ("finished", "", "2")),
        ("SIGTERM", ["finished", "running"], 75, ("stopped", "SIGTERM", "1")),
        ("timeout", ["finished", "running"], 0, ("stopped", "timeout", "1")),
        ("", ["finished", "failed"], 1, ("failed", "1 of 2 trials failed", "2")),
    ],
)
def test_search_is_reported_once(
    surestep, recipe, monkeypatch, folder, stopped, states, code, facts
):
    rows = [
        SimpleNamespace(number=at, state=state, is_feasible=True, reason="why", params={})
        for at, state in enumerate(states)
    ]
    study = SimpleNamespace(settings=SimpleNamespace(where=(), is_multi_objective=False))
    winner = SimpleNamespace(values={"val/loss": 0.25}, number=0)
    result = SimpleNamespace(
        **{"study": study, "trials": rows, "winner": winner, "stopped": stopped},
        **{"folder": folder / "s", "config": None, "report": None},
    )
    monkeypatch.setattr("surestep.tuning.search.run_search", lambda call, options: result)
    monkeypatch.setattr(search, "_print_result", lambda *_: None)
    assert surestep("search", recipe(), "--trials", 2, "--notify", TELL).code == code
    (found,) = told()
    assert (found["STATUS"], found["REASON"].split(", so")[0], found["TRIALS"]) == facts
    assert found["RUN"] == str(folder / "s")
    assert (found["METRIC"], found["BEST"], found["STEP"]) == ("val/loss", "0.25", "")
    assert found["EXIT_CODE"] == str(code)


def test_command_that_may_not_be_executed_is_named(surestep, recipe):
    script = Path("tell.sh")
    script.write_text("#!/bin/sh\ntrue\n")
    answer = surestep("train", recipe(), "--notify", "./tell.sh")
    assert "there is no command './tell.sh' that can be run" in answer.err
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    assert notify.choose_command("./tell.sh") == "./tell.sh"
