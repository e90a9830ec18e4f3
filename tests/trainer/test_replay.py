"""A run that stops at a nonfinite step reports the cause, and the step can be replayed."""

import json
import math
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import nn

import surestep
from surestep.base.errors import CheckpointError, ConfigError, NonFiniteError, RunError
from surestep.record.checkpoint.discovery import list_checkpoints
from surestep.record.io import read_json
from tests import tiny
from tests.engine.diagnose.broken import BAD, SAMPLES, data, half_logarithm, learned, model

Made = dict[str, Any]
OPTIONS: Made = {"epochs": 3, "batch_size": 8, "seed": 3, "logging": {"every": "2 steps"}}
DIVIDES = {"model": lambda: model(lambda x: x / x.sum(1, keepdim=True)), "train": data(0.0)}
# The parts, the options, and what the error must name: module, operation, samples.
CASES: dict[str, tuple[Made, Made, str | None, str | None, tuple[int, ...]]] = {
    "NaN in one sample": ({"model": model, "train": data(math.nan)}, {}, None, None, (BAD,)),
    "log(0)": (
        {"model": lambda: model(torch.log), "train": data(0.0)},
        *({}, "0", "aten.log", (BAD,)),
    ),
    "division by zero": (DIVIDES, {}, "0", "aten.div", (BAD,)),
    "fp16 overflow in one layer": (
        {"model": lambda: model(lambda x: 1000 * x), "train": data(1e3)},
        *({"precision": "fp16"}, "1", "aten._to_copy", (BAD,)),
    ),
    "exploding learning rate": (
        {"model": lambda: tiny.model(), "train": data(0.5)},
        {"optim": {"name": "sgd", "lr": 3e38}, "max_grad_norm": "off"},
        *("3", "aten.addmm", ()),
    ),
    "NaN only in the backward pass": (
        {"model": lambda: learned(half_logarithm), "train": data(0.0)},
        *({}, "0", "aten.div", (BAD,)),
    ),
}


def task(parts: Made) -> surestep.Task:
    return tiny.task(**{**parts, "model": parts["model"]()})


def failed(folder: Path, parts: Made, said: Made) -> NonFiniteError:
    """Train until the run stops."""
    config = tiny.config(**{**OPTIONS, **said})
    with pytest.raises(NonFiniteError) as caught:
        surestep.Trainer(task(parts), config, run=folder).fit()
    return caught.value


@pytest.mark.parametrize("name", CASES)
def test_stopped_run_names_the_cause_and_can_be_replayed(tmp_path, name):
    parts, said, module, operation, samples = CASES[name]
    error = failed(tmp_path / "run", parts, said)
    assert error.module == module
    assert error.operation == operation
    assert error.samples == samples
    assert error.incident is not None
    for word in (error.incident, operation, module and f"'{module}'", *map(str, samples)):
        assert word is None or word in str(error)

    done = surestep.replay(error.incident, task(parts))
    assert done.as_recorded
    assert not done.differing
    assert done.step == error.step
    for figures in (done.now, done.recorded):
        assert not figures.finite
        assert (figures.module, figures.samples) == (module, samples)
        assert figures.operation == operation or operation is None


def test_sample_0_is_named_by_its_index(tmp_path):
    x, y = data(math.nan)
    parts = {"model": model, "train": (x.roll(-BAD, 0), y)}
    error = failed(tmp_path / "run", parts, {})
    assert error.samples == (0,)
    done = surestep.replay(error.incident, task(parts))
    assert done.now.samples == done.recorded.samples == (0,)


def check_replay(folder: Callable[[], Path]) -> None:
    """Replay a step with dropout whose loss and some gradient norms are finite."""
    parts, said, *_ = CASES["NaN only in the backward pass"]
    error = failed(folder(), parts, said)
    assert math.isfinite(error.loss)
    done = surestep.replay(error.incident, task(parts))
    assert done.as_recorded, done.differing
    assert done.now.loss == error.loss


def test_step_with_dropout_is_replayed_bitwise_identically(tmp_path):
    check_replay(lambda: tmp_path / "run")


def test_replay_finds_a_cause_that_depends_on_a_draw_from_numpy(tmp_path):
    class Sometimes(nn.Module):
        def forward(self, x):
            return x / 0 if self.training and np.random.rand() < 0.5 else x

    parts = {"model": lambda: model(None, Sometimes()), "train": data(0.5)}
    error = failed(tmp_path / "run", parts, {})
    assert error.module == "2"
    done = surestep.replay(error.incident, task(parts))
    assert done.as_recorded or not done.is_comparable
    assert (done.now.module, done.now.operation) == ("2", "aten.div")


