import math

import pytest
import torch

import surestep
from surestep.base.errors import CheckpointError, RunError
from surestep.record.checkpoint.reader import read_info
from surestep.record.io import write_json
from surestep.record.run import Run
from tests import tiny

X, Y = tiny.data()


def fit(folder, values, mode="max", **options):
    """Fit a run whose metric returns these values, one per evaluation."""
    rest = iter([values[0], *values])  # the start-up checks read the first
    parts = {
        "val": (X[:1], Y[:1]),
        "metrics": {"score": surestep.whole_set(lambda outputs, targets: next(rest))},
    }
    validation = {"metric": "score", "mode": mode}
    return tiny.fit(folder, parts, epochs=len(values), validation=validation, **options)


def test_folder_without_a_config_is_not_a_run(tmp_path):
    with pytest.raises(RunError, match="is not a run folder: it has no config"):
        Run(tmp_path)


def test_run_has_its_config_and_final_status(tmp_path):
    run = Run(tiny.fit(tmp_path, optim={"lr": 0.5}).path)
    assert run.config["config"]["optim.lr"] == 0.5
    assert run.status["status"] == "finished"
    assert run.status["step"] == run.status["steps_taken"] == 6
    assert [event["event"] for event in run.events()][-1] == "end"


def test_best_is_chosen_by_metric_and_last_by_step(tmp_path):
    run = fit(tmp_path, [0.125, 0.75, 0.5, 0.25])
    assert (run.best.step, run.best.metrics["val/score"]) == (6, 0.75)
    assert (run.last.step, run.last.metrics["val/score"]) == (12, 0.25)


def test_nan_metric_is_never_best(tmp_path):
    run = fit(tmp_path, [0.1, float("nan"), 0.05])
    assert run.best.step == 3


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_value_that_is_not_finite_is_never_best(tmp_path, value, mode):
    run = fit(tmp_path, [value, 0.5, value], mode=mode, checkpoint={"keep_last": 3})
    assert run.best.step == 6


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_run_without_a_finite_value_has_no_best(tmp_path, value):
    parts = {"val": (X, Y), "metrics": {"score": lambda outputs, targets: value}}
    validation = {"metric": "score", "mode": "max"}
    with tiny.prepare(tmp_path, parts, validation=validation) as session:
        for result in session.steps():
            if result.step == 3:
                session.evaluate()
            if result.step == 4:
                session.save()  # the last checkpoint was not evaluated
                break
    run = session.run
    assert run.find_checkpoint("best") is None
    message = f"no best checkpoint: val/score was never a finite number, and is {value} in the"
    with pytest.raises(CheckpointError, match=message):
        run.best  # noqa: B018
    with pytest.raises(CheckpointError, match=message):
        run.load_model(tiny.model())
    assert run.load_model(tiny.model(), "last").step == 4


def test_best_is_the_last_without_an_evaluation(tmp_path):
    run = tiny.fit(tmp_path)
    assert run.best == run.last
    assert run.best.step == 6


def test_checkpoint_has_only_the_metrics_of_its_step(tmp_path):
    options = {"checkpoint": {"every": "2 steps", "keep_last": 9, "keep_best": 1}}
    run = fit(tmp_path, [0.9, 0.1], **options)
    measured = {
        path.name: bool(read_info(path).metrics) for path in sorted(run.checkpoints.iterdir())
    }
    assert measured == {
        **{"step-00000002": False, "step-00000003": True},
        **{"step-00000004": False, "step-00000006": True},
    }


def test_steps_without_an_evaluation_do_not_evict_the_second_best(tmp_path):
    options = {"checkpoint": {"every": "1 step", "keep_last": 1, "keep_best": 2}}
    run = fit(tmp_path, [0.8, 0.9, 0.1, 0.1], **options)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == [
        *("step-00000003", "step-00000006", "step-00000012")
    ]


@pytest.mark.parametrize(("which", "step"), [("best", 3), ("last", 6)])
def test_load_model_loads_the_weights_and_returns_the_checkpoint(tmp_path, which, step):
    run = fit(tmp_path, [0.9, 0.1])
    model = tiny.model(seed=7)
    found = run.load_model(model, which)
    assert found.step == step
    other = tiny.model(seed=8)
    run.load_model(other, "last")
    assert torch.equal(tiny.weights(model), tiny.weights(other)) is (which == "last")


def test_loading_without_a_checkpoint_is_rejected(tmp_path):
    with (
        tiny.prepare(tmp_path) as session,
        pytest.raises(CheckpointError, match="has no checkpoint yet"),
    ):
        session.run.load_model(tiny.model())


def test_checkpoint_is_selected_by_its_step(tmp_path):
    run = fit(tmp_path, [0.9, 0.1])
    assert run.saved(3) == run.best
    assert run.load_model(tiny.model(), 6) == run.last
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 4. It has: 3, 6."):
        run.saved(4)


def test_verify_reads_every_byte_of_every_checkpoint(tmp_path):
    run = tiny.fit(tmp_path, checkpoint={"every": "1 epoch"})
    assert [(checkpoint.step, checkpoint.good) for checkpoint in run.verify()] == [
        (3, True),
        (6, True),
    ]
    (run.last.path / "model.safetensors").write_bytes(b"")
    assert [checkpoint.good for checkpoint in run.verify()] == [True, False]


@pytest.mark.parametrize("monitor", [3, [], ["val/loss"], ["val/loss", "most"], [[], "min"]])
def test_status_without_a_valid_monitor_is_rejected(tmp_path, monitor):
    run = tiny.fit(tmp_path)
    write_json(run.path / "status.json", {"status": "running", "monitor": monitor})
    with pytest.raises(RunError, match=r"status\.json cannot be read: it.monitor"):
        run.best  # noqa: B018
    write_json(run.path / "status.json", [monitor])
    with pytest.raises(RunError, match=r"status\.json cannot be read: it is .* valid dictionary"):
        run.best  # noqa: B018
