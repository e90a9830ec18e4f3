import json
import shlex

import numpy as np
import pytest
from torch import nn

from surestep.base.temp_folders import make_temp_folder
from surestep.record.run import Run
from tests.cli.conftest import HEAD, RECIPE, files

CONTRADICTING = f"""{HEAD}
config = surestep.Config(epochs=1, batch_size=8, max_grad_norm="off")

def task():
    x = torch.ones(8, 4)
    return surestep.Task(
        model=nn.Linear(4, 3), loss=nn.CrossEntropyLoss(), train=(x, torch.arange(8) % 3))
"""
TALKING = (
    RECIPE
    + """
class Talking(surestep.Callback):
    def on_end(self, state):
        print("I am done")

callbacks = [Talking()]
"""
)


def test_results_go_to_stdout_and_messages_to_stderr(surestep, recipe):
    answer = surestep("train", recipe(), "--run", "r")
    assert answer.code == 0
    assert "step 3: val/loss" in answer.err
    assert "step 6/6 epoch 2 loss" in answer.err
    assert "step 3: " not in answer.out
    assert " ended all steps are done " in answer.out


def test_last_table_summarizes_the_run(surestep, recipe, folder):
    answer = surestep("train", recipe(), "--run", "r", "--max-grad-norm", "0.8")
    run = Run(folder / "r")
    clipped = run.status["clipped"]
    assert 0 < clipped < 6
    assert f" clipped steps {clipped} of 6 ({clipped / 6:.0%}) " in answer.out
    assert " skipped steps 0 " in answer.out
    step, metrics = run.best.step, run.best.metrics
    assert f" val/loss (best, step {step}) {metrics['val/loss']:.4g} " in answer.out
    assert f" test/accuracy (best, step {step}) " in answer.out
    assert f"Best checkpoint: r/checkpoints/step-{step:08}\n" in answer.out
    assert answer.out.endswith("\nNext: surestep evaluate r --split test\n")


def test_suggested_next_command_can_be_typed(surestep, recipe):
    answer = surestep("train", recipe(), "--run", "r")
    words = answer.out.splitlines()[-1].removeprefix("Next: surestep ").split()
    assert surestep(*words).code == 0


SPLITS = f"""{HEAD}
config = surestep.Config(max_steps=2, batch_size=8)

def task(val: bool = False, test: bool = False, nan: bool = False):
    x, y = torch.ones(8, 4), torch.arange(8) % 3
    sets = {{name: (x, y) for name, used in (("val", val), ("test", test)) if used}}
    score = lambda outputs, targets: outputs.mean() * (float("nan") if nan else 1)
    return surestep.Task(
        nn.Linear(4, 3), nn.CrossEntropyLoss(), train=(x, y), metrics={{"score": score}}, **sets)
"""
BY_SCORE = ["--validation.metric", "score", "--validation.mode", "max"]


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(
    ("words", "suggested"),
    [
        ([], None),
        (["--task.val", "True"], "surestep evaluate r"),
        (["--task.val", "True", "--validation.every", "off"], "surestep evaluate r"),
        (["--task.test", "True"], "surestep evaluate r --split test"),
        (["--task.val", "True", "--task.test", "True"], "surestep evaluate r --split test"),
        (
            ["--task.val", "True", "--task.nan", "True", *BY_SCORE],
            "surestep evaluate r --which last",
        ),
        (
            ["--task.val", "True", "--task.test", "True", "--task.nan", "True", *BY_SCORE],
            "surestep evaluate r --split test --which last",
        ),
    ],
)
def test_evaluation_is_suggested_only_of_data_that_there_is(
    surestep, recipe, words, suggested, again
):
    answer = surestep("train", recipe(SPLITS), "--run", "r", *words)
    if again:
        answer = surestep("resume", "r")
    assert answer.code == 0
    line = answer.out.splitlines()[-1]
    if suggested is None:
        assert not line.startswith("Next: ")
        return
    assert line == f"Next: {suggested}"
    assert surestep(*suggested.split()[1:]).code == 0
    assert (" test/loss (" in answer.out) == ("--split test" in suggested)


