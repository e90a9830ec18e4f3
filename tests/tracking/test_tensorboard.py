"""TensorBoard: its own reader reads what was written."""

import json
from itertools import count

import numpy as np
import pytest
import torch
from torch import nn

import surestep
from surestep.tracking import follower, tensorboard
from surestep.tracking.follower import Delivery
from surestep.tracking.tensorboard import TensorBoardTracker
from tests.tracking.test_delivery import DATA, STEPS, expected_points, options, train

TENSORBOARD = {"logging.trackers": "tensorboard"}


def read(folder, reader="event_accumulator"):
    module = pytest.importorskip(f"tensorboard.backend.event_processing.{reader}")
    everything = dict.fromkeys(("scalars", "histograms", "tensors"), 0)
    found = module.EventAccumulator(str(folder / "tensorboard"), everything)
    found.Reload()
    return found


def texts(found, name):
    return [
        tensor.tensor_proto.string_val[0].decode()
        for tensor in found.Tensors(f"{name}/text_summary")
    ]


def test_scalars_options_and_final_metrics_are_read_back(tmp_path):
    run = train(tmp_path, **TENSORBOARD)
    found = read(tmp_path)
    for name in ("train/loss", "val/loss"):
        scalars = {each.step: each.value for each in found.Scalars(name)}
        expected = {step: value for step, key, value in expected_points(run) if key == name}
        assert scalars == pytest.approx(expected, rel=1e-6)  # it stores fp32
    names = set(found.Tags()["scalars"])
    assert names > {"lr", "grad_norm", "memory/peak", "throughput/items_per_s"}
    assert "_hparams_/session_start_info" in found.summary_metadata
    assert "| optim.name | adamw |" in texts(found, "options")[0]


def test_resumed_run_adds_to_the_same_curves(tmp_path):
    train(tmp_path, max_steps=6, **TENSORBOARD)
    run = train(tmp_path, **TENSORBOARD)
    steps = [each.step for each in read(tmp_path).Scalars("train/loss")]
    assert steps == [step for step, key, _ in expected_points(run) if key == "train/loss"]
    assert steps[-1] == STEPS


def test_run_that_is_sent_again_is_there_once(tmp_path):
    run = train(tmp_path, **TENSORBOARD, **{"logging.histograms": "4 steps"})
    delivery = Delivery(tmp_path, TensorBoardTracker(), from_start=True)
    delivery.deliver()
    delivery.close()
    found = read(tmp_path)
    for name in ("train/loss", "val/loss"):
        steps = [scalar.step for scalar in found.Scalars(name)]
        assert steps == [step for step, key, _ in expected_points(run) if key == name]
    assert [shown.step for shown in found.Histograms("weights/weight")] == [4, 8, 12]
    shown = read(tmp_path, "plugin_event_accumulator")  # of TensorBoard's pages
    for name in ("options/text_summary", "findings/text_summary"):
        assert len(shown.Tensors(name)) == 1


def test_failure_while_a_run_is_sent_again_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(follower, "BATCH", 3)  # so that some events are recorded as delivered
    run, tracker = train(tmp_path), TensorBoardTracker()

    def fail_once(path, step, metrics):
        del tracker.checkpoint
        raise OSError("the disk is full")

    tracker.checkpoint = fail_once
    delivery = Delivery(tmp_path, tracker, from_start=True)
    with pytest.raises(OSError, match="full"):
        delivery.deliver()
    assert delivery.offset
    delivery.close()
    delivery.deliver()
    delivery.close()
    steps = {scalar.step for scalar in read(tmp_path).Scalars("train/loss")}
    assert steps == {step for step, key, _ in expected_points(run) if key == "train/loss"}


class Killed(BaseException):
    """Ends a run where a kill could: after steps that no checkpoint has."""


class Kill(surestep.Callback):
    def on_step(self, state, result):
        if result.step == 9:
            raise Killed


def test_steps_that_a_resumed_run_repeats_are_there_once(tmp_path, monkeypatch):
    # TensorBoard reads the files of one second in the order of their numbers as text.
    monkeypatch.setattr(tensorboard, "_FILES", count(9))
    task = surestep.Task(nn.Linear(3, 1), "mse", DATA, val=DATA)
    saves = {"checkpoint.every": "4 steps", "checkpoint.async_save": False}
    config = options(**TENSORBOARD, **saves)
    with pytest.raises(Killed):
        surestep.Trainer(task, config, run=tmp_path, callbacks=[Kill()]).fit()
    run = surestep.Trainer(task, config, run=tmp_path).fit()
    recorded = [step for step, key, _ in expected_points(run) if key == "train/loss"]
    assert len(recorded) > len(set(recorded))
    steps = [scalar.step for scalar in read(tmp_path).Scalars("train/loss")]
    assert steps == sorted(set(recorded))


