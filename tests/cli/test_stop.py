"""Signals before the first step of a command, and after its last."""

import os
import signal
import subprocess
import sys
from importlib import import_module
from itertools import product

import pytest

import surestep.trainer.fit  # noqa: F401  # here, so that not every fork imports it
from surestep.record.run import Run
from tests.cli.conftest import RECIPE, environment
from tests.forked import run_forked

NUMBERS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
EARLY = (  # where a run is before its folder is a run, in order
    "surestep.cli.options.find",
    "surestep.cli.train.read_command_line",
    "surestep.trainer.prepare.plan_task",
    "surestep.trainer.prepare.decide_resume",
    "surestep.trainer.prepare._open_session",
    "surestep.record.run_writer.collect_environment",
)
OPENED = (  # and from then on until `fit()`
    "surestep.trainer.prepare.report_start",
    "surestep.trainer.start_report._report_progress",
    "surestep.trainer.fit.stop_after_step",
)
LATE = ("surestep.trainer.session.Session.evaluate_checkpoint", "surestep.cli.train.report")


def send(place, *numbers):
    """Return a function that has a process get signals where it calls a function."""

    def patch():
        names = place.split(".")
        cut = -2 if names[-2][0].isupper() else -1
        owner = import_module(".".join(names[:cut]))
        for name in names[cut:-1]:
            owner = getattr(owner, name)
        own = getattr(owner, names[-1])

        def signaled(*args, **named):
            setattr(owner, names[-1], own)
            for number in numbers:
                signal.raise_signal(number)
            return own(*args, **named)

        setattr(owner, names[-1], signaled)

    return patch


def finish(folder, *words):
    done = run_forked(folder, *words)
    assert done.returncode == 0, done.stderr
    assert Run(folder / "r").status["status"] == "finished"


@pytest.mark.parametrize(("place", "number"), [*zip(EARLY, NUMBERS * 2, strict=True)])
def test_signal_before_the_run_begins_leaves_no_run(recipe, folder, place, number):
    words = ("train", recipe(RECIPE), "--run", "r")
    stopped = run_forked(folder, *words, first=send(place, number, number))
    assert (stopped.returncode, stopped.stdout) == (75, "")
    assert f"Stopped by {number.name} before " in stopped.stderr
    assert stopped.stderr.count("Stopped by") == 1
    assert "Traceback" not in stopped.stderr
    assert "Resume with" not in stopped.stderr
    assert not (folder / "r").exists()


@pytest.mark.parametrize(("place", "number"), [*zip(OPENED, NUMBERS, strict=True)])
def test_signal_before_the_first_step_is_recorded(recipe, folder, place, number):
    words = ("train", recipe(RECIPE), "--run", "r")
    stopped = run_forked(folder, *words, first=send(place, number, number))
    assert (stopped.returncode, stopped.stdout) == (75, "")
    assert f"Stopped by {number.name} before the first step" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    status = Run(folder / "r").status
    ended = (status["status"], status["reason"], status["resumable"])
    assert ended == ("stopped", number.name, False)
    finish(folder, *words)


@pytest.mark.parametrize("place", LATE)
def test_signal_after_the_end_does_not_say_how_to_resume(recipe, folder, place):
    words = ("train", recipe(RECIPE), "--run", "r")
    for number, code in [(signal.SIGTERM, 75), (signal.SIGINT, 130)]:
        stopped = run_forked(folder, *words, first=send(place, number))
        assert (stopped.returncode, stopped.stdout) == (code, "")
        assert ("when SIGTERM arrived" in stopped.stderr) == (number == signal.SIGTERM)
        assert "Resume with" not in stopped.stderr
        assert Run(folder / "r").status["status"] == "finished"
    finish(folder, *words)


