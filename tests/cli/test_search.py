import json
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from surestep.recipes.find import sha256
from surestep.record.run import Run
from surestep.tuning import process
from surestep.tuning.evaluations import read_measurements
from surestep.tuning.settings import record_settings
from tests.cli.conftest import RECIPE
from tests.cli.searches import TRIALS, Shell, params_and_values, states, trials
from tests.cli.searches import search as search
from tests.cli.searches import space as space
from tests.tuning.studies_on_disk import make_settings, open_by_optuna

LAUNCHES = pytest.mark.slow("starts processes")


@LAUNCHES
def test_search_finds_the_best_trial_and_the_options_that_train_it(search, surestep):
    command = "echo $SURESTEP_STATUS $SURESTEP_BEST >> told"
    answer, found = search("--trials", 3, "--notify", command)
    assert answer.code == 0, answer.err
    assert states(found) == ["finished"] * 3
    best = min(found, key=lambda trial: trial["values"]["val/loss"])
    assert f"Best: trial {best['number']}, val/loss " in answer.out
    assert Path("told").read_text() == f"finished {best['values']['val/loss']}\n"
    assert "best of 3 noisy values" in answer.out
    assert "Test split, measured once: test/loss" in answer.out
    assert surestep("train", TRIALS, "--config", "study/best.toml", "--run", "again").code == 0
    trained = Run(Path("again"))
    assert trained.best.metrics["val/loss"] == best["values"]["val/loss"]
    listed = surestep("runs", "study", "--json")
    assert {row["state"] for row in json.loads(listed.out)} == {"finished"}
    assert surestep("search", "show", "study").out.count("finished") == 3


@LAUNCHES
def test_test_split_is_measured_once(search):
    search("--trials", 2)
    recorded = Path("study/result.json").read_text()
    (winner,) = json.loads(recorded)["test"].values()
    assert winner["metrics"].keys() == {"test/loss", "test/accuracy"}
    for checkpoint in Path("study/trials").glob("*/checkpoints/step-*"):
        checkpoint.rename(checkpoint.with_name(f"gone-{checkpoint.name}"))
    answer, _ = search("--trials", 2)
    assert answer.code == 0, answer.err
    assert Path("study/result.json").read_text() == recorded
    assert "Test split, measured once: test/loss" in answer.out


@LAUNCHES
def test_same_seed_gives_the_same_trials_bitwise(search):
    search("--trials", 2, "--workers", 2, study="first")
    search("--trials", 2, study="second")
    search("--trials", 2, "--seed", 1, study="third")
    assert params_and_values(trials("first")) == params_and_values(trials("second"))
    assert params_and_values(trials("first")) != params_and_values(trials("third"))


@LAUNCHES
def test_trials_that_fail_have_their_reasons_and_do_not_end_the_search(search):
    answer, found = search(
        *("--trials", 4, "--sampler", "grid", "--workers", 2),
        text='task.ends = ["well", "raises", "nan", "no_memory"]',
    )
    assert answer.code == 1
    assert "3 of 4 trials failed, so the exit code is 1. Trial " in answer.err
    reasons = {trial["params"]["task.ends"]: trial["reason"] for trial in found}
    assert reasons.pop("well") == ""
    for name, kind in {"raises": "RecipeError", "nan": "NonFinite", "no_memory": "OutOfM"}.items():
        assert reasons[name].startswith(kind), reasons
    assert sorted(states(found)) == ["failed"] * 3 + ["finished"]


@LAUNCHES
def test_search_ends_with_the_grid(search):
    grid = {"text": "task.hidden = [4, 6]"}
    answer, found = search("--sampler", "grid", **grid)
    assert answer.code == 0, answer.err
    assert sorted(trial["params"]["task.hidden"] for trial in found) == [4, 6]
    assert "The grid has" not in answer.err
    answer, found = search("--sampler", "grid", "--trials", 5, **grid)
    assert answer.code == 0, answer.err
    assert "The grid has 2 points; 2 trials." in answer.err
    assert "2 of 2 trials are done" in answer.err
    assert len(found) == 2