def test_findings_are_a_text(tmp_path):
    run = train(tmp_path, max_steps=40, max_grad_norm=1e-4, **TENSORBOARD)
    (text,) = texts(read(tmp_path), "findings")
    status = json.loads((run.path / "status.json").read_text())
    (finding,) = (each for each in status["findings"] if each["rule"] == "SS117")
    assert (
        f"**SS117 gradients-always-clipped** ({finding['severity']}): {finding['message']}" in text
    )
    assert finding["fix"] in text


def test_histograms_of_weights_and_gradients_are_read_back(tmp_path):
    options = {"logging.histograms": "4 steps", "checkpoint.every": "4 steps"}
    run = train(tmp_path, **TENSORBOARD, **options)
    found = read(tmp_path)
    model = nn.Linear(3, 1)
    run.load_model(model, which="last")
    values = torch.cat([each.detach().flatten() for each in model.parameters()]).numpy()
    for name in ("weights/weight", "weights/bias", "gradients/weight", "gradients/bias"):
        assert [each.step for each in found.Histograms(name)] == [4, 8, 12]
    histogram = found.Histograms("weights/weight")[-1].histogram_value
    weights = model.weight.detach().numpy()
    assert (histogram.min, histogram.max) == pytest.approx((weights.min(), weights.max()))
    assert (histogram.num, sum(histogram.bucket)) == (3, 3)
    assert histogram.sum == pytest.approx(weights.sum())
    assert len(values) == 4


def test_norms_by_layer_are_curves(tmp_path):
    train(tmp_path, **TENSORBOARD, **{"logging.per_layer": True})
    found = read(tmp_path)
    for name in ("grad_norm/weight", "weight_norm/bias", "update_norm/weight"):
        assert [each.step for each in found.Scalars(name)][-1] == STEPS


class ByName(nn.Module):
    """A model that takes inputs by name, has dropout and BatchNorm, and returns a dict."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.head = nn.Linear(4, 1)

    def forward(self, inputs, shift):
        return {"logits": self.head(self.encoder(inputs)) + shift}


def by_name(**parts):
    x = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
    rows = [{"inputs": row, "shift": row[:1], "labels": row.sum()[None]} for row in x]

    def loss(outputs, targets):
        return nn.functional.mse_loss(outputs["logits"], targets)

    return surestep.Task(ByName, loss, rows, **parts)


def test_graph_shows_the_modules_of_the_model(tmp_path):
    config = surestep.Config(
        max_steps=3, batch_size=8, logging={"graph": True, "progress": "quiet"}
    )
    surestep.Trainer(by_name(), config, run=tmp_path).fit()
    scopes = {node.name for node in read(tmp_path).Graph().node}
    assert any("Linear[head]" in scope for scope in scopes)
    assert any("Sequential[encoder]" in scope for scope in scopes)


def test_graph_and_histograms_change_nothing(tmp_path):
    weights = []
    for extra in ({}, {"graph": True, "histograms": "1 step", "per_layer": True}):
        config = surestep.Config(
            max_steps=5, batch_size=8, logging={**extra, "every": "2 steps", "progress": "quiet"}
        )
        run = surestep.Trainer(by_name(), config, run=tmp_path / str(len(extra))).fit()
        model = ByName()
        run.load_model(model, which="last")
        weights.append(model.state_dict())
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name]), name


class Unfit(nn.Linear):
    """A model that fails under a tracer."""

    def forward(self, x):
        if torch.jit.is_tracing():
            raise RuntimeError("this model knows tracers")
        return super().forward(x)


def test_model_that_cannot_be_traced_trains_on(tmp_path, capfd):
    x = torch.randn(24, 3)
    task = surestep.Task(lambda: Unfit(3, 1), "mse", (x, x[:, :1]))
    options = {"logging": {"graph": True, "every": "2 steps", "progress": "plain"}}
    run = surestep.Trainer(task, surestep.Config(max_steps=4, **options), run=tmp_path).fit()
    assert run.last.step == 4
    printed = capfd.readouterr()
    assert printed.err.count("this model knows tracers. Training continues.") == 1
    assert "Error occurs" not in printed.out


def test_histogram_counts_finite_values_in_equal_ranges():
    from surestep.tracking.histograms import BINS, compute_histogram

    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    found = compute_histogram([values[:400], torch.tensor([torch.nan, torch.inf]), values[400:]])
    counts, _ = np.histogram(values.numpy().astype(np.float64), bins=BINS)
    assert found["counts"] == counts.tolist()
    assert found["sum"] == pytest.approx(float(values.double().sum()))
    same = compute_histogram([torch.full((5,), 2.0)])
    assert (same["min"], same["max"], sum(same["counts"])) == (2.0, 2.0, 5)
    assert compute_histogram([torch.tensor([torch.nan])]) is None