@pytest.mark.parametrize("name", [name for name in CASES if name != "exploding learning rate"])
def test_step_replayed_without_the_bad_samples_is_finite(tmp_path, name):
    parts, said, *_, samples = CASES[name]
    error = failed(tmp_path / "run", parts, said)
    done = surestep.replay(error.incident, task(parts), without=samples)
    assert done.now.finite
    assert not done.as_recorded
    assert done.changes == (f"without {samples[0]}",)


def test_replay_in_a_different_precision_avoids_the_fp16_overflow(tmp_path):
    parts, said, *_ = CASES["fp16 overflow in one layer"]
    said = {**said, "scaler": {"init_scale": 2.0}}
    error = failed(tmp_path / "run", parts, said)
    assert "the largest float16 value is 65,504" in str(error)
    done = surestep.replay(error.incident, task(parts), precision="fp32")
    assert done.now.finite
    assert done.now.text == "It is finite."


def test_exploded_learning_rate_is_visible_in_the_steps_before(tmp_path):
    parts, said, *_ = CASES["exploding learning rate"]
    text = str(failed(tmp_path / "run", parts, said))
    assert "No single sample" in text
    assert "lr 3e+38" in text
    assert "The largest weights: " in text


def check_retention(of: Callable[[], Path]) -> None:
    """Stop at a bad sample, fix it, resume, and retain only one checkpoint."""
    folder = of()
    bad = data(math.nan)
    error = failed(folder, {"model": model, "train": bad}, {})
    needed = read_json(Path(error.incident) / "incident.json")["checkpoint"]
    bad[0][BAD] = 1.0  # the data are fixed, and the run resumes
    config = tiny.config(**OPTIONS, checkpoint={"every": "1 step", "keep_last": 1})
    mended = task({"model": model, "train": bad})
    surestep.Trainer(mended, config, run=folder, allow=("data",)).fit()
    left = [each.name for each in list_checkpoints(folder / "checkpoints")]
    assert left == [needed, "step-00000009"]


def test_checkpoint_of_an_incident_is_preserved(tmp_path):
    check_retention(lambda: tmp_path / "run")


def test_custom_batches_are_saved_in_the_incident(tmp_path):
    parts = {"model": model, "train": data(0.5)}
    x, y = data(math.nan)
    with surestep.prepare(task(parts), tiny.config(**OPTIONS), run=tmp_path / "run") as session:
        session.train_step([(x[:4], y[:4])])
        with pytest.raises(NonFiniteError) as caught:
            session.train_step([(x[4:9], y[4:9]), (x[9:15], y[9:15])])
    error = caught.value
    assert error.step == 2
    assert error.samples == ()
    assert error.positions == (BAD - 4,)
    done = surestep.replay(error.incident, task(parts))
    assert done.as_recorded
    assert surestep.replay(error.incident, task(parts), without=[BAD - 4]).now.finite


def test_incident_has_the_custom_batch_of_its_step(tmp_path):
    """Found at a log point, after a good batch before it and another after it."""
    parts = {"model": model, "train": data(0.5)}
    x, y = data(math.nan)
    options = {**OPTIONS, "logging": {"every": "9 steps"}}
    with surestep.prepare(task(parts), tiny.config(**options), run=tmp_path / "run") as session:
        for rows in (slice(0, 4), slice(BAD - 1, BAD + 2), slice(BAD + 1, BAD + 4)):
            session.train_step([(x[rows], y[rows])])
        with pytest.raises(NonFiniteError) as caught:
            session.loop.log.take()
    error = caught.value
    assert (error.step, error.positions) == (2, (1,))
    assert surestep.replay(error.incident, task(parts)).as_recorded


def test_batch_without_tensors_is_read_again_by_its_position(tmp_path):
    class Thing:
        def __init__(self, x, y):
            self.x, self.y = x, y

    x, y = data(math.nan)
    parts = {
        "model": model,
        "train": list(zip(x, y, strict=True)),
        "collate_fn": lambda rows: (Thing(*map(torch.stack, zip(*rows, strict=True))), 0),
        "inputs": lambda batch: ((batch[0].x,), Targets(batch[0].y)),
        "loss": lambda logits, targets: nn.functional.cross_entropy(logits, targets.y),
        "items": lambda batch: len(batch[0].x),
        "loss_is_separable": False,
    }
    error = failed(tmp_path / "run", parts, {})
    record = read_json(Path(error.incident) / "incident.json")
    assert record["not_saved"] == ["0.targets: Targets"]
    assert surestep.replay(error.incident, task(parts)).as_recorded
    assert "It is not known which samples caused it" in str(error)