@LAUNCHES
def test_search_without_a_finished_trial_is_a_failure(search):
    answer, found = search(
        "--trials", 2, text='task.wide = [true, false]\ntask.ends = ["raises", "nan"]'
    )
    assert answer.code == 1
    assert states(found) == ["failed"] * 2
    assert not Path("study/best.toml").exists()
    assert "2 of 2 trials failed, so the exit code is 1. Trial 0: " in answer.err


@LAUNCHES
def test_pruned_trial_ends_at_its_evaluation_and_is_not_the_best(search):
    answer, found = search(
        *("--trials", 4, "--pruner", "percentile:1,startup=1,warmup=1"),
        *("--metric", "val/accuracy", "--mode", "max"),
    )
    assert answer.code == 0, answer.err
    pruned = [trial for trial in found if trial["state"] == "pruned"]
    assert pruned
    for trial in pruned:
        status = Run(Path("study/trials", trial["run"])).status
        assert status["step"] == 3 * trial["evaluations"] < 12
        assert trial["reason"] == f"pruned by the search after step {status['step']}"


WAITS = """
import time
from pathlib import Path


class Waits(surestep.Callback):
    def on_step(self, state, result):
        while result.step == 20 and not Path("interrupted").exists():
            time.sleep(0.01)


callbacks = [Waits()]
"""


@LAUNCHES
def test_ctrl_c_saves_the_trial_and_the_same_command_resumes_it(search, space, folder):
    recipe = folder / "waits.py"
    recipe.write_text(Path(TRIALS).read_text() + WAITS)
    fixed = ("--max-steps", 450, "--validation.every", "150 steps")
    words = (recipe, *space(), "--trials", 2, "--threads", 1, *fixed)
    often = ("--study", "study", "--checkpoint.every", "15 steps")
    shell = Shell(*words, *often)
    shell.wait_for("study/trials/0000/checkpoints/step-*")
    shell.interrupt()
    shell.wait_for_text("study/trials/0000.log", "stopping after this step")
    Path("interrupted").touch()
    code, out, _ = shell.finish()
    assert code == 130
    assert "waiting" in out
    assert "stopped by Ctrl-C" in out
    assert "Resume with: surestep search" in out
    assert Run(Path("study/trials/0000")).status["status"] == "stopped"
    again = Shell(*words, *often).finish()
    assert again[0] == 0, again
    events = [event["event"] for event in Run(Path("study/trials/0000")).events()]
    assert "resume" in events
    seldom = ("--study", "whole", "--checkpoint.every", "150 steps")
    assert Shell(*words, *seldom).finish()[0] == 0
    assert params_and_values(trials("study")) == params_and_values(trials("whole"))


@LAUNCHES
def test_timeout_ends_the_search_with_its_table(search, monkeypatch):
    begun = Path("study/trials/0000/config.json")
    time_is_over = SimpleNamespace(monotonic=lambda: 100.0 * begun.exists())
    monkeypatch.setattr(process, "time", time_is_over)
    answer, found = search("--trials", 5, "--timeout", "90 s", "--max-steps", 10_000_000)
    assert answer.code == 0, answer.err
    assert "Stopped by timeout. Resume with: surestep search" in answer.out
    assert states(found)[0] == "waiting"


@LAUNCHES
def test_command_in_a_second_shell_is_one_more_worker(space):
    words = (TRIALS, *space(), "--trials", 4, "--study", "study", "--threads", 1)
    first = Shell(*words)
    first.wait_for("study/study.log")
    second = Shell(*words)
    answers = [first.finish(), second.finish()]
    assert [code for code, _, _ in answers] == [0, 0], answers
    assert states(trials()) == ["finished"] * 4
    ended = [re.findall(r"Trial (\d+) finished", err) for _, _, err in answers]
    assert sorted(ended[0] + ended[1]) == ["0", "1", "2", "3"]
    assert "joining" in answers[1][2]


