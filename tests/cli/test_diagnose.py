"""`surestep diagnose`."""

import json
import math
import shutil

import numpy as np
import pytest

from surestep.doctor.curves.causes import CAUSES
from surestep.doctor.curves.state import TITLES
from surestep.record.lock import RunLock
from tests.cli.conftest import BAD, RECIPE


@pytest.fixture
def trained(folder, recipe, surestep, once):
    """A finished run of the recipe, whose events a test may write again."""

    def train():
        assert surestep("train", recipe(), "--run", "runs/good").code == 0

    once(train)
    return folder / "runs" / "good"


STEPS = {
    **{"event": "steps", "time": 0.0, "epoch": 0, "grad_norm": [], "lr": [], "items": 1},
    **{"samples": 1, "seconds": 1.0, "data_wait_s": 0.0},
}


def write_events(run, losses, *, before=(), first=1, after=()):
    """Replace the events of a run by steps with these losses, in log points of 50."""
    events = [{"event": "format", "time": 0.0, "version": 2}, *before]
    for at in range(0, len(losses), 50):
        values = [loss if math.isfinite(loss) else "nan" for loss in losses[at : at + 50]]
        events.append({**STEPS, "first": first + at, "loss": values, "lr": [1e-3] * len(values)})
    lines = [json.dumps(event) for event in (*events, *after)]
    (run / "events.jsonl").write_text("\n".join(lines) + "\n")


def evaluation(step, loss):
    return {
        "event": "evaluation",
        "time": 0.0,
        "step": step,
        "metrics": {"val/loss": loss},
        "measured": "weights",
    }


def read(surestep, *words):
    answer = surestep("diagnose", *words, "--json")
    assert answer.code == 0, answer.err
    return json.loads(answer.out)


def names(found):
    return [state["name"] for state in found["curve"]]


def test_short_run_is_not_named(trained, surestep):
    answer = surestep("diagnose", "runs/good")
    assert answer.code == 0
    assert answer.out.splitlines()[0] == "runs/good: finished, step 6 of 6"
    assert "not clear yet" in answer.out
    assert "causes" not in answer.out


def test_state_has_its_causes_with_commands_for_the_recipe(trained, surestep):
    write_events(trained, [1.0986] * 300)
    answer = surestep("diagnose", "runs/good")
    lines = [line.strip() for line in answer.out.splitlines()]
    assert "stuck at log(classes)" in lines
    assert "surestep train mine.py --overfit 32" in answer.out.replace(f"{trained.parents[1]}/", "")
    found = read(surestep, "runs/good")
    assert (found["version"], found["run"], found["state"]) == (1, "runs/good", "finished")
    assert (found["step"], found["total_steps"]) == (300, 6)
    state = found["curve"][0]
    assert (state["name"], state["is_healthy"]) == ("stuck", False)
    assert state["evidence"]["classes"] == 3
    assert [cause["text"] for cause in state["causes"]] == [c.text for c in CAUSES["stuck"]]
    for number, cause in enumerate(state["causes"], 1):
        assert f"{number}. {cause['text'].split('.')[0].split(',')[0][:60]}" in answer.out


def test_newest_run_is_the_default(trained, surestep, recipe):
    write_events(trained, [1.0986] * 300)
    assert surestep("train", recipe(), "--run", "runs/deep/newer").code == 0
    assert read(surestep)["run"] == "runs/deep/newer"


def test_steps_that_were_repeated_after_a_resume_count_once(trained, surestep):
    falling = list(np.exp(-np.arange(200) / 60))
    risen = [*falling[:100], *[5.0] * 100]
    write_events(trained, risen, after=[evaluation(200, 9.0)])
    assert names(read(surestep, "runs/good")) == ["diverging"]
    lines = (trained / "events.jsonl").read_text()
    write_events(trained, falling[100:], first=101, before=[{"event": "resume", "step": 100}])
    rest = (trained / "events.jsonl").read_text().split("\n", 1)[1]
    (trained / "events.jsonl").write_text(lines + rest)
    assert names(read(surestep, "runs/good")) == ["falling"]


@pytest.mark.parametrize("kind", ["restart", "rollback"])
def test_steps_before_a_restart_or_a_rollback_are_left_out(trained, surestep, kind):
    back = {"event": kind, "step": 0}
    write_events(trained, [7.0] * 300, after=[evaluation(300, 9.0), back])
    assert names(read(surestep, "runs/good")) == ["unclear"]


def test_overfitting_is_read_from_the_evaluations(trained, surestep):
    losses = list(np.exp(-np.arange(400) / 60))
    val = [1.0, 0.6, *np.linspace(0.5, 1.5, 18)]
    after = [evaluation(20 * (i + 1), loss) for i, loss in enumerate(val)]
    write_events(trained, losses, after=after)
    found = read(surestep, "runs/good")
    assert names(found) == ["overfitting", "falling"]
    assert found["curve"][0]["since_step"] == 60
    test = evaluation(400, 0.0) | {"which": "best"}
    del test["measured"]
    write_events(trained, losses, after=[*after, test])
    assert read(surestep, "runs/good")["curve"] == found["curve"]


