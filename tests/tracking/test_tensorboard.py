"""TensorBoard: its own reader reads what was written."""

import pytest

from surestep.tracking.points import numbers_of
from tests.tracking.test_delivery import STEPS, expected_points, train


def read(folder):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = reader.EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    return found


def test_scalars_options_and_final_metrics_are_read_back(tmp_path):
    run = train(tmp_path, **{"logging.trackers": "tensorboard"})
    found = read(tmp_path)
    for name in ("train/loss", "val/loss"):
        scalars = {each.step: each.value for each in found.Scalars(name)}
        expected = {step: value for step, key, value in expected_points(run) if key == name}
        assert scalars == pytest.approx(expected, rel=1e-6)  # it stores fp32
    names = set(found.Tags()["scalars"])
    assert names > {"lr", "grad_norm", "memory/peak", "throughput/items_per_s"}
    assert "_hparams_/session_start_info" in found.summary_metadata
    options = found.Tensors("options/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| optim.name | adamw |" in options


def test_resumed_run_adds_to_the_same_curves(tmp_path):
    train(tmp_path, max_steps=6, **{"logging.trackers": "tensorboard"})
    run = train(tmp_path, **{"logging.trackers": "tensorboard"})
    steps = [each.step for each in read(tmp_path).Scalars("train/loss")]
    assert steps == [step for step, key, _ in expected_points(run) if key == "train/loss"]
    assert steps[-1] == STEPS


def test_metrics_that_are_no_numbers_are_left_out():
    metrics = {"loss": "nan", "accuracy": 0.5, "confusion": [[1, 2], [3, 4]], "unknown": None}
    assert set(numbers_of(metrics)) == {"loss", "accuracy"}