@LAUNCHES
def test_number_of_trials_may_grow(search):
    search("--trials", 1)
    answer, found = search("--trials", 2)
    assert answer.code == 0, answer.err
    assert states(found) == ["finished"] * 2
    answer = search("--trials", 1)[0]
    assert answer.code == 2
    assert "Set --trials 2" in answer.err


@LAUNCHES
def test_first_trial_is_what_train_trains_and_the_next_ones_are_enqueued(search, surestep, folder):
    (folder / "points.toml").write_text(
        "[[points]]\noptim.lr = 0.01\n[points.task]\nhidden = 4\n[[points]]\ntask.hidden = 6\n"
    )
    answer, found = search("--trials", 3, "--enqueue", "points.toml")
    assert answer.code == 0, answer.err
    assert "3 trials of recipe, 3 enqueued points first" in answer.err
    assert found[0]["params"] == {"optim.lr": 0.05, "task.hidden": 8}
    assert found[1]["params"] == {"optim.lr": 0.01, "task.hidden": 4}
    assert found[2]["params"]["task.hidden"] == 6
    assert surestep("train", TRIALS, "--run", "own").code == 0
    best = Run(Path("own")).best.metrics["val/loss"]
    assert found[0]["values"] == {"val/loss": best}
    again = surestep("search", "--resume", "study", "--enqueue", "points.toml")
    assert again.code == 0, again.err


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.toml", "points = 3", "p.toml has no list of points. Write [[points]] above"),
        ("p.toml", "[[points]]\noptim.lr = 9", "p.toml, point 1: optim.lr=9 is outside of log("),
        ("p.toml", "[[points", "p.toml cannot be read: "),
        ("p.json", '{"optim.lr": 1}', "p.json has no list of points. Write a list of points: [{"),
        ("p.json", '[{"optim.lr": 1}, {', "p.json cannot be read: "),
        ("p.json", '[{"task": {"hidden": 5}}]', "point 1: task.hidden=5 is outside of [4, 6, 8]"),
    ],
)
def test_file_that_has_no_points_of_the_space_is_explained(
    surestep, space, folder, name, text, message
):
    (folder / name).write_text(text)
    answer = surestep("search", TRIALS, *space(), "--trials", 2, "--enqueue", name)
    assert (answer.code, message in answer.err) == (2, True), answer.err
    assert not Path("searches").exists()


@LAUNCHES
def test_search_starts_from_the_trials_of_another_one(search, surestep):
    search("--trials", 2)
    answer, found = search("--trials", 1, "--from", "study", "--max-steps", 6, study="second")
    assert answer.code == 0, answer.err
    assert (
        "2 of 2 trials of study are known; without their curves, since it differs: max_steps."
    ) in answer.err
    assert len(found) == 1
    assert "2 trials of study-" in Path("second/report.html").read_text()
    again = surestep("search", "--resume", "second", "--from", "study")
    assert again.code == 0, again.err


@LAUNCHES
def test_study_is_resumed_without_its_recipe_and_options(search, surestep, folder):
    fixed = ("--max-steps", 6, "--optim.betas", 0.8, 0.9, "--task.wide", "true")
    answer, found = search("--trials", 1, "--metric", "val/accuracy", "--seed", 3, *fixed)
    assert answer.code == 0, answer.err
    answer = surestep("search", "--resume", "study", "--trials", 2)
    assert answer.code == 0, answer.err
    assert f"Next: surestep train {TRIALS} --config study/best.toml" in answer.out
    configs = [Run(Path(f"study/trials/{name}")).config for name in ("0000", "0001")]
    assert trials()[0] == found[0]
    assert [config["task"]["wide"] for config in configs] == [True, True]
    for option in ("max_steps", "optim.betas", "validation.metric", "seed"):
        assert len({str(config["config"][option]) for config in configs}) == 1
    answer = surestep("search", f"--resume={folder / 'study'}", "--max-steps", 9)
    assert answer.code == 2
    assert "fixed.max_steps is 6" in answer.err
    answer = surestep("search", TRIALS, "--resume", "study")  # as for a recipe that was moved
    assert answer.code == 0, answer.err