@pytest.mark.parametrize("words", [["--schedule.name", "one_cycle"]])
def test_option_of_the_recipe_that_does_not_go_with_a_typed_one_can_be_typed_off(
    surestep, recipe, words
):
    answer = surestep("train", recipe(), "--run", "r", *words)
    assert answer.code != 0
    remedy = "or remove schedule.warmup: --schedule.warmup off."
    assert remedy in answer.err
    assert surestep("train", recipe(), "--run", "r", *words, "--schedule.warmup", "off").code == 0
    both = surestep("plan", recipe(), *words, "--schedule.warmup", "3 steps")
    assert both.code != 0
    assert remedy not in both.err


def test_long_folder_names_are_shown_in_full(surestep, recipe, folder):
    run = folder / ("long" * 50)
    answer = surestep("train", recipe(), "--run", run)
    assert f"Best checkpoint: {Run(run).best.path}\n" in answer.out


def test_run_gets_a_new_folder_if_none_is_given(surestep, recipe, folder):
    for count in (1, 2):
        assert surestep("train", recipe(), "--max-steps", "2").code == 0
        runs = list((folder / "runs").iterdir())
        assert len(runs) == count
        assert all(path.name.startswith("mine-2") for path in runs)


def test_results_can_be_printed_as_json(surestep, recipe, folder):
    answer = surestep("train", recipe(), "--run", "r", "--json")
    found, run = json.loads(answer.out), Run(folder / "r")
    assert found["run"] == "r"
    assert found["status"] == json.loads(json.dumps(run.status))
    assert found["best"]["metrics"] == run.best.metrics
    assert found["best"]["path"] == f"r/checkpoints/{run.best.path.name}"
    assert set(found["test"]) == {"test/loss", "test/accuracy"}


def test_reported_metrics_are_those_of_the_best_weights(surestep, recipe, folder):
    words = ("--validation.metric", "loss", "--validation.mode", "max", "--json")
    found = json.loads(surestep("train", recipe(), "--run", "r", *words).out)
    steps = [each for each in Run(folder / "r").events() if each["event"] == "evaluation"]
    best = max(steps[:-1], key=lambda each: each["metrics"]["val/loss"])
    assert (found["best"]["step"], steps[-1]["step"]) == (best["step"], best["step"])
    assert found["test"] == steps[-1]["metrics"]


def test_json_is_alone_on_stdout_even_if_a_callback_prints(surestep, recipe):
    answer = surestep("train", recipe(TALKING), "--run", "r", "--json")
    assert json.loads(answer.out)["run"] == "r"
    assert "I am done" in answer.err


def test_callbacks_of_a_recipe_are_called(surestep, recipe):
    answer = surestep("train", recipe(TALKING), "--run", "r")
    assert "I am done" in answer.out + answer.err


def test_finished_run_is_reported(surestep, recipe):
    first = surestep("train", recipe(), "--run", "r")
    again = surestep("train", "mine.py", "--run", "r")
    assert again.code == 0
    assert "r is finished: 6 steps are done." in again.err
    assert first.out == again.out


def test_different_config_is_rejected_with_a_table(surestep, recipe, folder):
    surestep("train", recipe(), "--run", "r")
    before = files(folder / "r")
    words = ("--optim.lr", "0.5", "--task.hidden", "9", "--logging.every", "2 steps")
    answer = surestep("train", "mine.py", "--run", "r", *words)
    assert (answer.code, answer.out) == (1, "")
    assert "r has a run with a different config:" in answer.err
    assert "\n --task.hidden not set -> 9 blocked: the recipe would be called" in answer.err
    assert "\n optim.lr 0.01 -> 0.5 blocked: each update would differ" in answer.err
    assert "\n logging.every 50 steps -> 2 steps safe: " in answer.err
    assert "--allow optim.lr,task.hidden,model" not in answer.err  # no checkpoint fits
    assert "Choose a different folder with --run" in answer.err
    assert files(folder / "r") == before


def test_different_recipe_is_rejected(surestep, recipe):
    surestep("train", recipe(), "--run", "r")
    answer = surestep("train", recipe(RECIPE + "\n# changed\n"), "--run", "r")
    assert (answer.code, answer.out) == (1, "")
    assert "recipe file" in answer.err