def test_signal_after_the_end_of_a_resume_does_not_say_how_to_resume(recipe, folder):
    finish(folder, "train", recipe(RECIPE), "--run", "r")
    for number, code in [(signal.SIGTERM, 75), (signal.SIGINT, 130)]:
        place = "surestep.cli.resume.report"
        stopped = run_forked(folder, "resume", "r", first=send(place, number))
        assert (stopped.returncode, stopped.stdout) == (code, "")
        ended = "Training had ended when SIGTERM arrived.\n"
        assert stopped.stderr.endswith(ended if code == 75 else "")
        assert "began" not in stopped.stderr
        assert "Resume with" not in stopped.stderr
        assert Run(folder / "r").status["status"] == "finished"


@pytest.mark.slow("starts a trial in a process of its own")
def test_signal_after_the_end_of_a_search_does_not_say_how_to_resume(recipe, folder):
    (folder / "space.toml").write_text('"optim.lr" = "log(1e-3, 1e-1)"\n')
    words = ("search", recipe(RECIPE), "--space", "space.toml", "--trials", "1", "--study", "s")
    for number, code in [(signal.SIGTERM, 75), (signal.SIGINT, 130)]:
        stopped = run_forked(
            folder, *words, first=send("surestep.cli.search._print_result", number)
        )
        assert (stopped.returncode, stopped.stdout) == (code, "")
        ended = "Training had ended when SIGTERM arrived.\n"
        assert stopped.stderr.endswith(ended if code == 75 else "")
        assert "began" not in stopped.stderr
        assert "Resume with" not in stopped.stderr


def test_signal_in_the_last_step_does_not_say_how_to_resume(recipe, folder):
    place = "surestep.trainer.fit._finish"
    stopped = run_forked(folder, "train", recipe(RECIPE), "--run", "r", first=send(place, 15))
    assert stopped.returncode == 75
    assert "r was finished when SIGTERM arrived." in stopped.stderr
    assert "Resume with" not in stopped.stderr


@pytest.mark.parametrize("place", [*EARLY[1::2], OPENED[0], *LATE, "surestep.trainer.fit._train"])
def test_two_ctrl_c_print_no_traceback(recipe, folder, place):
    words = ("train", recipe(RECIPE), "--run", "r")
    stopped = run_forked(folder, *words, first=send(place, signal.SIGINT, signal.SIGINT))
    assert (stopped.returncode, stopped.stdout) == (130, "")
    assert "Traceback" not in stopped.stderr
    finish(folder, *words)


@pytest.mark.parametrize("number", [*NUMBERS, signal.SIGINT])
def test_signal_that_a_recipe_catches_still_stops_the_command(recipe, folder, number):
    text = RECIPE.replace(
        "    acts = {",
        f"""    import signal
    try:
        signal.raise_signal({int(number)})
    except BaseException:
        pass
    acts = {{""",
    )
    stopped = run_forked(folder, "train", recipe(text), "--run", "r")
    assert stopped.returncode == (130 if number == signal.SIGINT else 75)
    assert not (folder / "r").exists()


def test_signal_before_a_resume_leaves_the_run_as_it_was(recipe, folder):
    run_forked(
        folder, "train", recipe(RECIPE), "--run", "r", first=send("surestep.trainer.fit._train", 15)
    )
    assert Run(folder / "r").last.step == 0
    for place in ("surestep.cli.resume.load_run_recipe", OPENED[0]):
        stopped = run_forked(folder, "resume", "r", first=send(place, 15))
        assert (stopped.returncode, stopped.stderr.count("Stopped by SIGTERM before")) == (75, 1)
        status = Run(folder / "r").status
        assert (status["status"], status["reason"], status["resumable"]) == (
            "stopped",
            "SIGTERM",
            True,
        )
    finish(folder, "resume", "r")