def test_recorded_mirror_that_was_not_typed_is_not_used(surestep, folder):
    fixed = {"checkpoint.mirror": str(folder / "elsewhere")}
    recipe = {"name": "recipe", "path": TRIALS, "sha256": sha256(Path(TRIALS))}
    settings = replace(make_settings(recipe=recipe, trials=1), fixed=fixed)
    record_settings(folder / "study", settings)
    answer = surestep("search", "--resume", "study")
    assert answer.code == 2
    assert "not typed on this machine, and the study may come from anyone. To copy" in answer.err
    assert f"pass --checkpoint.mirror {folder / 'elsewhere'}" in answer.err


@pytest.mark.slow("two searches, each with a process for a trial")
def test_study_of_a_module_of_a_package_is_resumed_in_any_folder(
    search, surestep, folder, monkeypatch
):
    inner = folder / "my/pkg"
    inner.mkdir(parents=True)
    for name in ("my/__init__.py", "my/pkg/__init__.py"):
        (folder / name).touch()
    (inner / "queue.py").write_text(Path(TRIALS).read_text())
    answer, found = search("--trials", 1, recipe="my.pkg.queue")
    assert (answer.code, states(found)) == (0, ["finished"]), answer.err
    assert f"# surestep train {folder}/my.pkg.queue " in (folder / "study/best.toml").read_text()
    monkeypatch.chdir(inner)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(folder)])
    answer = surestep("search", "--resume", folder / "study", "--trials", 2)
    assert (answer.code, states(trials(folder / "study"))) == (0, ["finished"] * 2), answer.err


def test_study_that_cannot_be_resumed_is_explained(surestep, folder):
    settings = make_settings(recipe={"name": "own", "path": str(folder / "own.py"), "sha256": "0"})
    record_settings(folder / "study", settings)
    for words, text in [
        (["--resume"], "--resume has no study. Write --resume searches/"),
        (["--resume", "--trials", 3], "--resume has no study"),
        (["--resume", "study", "--study", "study"], "Leave --study out"),
        (["--resume", "none"], "There is no study in none"),
        (["--resume", "study"], "own.py. Restore the file, or type its new path: surestep search"),
    ]:
        answer = surestep("search", *words)
        assert answer.code in (1, 2)
        assert text in answer.err
    inside = folder / "study" / "own.py"
    inside.write_text(RECIPE)
    record_settings(folder / "other", replace(settings, recipe={"name": "", "path": str(inside)}))
    answer = surestep("search", "--resume", "other")
    assert f"If you trust it, type it: surestep search {inside} --resume other" in answer.err


@LAUNCHES
def test_confirmed_winner_has_the_best_mean(search, surestep):
    answer, _ = search(
        *("--trials", 3, "--confirm", 2, "--confirm-seeds", 2, "--workers", 2),
        *("--keep-checkpoints", "best"),
    )
    assert answer.code == 0, answer.err
    winner = json.loads(Path("study/result.json").read_text())["winner"]
    confirmed = winner["confirmed"]
    assert len(confirmed) == 2
    assert confirmed[0]["mean"] <= confirmed[1]["mean"]
    for entry in confirmed:
        runs = [Run(Path(f"study/confirm/{entry['number']:04d}-{seed}")) for seed in (1, 2)]
        assert [run.config["config"]["seed"] for run in runs] == [1, 2]
        measured = [read_measurements(run).evaluations.values() for run in runs]
        lowest = [min(metrics["val/loss"] for metrics in found) for found in measured]
        assert lowest == entry["values"]
    assert "Trained again with 2 other seeds: val/loss" in answer.out
    kept = {path.parts[2] for path in Path("study/trials").glob("*/checkpoints/step-*")}
    assert kept == {f"{winner['number']:04d}"}
    assert not [*Path("study/confirm").glob("*/checkpoints/step-*")]
    assert surestep("search", "--resume", "study").code == 0
    assert json.loads(Path("study/result.json").read_text())["winner"] == winner