class Targets:
    """Targets that are not tensors."""

    def __init__(self, y):
        self.y = y


def test_missing_samples_are_rejected(tmp_path):
    error = failed(tmp_path / "run", DIVIDES, {})
    with pytest.raises(ConfigError, match=r"Samples \[99\] are not in the batch"):
        surestep.replay(error.incident, task(DIVIDES), without=[99])


def test_replay_without_the_state_before_names_the_remedy(tmp_path):
    error = failed(tmp_path / "run", DIVIDES, {})
    (gone,) = list_checkpoints(tmp_path / "run/checkpoints")
    gone.rename(tmp_path / "away")
    with pytest.raises(CheckpointError, match=r"was deleted or moved\. .* Copy it back"):
        surestep.replay(error.incident, task(DIVIDES))


def test_corrupt_incident_is_rejected(tmp_path):
    error = failed(tmp_path / "run", DIVIDES, {})
    path = Path(error.incident) / "batch.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(RunError, match="other bytes than were written"):
        surestep.replay(error.incident, task(DIVIDES))


def test_replayed_batch_that_the_model_fails_on_is_reported_as_such(tmp_path):
    incident = Path(failed(tmp_path / "run", DIVIDES, {}).incident)
    record = read_json(incident / "incident.json")
    tensors = load((incident / "batch.safetensors").read_bytes())
    cut = {name: each[:, :2].clone() for name, each in tensors.items() if each.dim() > 1}
    forged = save(tensors | cut)
    text = (incident / "incident.json").read_text()
    text = text.replace(record["sha256"], sha256(forged).hexdigest())
    (incident / "incident.json").write_text(text)
    (incident / "batch.safetensors").write_bytes(forged)
    with pytest.raises(RunError, match="the model failed on its batch with RuntimeError"):
        surestep.replay(incident, task(DIVIDES))


def test_replay_with_a_different_model_is_not_bitwise(tmp_path):
    error = failed(tmp_path / "run", DIVIDES, {})
    other = {"model": lambda: model(lambda x: x * 2), "train": data(0.0)}
    done = surestep.replay(error.incident, task(other))
    assert done.now.finite
    assert not done.as_recorded


def scaled(x):
    return -7 * torch.tanh(x)


NAN = {"model": lambda: model(torch.relu), "train": data(math.nan)}


@pytest.mark.parametrize("precision", [None, "bf16"])
def test_module_outputs_distinguish_steps_in_which_all_numbers_are_nan(tmp_path, precision):
    error = failed(tmp_path / "run", NAN, {})
    other = {**NAN, "model": lambda: model(scaled)} if precision is None else NAN
    done = surestep.replay(error.incident, task(other), precision=precision)
    assert math.isnan(done.recorded.loss)
    assert math.isnan(done.now.loss)
    assert not done.differing  # NaN is the same as NaN
    assert not done.as_recorded
    assert surestep.replay(error.incident, task(NAN)).as_recorded


def test_incident_without_module_outputs_is_inconclusive_if_all_is_nan(tmp_path):
    error = failed(tmp_path / "run", NAN, {})
    path = Path(error.incident) / "incident.json"
    record = read_json(path)
    del record["diagnosis"]["outputs"]  # as an older version wrote it
    path.write_text(json.dumps(record))
    done = surestep.replay(error.incident, task(NAN))
    assert not done.as_recorded
    assert not done.is_comparable


class Fickle(torch.utils.data.Dataset):
    """Returns a NaN once, on request: not a function of the position."""

    told = False

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        x, y = data(0.5)
        bad, self.told = self.told, False
        return x[index] * (math.nan if bad else 1.0), y[index]


def test_data_that_change_on_every_read_are_not_named_as_the_cause(tmp_path):
    fickle = Fickle()

    class Teller(surestep.Callback):
        def on_step(self, state, result):
            fickle.told = result.step == 4

    parts = {"model": model, "train": fickle}
    config = tiny.config(**OPTIONS)
    trainer = surestep.Trainer(task(parts), config, run=tmp_path / "run", callbacks=[Teller()])
    with pytest.raises(NonFiniteError, match="Step 5 ") as caught:
        trainer.fit()
    assert "Repeated from the same state, the step is finite" in str(caught.value)
    assert caught.value.samples == ()
    assert caught.value.operation is None