def test_running_and_killed_runs_are_named(trained, surestep):
    status = json.loads((trained / "status.json").read_text())
    running = {"status": "running", "monitor": status["monitor"]}
    (trained / "status.json").write_text(json.dumps(running))
    write_events(trained, list(np.exp(-np.arange(200) / 60)))
    with (trained / "events.jsonl").open("a") as file:
        file.write('{"event": "steps", "first": 201, "lo')  # is being written
    found = read(surestep, "runs/good")
    assert (found["state"], found["step"], names(found)) == ("killed", 200, ["falling"])
    lock = RunLock(trained)
    assert read(surestep, "runs/good")["state"] == "running"
    lock.release()


def test_run_without_steps_is_not_an_error(trained, surestep):
    write_events(trained, [])
    found = read(surestep, "runs/good")
    assert names(found) == ["unclear"]
    assert "The curve has 0 finite losses" in found["curve"][0]["message"]


def test_incident_is_listed_with_the_command_that_replays_it(folder, recipe, surestep):
    name = recipe(BAD, "spoiled_recipe.py")
    words = ("train", name, "--run", "r", "--data.shuffle", "False")
    assert surestep(*words).code == 1
    found = read(surestep, "r")
    assert (found["state"], names(found)) == ("failed", ["nonfinite"])
    (incident,) = found["incidents"]
    assert incident["step"] == found["curve"][0]["since_step"] == 3
    command = "surestep replay r/incidents/step-00000003"
    assert incident["command"] == found["curve"][0]["causes"][0]["command"] == command
    assert command in surestep("diagnose", "r").out
    assert surestep(*command.split()[1:]).code == 0


OUT_OF_MEMORY = (
    RECIPE.replace("surestep.Task(", "surestep.Task(batch_transform=grow, ", 1)
    + """

calls = []

def grow(x, y):
    calls.append(x)
    torch.empty(2**55 if len(calls) == 4 else 1)
    return x, y
"""
)


def test_report_of_memory_that_ran_out_is_shown(folder, recipe, surestep):
    done = surestep("train", recipe(OUT_OF_MEMORY), "--run", "r")
    assert done.code == 1
    (report,) = read(surestep, "r")["memory"]
    step, path = report["step"], report["path"]
    assert path == f"r/out-of-memory-step-{step}.json"
    for line in report["text"].splitlines():
        assert line in done.err
        assert line in surestep("diagnose", "r").out
    (folder / path).write_text('{"format": 1}')
    assert read(surestep, "r")["memory"] == []


def test_findings_of_the_run_are_listed(folder, recipe, surestep):
    text = RECIPE.replace("val=(x[24:32], y[24:32])", "val=(x[:24], y[:24])")
    assert surestep("train", recipe(text), "--run", "r").code == 0
    assert [finding["rule"] for finding in read(surestep, "r")["findings"]] == ["SS605"]
    assert "SS605 leakage-by-duplicates (warning):" in surestep("diagnose", "r").out


def test_manual_steps_have_no_curve(folder, surestep):
    assert surestep("train", "gan", "--run", "r", "--max-steps", 3).code == 0
    found = read(surestep, "r")
    assert found["curve"] == []
    assert "Its steps are manual" in surestep("diagnose", "r").out


def test_run_in_a_mirror_is_named(folder, recipe, surestep):
    address = f"file://{folder}/mirror"
    assert surestep("train", recipe(), "--run", address).code == 0
    (local,) = (folder / "runs").iterdir()
    here = read(surestep, f"runs/{local.name}")
    shutil.rmtree("runs")
    there = read(surestep, address)
    assert there["curve"] == here["curve"]
    assert (there["run"], there["state"], there["step"]) == (address, "finished", 6)


def test_what_is_not_a_run_is_named(folder, surestep):
    (folder / "notes").mkdir()
    for name, message in (
        ("gone", "There is no run folder gone."),
        ("notes", "notes is not a run folder"),
        (f"file://{folder}/notes", "There is no run at"),
    ):
        answer = surestep("diagnose", name)
        assert (answer.code, answer.out) == (1, "")
        assert message in answer.err
    answer = surestep("diagnose")
    assert answer.code == 1
    assert answer.err.startswith("RunError: There is no run in runs. Pass the folder of a run.")


@pytest.mark.parametrize(
    "steps",
    [
        {"first": 1, "loss": ["x"], "lr": [1]},
        {"first": 1, "loss": [[1]], "lr": [1]},
        {"first": 1, "loss": 3},
        {"first": "one", "loss": []},
        {"loss": [1.0]},
    ],
)
def test_steps_that_cannot_be_read_are_an_error(trained, surestep, steps):
    write_events(trained, [], after=[{**STEPS, **steps}])
    answer = surestep("diagnose", "runs/good")
    assert answer.code == 1
    assert "events.jsonl, line 2 is not an event" in answer.err


def test_commands_of_the_causes_exist(folder, surestep):
    """Options are accepted by `surestep plan`, and rules are known to `surestep explain`."""
    assert set(CAUSES) == set(TITLES)
    values = {"lower": "0.001", "higher": "0.1", "batch": "32", "steps": "100"}
    commands = {cause.command for causes in CAUSES.values() for cause in causes}
    for command in filter(None, commands):
        head, *options = (
            command.format(train="plan", check="check", incident="i", **values)
            .removeprefix("surestep ")
            .split()
        )
        if head == "plan" and options[0] != "--overfit":
            assert surestep("plan", "spiral", *options, "--json").code == 0, command
        elif head == "explain":
            assert surestep("explain", *options).code == 0, command
        elif head == "check":
            (folder / "empty.py").write_text("")
            assert surestep("check", "empty.py", *options).code == 0, command