@pytest.mark.parametrize(
    ("ran", "resume", "code", "message"),
    [
        (True, "never", 1, "r has a run already, and resume is 'never'"),
        (False, "must", 1, "r has no checkpoint to resume from, and resume is 'must'"),
        (True, "must", 0, "r is finished"),
        (False, "never", 0, "step 6/6"),
    ],
)
def test_resume_option_decides_whether_to_resume(surestep, recipe, ran, resume, code, message):
    recipe()
    if ran:
        surestep("train", "mine.py", "--run", "r")
    answer = surestep("train", "mine.py", "--run", "r", "--resume", resume)
    assert answer.code == code
    assert message in answer.err


def test_dry_run_tries_every_action_and_leaves_no_files(surestep, recipe, folder, monkeypatch):
    (folder / "tmp").mkdir()
    with make_temp_folder():  # the folder of this process, which stays until its end
        pass
    monkeypatch.setattr("tempfile.tempdir", str(folder / "tmp"))
    answer = surestep("train", recipe(), "--dry-run")
    assert (answer.code, answer.err) == (0, "")
    acts = ("start-up checks", "one step", "evaluate val", "evaluate test", "save", "load")
    assert all(f"\n {act} " in answer.out for act in acts)
    assert files(folder) == ["mine.py", "tmp"]


def test_suggested_command_after_a_dry_run_can_be_typed(surestep, recipe):
    answer = surestep("train", recipe(), "--dry-run", "--task.hidden", "9")
    assert answer.out.endswith("\nNext: surestep train mine.py --task.hidden 9\n")


def test_dry_run_results_can_be_printed_as_json(surestep, recipe):
    found = json.loads(surestep("train", recipe(), "--dry-run", "--json").out)
    assert [each["what"] for each in found][-2:] == ["save", "load"]
    assert all(each["seconds"] > 0 and each["result"] for each in found)


def test_overfit_memorizes_a_few_samples(surestep, recipe, folder):
    answer = surestep("train", recipe(), "--overfit", "4", "--optim.lr", "0.1")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("4 samples: loss 1.")
    assert "The model overfits them" in answer.out
    assert files(folder) == ["mine.py"]


def test_overfit_fails_on_contradictory_targets(surestep, recipe, monkeypatch):
    monkeypatch.setattr("surestep.trainer.dry_run.MAX_STEPS", 60)
    answer = surestep("train", recipe(CONTRADICTING), "--overfit", "8")
    assert answer.code == 1
    assert answer.out.endswith(" in 60 steps.\n")
    assert "targets that contradict each other" in answer.err
    found = surestep("train", "mine.py", "--overfit", "8", "--json")
    assert found.code == 1
    assert json.loads(found.out)["has_converged"] is False


def test_overfit_of_zero_samples_is_rejected(surestep, recipe):
    answer = surestep("train", recipe(), "--overfit", "0")
    assert (answer.code, answer.out) == (2, "")
    assert "--overfit 0 is not a number of samples" in answer.err


def test_weights_of_a_run_can_be_loaded_into_a_model(surestep, recipe, folder):
    surestep("train", recipe(), "--run", "r")
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    assert Run(folder / "r").load_model(model).step == Run(folder / "r").best.step


LEAKING = f"""{HEAD}
config = surestep.Config(epochs=1, batch_size=8, max_grad_norm="off")

def task():
    x, y = torch.eye(4).repeat(2, 1), torch.arange(8) % 3
    return surestep.Task(
        model=nn.Linear(4, 3), loss=nn.CrossEntropyLoss(), train=(x, y), val=(x, y))
"""


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ([], 0),
        (["--doctor.fail-on", "warning"], 1),
        (["--doctor.fail-on", "error"], 0),
        (["--doctor.fail-on", "warning", "--doctor.ignore", "SS605=only a test"], 0),
    ],
)
def test_findings_fail_the_command_only_if_asked(surestep, recipe, folder, options, code):
    answer = surestep("train", recipe(LEAKING), "--run", "r", *options)
    assert answer.code == code
    assert Run(folder / "r").status["status"] == "finished"
    assert ("SS605 leakage-by-duplicates (warning)" in answer.err) == ("SS605=" not in str(options))
    assert surestep("resume", "r").code == code