@LAUNCHES
def test_point_that_was_trained_is_not_trained_again(search):
    answer, found = search("--trials", 4, text="task.hidden = [4, 6]")
    assert answer.code == 0, answer.err
    assert states(found) == ["finished"] * 4
    trained = {str(trial["params"]): trial for trial in found if trial["same_as"] is None}
    again = [trial for trial in found if trial["same_as"] is not None]
    assert len(trained) + len(again) == 4 > len(trained)
    for trial in again:
        assert trial["values"] == trained[str(trial["params"])]["values"]
        assert f"same values as trial {trial['same_as']}" in answer.err
        assert f"same values as trial {trial['same_as']}" in answer.out
    assert len([*Path("study/trials").glob("*/")]) == len(trained)


@LAUNCHES
def test_several_objectives_have_a_front_and_no_best_trial(search):
    answer, found = search(
        *("--trials", 3, "--objective", "val/loss:min", "parameters", "--json"),
    )
    assert answer.code == 0, answer.err
    printed = json.loads(answer.out)
    assert printed["winner"] is None
    assert printed["best"]
    assert {tuple(trial["values"]) for trial in found} == {("val/loss", "parameters")}
    assert not Path("study/best.toml").exists()
    answer, _ = search("--trials", 3, "--objective", "val/loss:min", "--objective", "parameters")
    front = ", ".join(map(str, printed["best"]))
    assert re.search(rf"Pareto front \(\*\): trials? {front}\. ", answer.out)
    assert f"To train trial {printed['best'][0]}: surestep train" in answer.out


@LAUNCHES
def test_best_trial_satisfies_the_constraint_and_optuna_alone_agrees(search):
    objectives = ("--objective", "val/loss", "parameters")
    where = ("--where", "parameters < 60", "accuracy >= 0.1")
    answer, found = search("--trials", 5, *objectives, *where)
    assert answer.code == 0, answer.err
    assert "where parameters < 60 and val/accuracy >= 0.1" in answer.err
    for trial in found:
        small = trial["measured"]["parameters"] < 60
        assert trial["is_feasible"] == (small and trial["measured"]["val/accuracy"] >= 0.1)
        assert ("violates parameters < 60" in trial["reason"]) == (not small)
    best = open_by_optuna(Path("study")).best_trials
    numbers = [trial.user_attrs["number"] for trial in best]
    assert json.loads(Path("study/report.json").read_text())["best"] == numbers
    assert re.search(rf"Pareto front \(\*\): trials? {', '.join(map(str, numbers))}\. ", answer.out)
    assert "peak_memory" not in answer.out
    assert "val/accuracy" in answer.out


@LAUNCHES
def test_search_without_a_trial_that_satisfies_the_constraint_is_a_failure(search):
    answer, found = search("--trials", 1, "--where", "memory < 1MB")
    assert (answer.code, states(found)) == (1, ["finished"])
    assert "No trial satisfies peak_memory < 1MB, so there is no best one." in answer.err
    assert "violates peak_memory < 1MB" in answer.out
    assert not Path("study/best.toml").exists()


@LAUNCHES
def test_trials_of_two_processes_each_finish(search):
    answer, found = search("--trials", 1, "--nproc", 2, "--parallel.strategy", "ddp")
    assert answer.code == 0, answer.err
    assert states(found) == ["finished"]
    assert Run(Path("study/trials/0000")).config["decided"]["parallel.ranks"] == 2