# Sends itself a signal while a command imports a module.
IN_IMPORT = """
import os, signal, sys

def hook(event, args, seen=[]):
    if event == "import" and args[0].startswith({modules!r}) and not seen:
        seen.append(args)
        for _ in range(2):
            os.kill(os.getpid(), {number})

signal.signal(signal.SIGINT, {before})
import surestep.base.noted_signals
sys.addaudithook(hook)
sys.argv = ["surestep", *sys.argv[1:]]
from surestep.__main__ import main
code = main()
sys.exit(code if {whole!r} <= set(sys.modules) else "an import was interrupted")
"""
BEGAN = "Stopped by {} before training began. Run the same command again.\n"


def interrupt_import(number, modules, *words, before="signal.default_int_handler", whole=()):
    """Run a command that gets a signal when it imports the first of these modules.

    It fails if it has not imported the modules of `whole` by its end.
    """
    script = IN_IMPORT.format(number=int(number), modules=modules, before=before, whole=set(whole))
    return subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment(),
    )


# What the command imports after the module that notes signals.
FIRST = ("surestep.base.", "surestep.cli", "surestep.engine", "dataclasses")


@pytest.mark.parametrize("number", [signal.SIGINT, *NUMBERS])
def test_signal_in_the_first_lines_of_a_command_is_not_lost(folder, number):
    for command in ("train", "resume", "search")[: 3 if number == signal.SIGTERM else 1]:
        stopped = interrupt_import(number, FIRST, command, "mine.py")
        assert (stopped.returncode, stopped.stdout) == (130 if number == 2 else 75, "")
        assert stopped.stderr == ("" if number == 2 else BEGAN.format(number.name))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15)])
def test_signal_in_the_first_lines_of_other_commands_ends_them(folder, number, code):
    stopped = interrupt_import(number, FIRST, "runs", "--help")
    assert (stopped.returncode, stopped.stdout, stopped.stderr) == (code, "", "")


def test_ctrl_c_that_a_shell_lets_background_processes_ignore_stops_a_command(recipe, folder):
    for modules in (FIRST, "surestep.cli.options"):  # noted, and acted on
        stopped = interrupt_import(
            signal.SIGINT, modules, "train", recipe(RECIPE), before="signal.SIG_IGN"
        )
        assert (stopped.returncode, stopped.stdout, stopped.stderr) == (130, "", "")
    ran = interrupt_import(signal.SIGINT, FIRST, "--version", before="signal.SIG_IGN")
    assert (ran.returncode, ran.stderr) == (0, "")


# numpy is imported by torch's C++ code, which loses the error of Ctrl-C.
@pytest.mark.slow("imports torch in processes of its own")
@pytest.mark.parametrize("module", ["numpy", "torch.nn"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_while_torch_is_imported_is_not_lost(recipe, folder, number, module):
    words, whole = ("train", recipe(RECIPE), "--run", "r"), ("torch", "numpy")
    stopped = interrupt_import(number, module, *words, whole=whole)
    assert (stopped.returncode, stopped.stdout) == (130 if number == 2 else 75, "")
    assert stopped.stderr == ("" if number == 2 else BEGAN.format("SIGTERM"))
    assert not os.path.exists("r")


SEARCH = (  # where a search is before its first trial, in order
    "surestep.cli.search.read_command_line",
    "surestep.tuning.search.open_study",
    "surestep.tuning.study.SearchStudy.claim_trial",
)


@pytest.mark.parametrize(
    ("place", "number"), [*product(SEARCH[:2], [*NUMBERS, signal.SIGINT]), (SEARCH[2], 15)]
)
def test_signal_before_the_first_trial_stops_a_search(recipe, folder, place, number):
    (folder / "space.toml").write_text('"optim.lr" = "log(1e-3, 1e-1)"\n')
    words = ("search", recipe(RECIPE), "--space", "space.toml", "--trials", "1", "--study", "s")
    stopped = run_forked(folder, *words, first=send(place, number))
    assert stopped.returncode == (130 if number == signal.SIGINT else 75)
    assert "Traceback" not in stopped.stderr
    assert (folder / "s").exists() == (place == SEARCH[2])