def test_findings_of_the_data_fail_the_command_that_resumes_too(surestep, recipe, folder):
    words = ("train", recipe(LEAKING), "--run", "r", "--schedule", "constant")
    assert surestep(*words).code == 0
    answer = surestep(*words, "--epochs", "3", "--doctor.fail-on", "warning", "--json")
    assert answer.code == 1
    (found,) = json.loads(answer.out)["status"]["findings"]
    assert found["rule"] == "SS605"
    assert answer.err.count("SS605 leakage-by-duplicates (warning)") == 1


UNLABELED = RECIPE.replace("test=(x[32:], y[32:])", "test=x[32:]")


def test_test_data_without_targets_is_left_for_predict(surestep, recipe, folder):
    answer = surestep("train", recipe(UNLABELED), "--run", "r")
    assert answer.code == 0
    assert answer.out.endswith("\nNext: surestep predict r\n")
    assert " test/" not in answer.out
    assert surestep("predict", "r").code == 0
    assert np.load(folder / "r/predictions-test.npz")["output"].shape == (8, 3)
    wrong = surestep("evaluate", "r", "--split", "test")
    assert wrong.code == 1
    assert "The test data cannot be evaluated, only predicted" in wrong.err
    assert "surestep predict RUN" in wrong.err


def test_dry_run_of_test_data_without_targets_predicts(surestep, recipe):
    answer = surestep("train", recipe(UNLABELED), "--dry-run")
    assert answer.code == 0
    assert " predict test 8 samples " in answer.out


@pytest.mark.parametrize("flag", ["-q", "--quiet"])
@pytest.mark.parametrize("first", [True, False])
def test_quiet_shows_no_progress_and_the_results(surestep, recipe, flag, first):
    name = recipe()
    words = [flag, name] if first else [name, "--run", "r", flag]
    answer = surestep("train", *words)
    assert (answer.code, answer.err) == (0, "")
    assert " ended all steps are done " in answer.out


def test_resume_can_be_quiet(surestep, recipe):
    assert surestep("train", recipe(), "--run", "r").code == 0
    answer = surestep("resume", "-q", "r")
    assert answer.code == 0
    assert "is finished" not in answer.err
    assert " ended all steps are done " in answer.out


def test_quiet_and_a_typed_progress_exclude_each_other(surestep, recipe):
    answer = surestep("train", recipe(), "-q", "--logging.progress", "bar")
    assert answer.code == 2
    assert "--quiet and --logging.progress bar exclude each other" in answer.err
    assert surestep("train", recipe(), "-q", "--logging.progress", "quiet").code == 0


def test_run_without_a_folder_is_rejected(folder, recipe, surestep):
    answer = surestep("train", recipe(), "--run", "")
    assert answer.code == 2
    assert "--run has no folder" in answer.err
    assert not (folder / "config.json").exists()


OUT_OF_MEMORY = f"""{HEAD}
config = surestep.Config(max_steps=2, batch_size=8)

class Large(nn.Linear):
    def forward(self, x):
        if self.training and len(x) > 4 and x.sum() != 0:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return super().forward(x)

def task(bias: bool = True):
    return surestep.Task(lambda: Large(4, 3, bias=bias), nn.CrossEntropyLoss(), (x, y))
"""


@pytest.mark.parametrize("words", [(), ("--run", "r")], ids=["default folder", "a folder"])
def test_error_of_memory_shows_the_command_with_all_options(surestep, recipe, folder, words):
    typed = ("--optim.lr", "0.02", "--task.bias", "False", "--checkpoint.every", "2 steps")
    answer = surestep("train", recipe(OUT_OF_MEMORY), *typed, *words)
    run = "r" if words else next((folder / "runs").iterdir()).relative_to(folder)
    command = shlex.join(["surestep", "train", "mine.py", *typed, "--run", str(run)])
    assert answer.code == 1
    assert f"To resume, add what would help to the same command: {command}" in answer.err
    more = ("--run", str(run), "--micro-batch-size", "4", "--allow", "micro_batch_size")
    assert surestep("train", "mine.py", *typed, *more).code == 0