@LAUNCHES
def test_signal_while_the_report_is_written_stops_nothing(search, monkeypatch):
    from surestep.tuning import search as module

    written = module.write_results

    def interrupt(*args):
        signal.raise_signal(signal.SIGTERM)
        return written(*args)

    monkeypatch.setattr(module, "write_results", interrupt)
    answer, found = search("--trials", 1)
    assert answer.code == 0, answer.err
    assert states(found) == ["finished"]
    assert "Stopped" not in answer.out
    again = search("--trials", 1)[0]
    assert "1 of 1 trial is done; nothing is left to train" in again.err


def test_objective_may_be_repeated(space):
    from surestep.cli.options import split_words
    from surestep.cli.search import Options

    words = ["--objective", "loss:min", "seconds", "--trials", "2", "--objective=parameters"]
    own = split_words(words, Options, ()).own
    assert own == ["--trials", "2", "--objective", "loss:min", "seconds", "parameters"]


def test_missing_recipe_is_reported(surestep, space):
    answer = surestep("search", "nothing.py", *space(), "--trials", 2)
    assert (answer.code, "nothing.py does not exist" in answer.err) == (2, True), answer.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--trials", 0], "--trials 0 must be at least 1 (trials= in Python)"),
        (["--trials", 2, "--metric", "accuracyy"], "Did you mean 'accuracy'?"),
        (["--trials", "three"], "--trials three is not a whole number. Write --trials 50."),
        (["--trials", 2, "--nproc", "two"], "--nproc two is not a whole number. Write --nproc 2."),
        (["--trials", "2.5"], "--trials 2.5 is not a whole number"),
        (["--trials", 2, "--grace", "soon"], "--grace soon is not a number. Write --grace 60.0."),
        (["--trials", 2, "--grace", 0], "--grace 0 must be at least 1"),
        (["--trials", 2, "--mode", "up"], "no choice 'up'. Use --mode min or --mode max."),
        (["--trials", 2, "--metric", "accuracyy"], "The objective 'accuracyy' is not measured"),
        (["--trials", 2, "--objective", "secs"], "seconds, parameters, peak_memory"),
        (["--trials", 2, "--where", "memory 8GB"], "--where 'memory 8GB' is not a comparison"),
        (["--trials", 2, "--where", "los < 3"], "The constraint 'los' is not measured"),
        (["--trials", 2, "--storage", "sqlite://bad"], "Write sqlite:///bad, with three slashes"),
        (["--trials", 2, "--study", "space.toml"], "space.toml is a file, and --study needs"),
        (["--trials", 2, "--run", "x"], "use --study FOLDER"),
        (["--trials", 2, "--timeout", "2h30"], "one amount and one unit, such as 90m"),
        (["--trials", 2, "--objective", "val/loss:best"], "Use min or max"),
        (["--trials", 2, "--objective", "val/loss", "loss"], "have one twice"),
        (["--trials", 2, "--mode", "max"], "--metric val/accuracy"),
        (["--trials", 2, "--metric", "loss", "--objective", "seconds"], "--objective val/acc"),
        (["--trials", 2, "--max-time", "5 minutes"], "max_time pauses a run"),
        (["--trials", 2, "--timeout", "soon"], "timeout='soon'"),
        (["--trials", 2, "--optim.lr", "0.1"], "optim.lr"),
        (["--trials", 2, "--sampler", "tpee"], "There is no sampler 'tpee'"),
        (["--trials", 2, "--space", "none.toml"], "--space none.toml cannot be read"),
        (["--trials", 2, "--study", "space.toml/study"], "space.toml/study"),
        (["--trials", 2, "--confirm", -1], "--confirm -1 must be at least 0"),
        ([], "Pass --trials 50"),
    ],
)
def test_wrong_option_is_reported_before_the_first_trial(surestep, space, folder, words, message):
    answer = surestep("search", TRIALS, *space(), *words)
    assert answer.code in (1, 2)
    assert message in answer.err
    assert not Path("searches").exists()


def test_study_in_place_of_the_recipe_is_reported(surestep, folder):
    (folder / "mine").mkdir()
    (folder / "mine" / "study.json").touch()
    answer = surestep("search", "mine", "--trials", 2)
    assert (answer.code, "Type surestep search show mine" in answer.err) == (2, True)


def test_show_after_the_recipe_is_reported(surestep):
    answer = surestep("search", "spiral", "show")
    assert (answer.code, "Type surestep search show STUDY" in answer.err) == (2, True)


def test_built_in_recipe_is_not_to_be_edited(surestep):
    answer = surestep("search", "spiral", "--trials", 2)
    assert "There is no search space. Pass --space FILE (space= in Python). " in answer.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optim.lr = log(1e-4, 1)", 'Write options as: optim.lr = "log(1e-5, 1e-2)"'),
        ('optim.lr = "loguniform(1e-4, 1)"', "no range 'loguniform'. Use log."),
        ('optim.weight_decay = "uniform(-1, 0.5)"', "optim.weight_decay=-1.0 is not allowed"),
    ],
)
def test_wrong_space_has_one_message(surestep, space, text, message):
    answer = surestep("search", TRIALS, *space(text), "--trials", 2)
    assert answer.code == 2
    assert message in answer.err
    assert len(answer.err.strip().splitlines()) == 1


def test_recipe_without_a_space_needs_one(surestep, recipe):
    answer = surestep("search", recipe(), "--trials", 2)
    assert answer.code == 2
    assert "There is no search space. Pass --space FILE" in answer.err


def test_recipe_without_validation_data_needs_another_objective(surestep, recipe, space):
    name = recipe(RECIPE.replace("        val=(x[24:32], y[24:32]),\n", ""))
    answer = surestep("search", name, *space(), "--trials", 2)
    assert answer.code == 2
    assert "has no validation data" in answer.err
    answer = surestep("search", name, *space(), "--trials", 2, "--metric", "val/loss")
    assert "The objective 'val/loss' requires validation data" in answer.err


def test_missing_optuna_is_reported(surestep, space, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    answer = surestep("search", TRIALS, *space(), "--trials", 2)
    assert answer.code == 2
    assert "A search needs Optuna" in answer.err
    assert "pip install optuna" in answer.err
    assert not Path("searches").exists()
    answer = surestep("search", TRIALS, *space(), "--trials", 2, "--study", "study")
    assert answer.code == 2
    assert not Path("study/study.json").exists()  # which a corrected command could differ from


@LAUNCHES
def test_study_of_another_recipe_or_space_is_rejected(search, recipe):
    search("--trials", 1)
    answer = search("--trials", 1, recipe=recipe())[0]
    assert answer.code == 2
    assert "recipe" in answer.err
    answer = search("--trials", 1, text='optim.lr = "log(1e-3, 1)"')[0]
    assert answer.code == 2
    assert "space.optim.lr" in answer.err
    answer = search("--trials", 1, "--batch-size", 4)[0]
    assert answer.code == 2
    assert "batch_size" in answer.err


@LAUNCHES
def test_recipe_has_its_own_space(surestep, recipe):
    name = recipe(RECIPE + 'space = {"optim.lr": [0.01, 0.1], "task.hidden": "int(4, 8)"}\n')
    answer = surestep("search", name, "--trials", 1, "--study", "study", "--threads", 1)
    assert answer.code == 0, answer.err
    assert trials()[0]["params"].keys() == {"optim.lr", "task.hidden"}


def test_show_needs_a_study(surestep):
    answer = surestep("search", "show", "nowhere")
    assert answer.code == 1
    assert "There is no study in nowhere" in answer.err
