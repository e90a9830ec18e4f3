"""The best checkpoint of averaged weights gives what the run measured, whatever the model has."""

import pytest
import torch
from torch import nn

from surestep.base.errors import CheckpointError
from surestep.record.checkpoint.reader import open_checkpoint
from surestep.record.export import export
from tests import tiny


class Centered(nn.Module):
    """Subtracts a running mean of the inputs, which its state_dict leaves out."""

    def __init__(self, *, persistent=False):
        super().__init__()
        torch.manual_seed(1)
        self.last = nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(4), persistent=persistent)

    def forward(self, x):
        if self.training:
            self.mean.lerp_(x.detach().mean(0), 0.3)
        return self.last(x - self.mean)


class Renamed(Centered):
    """Has other names in its state_dict, as models that are wrapped for training do."""

    def __init__(self):
        super().__init__(persistent=True)
        self.register_state_dict_post_hook(self._rename)
        self.register_load_state_dict_pre_hook(self._rename_back)

    @staticmethod
    def _rename(module, state_dict, prefix, local_metadata):
        for name in list(state_dict):
            state_dict[f"net.{name}"] = state_dict.pop(name)

    @staticmethod
    def _rename_back(module, state_dict, prefix, *arguments):
        for name in list(state_dict):
            state_dict[name.removeprefix("net.")] = state_dict.pop(name)


class Halved(Centered):
    """Stores half of its weights."""

    def __init__(self):
        super().__init__(persistent=True)
        self.last.register_state_dict_post_hook(self._halve)
        self.last.register_load_state_dict_pre_hook(self._double)

    @staticmethod
    def _halve(module, state_dict, prefix, local_metadata):
        state_dict[f"{prefix}weight"] = state_dict[f"{prefix}weight"] / 2

    @staticmethod
    def _double(module, state_dict, prefix, *arguments):
        state_dict[f"{prefix}weight"] = state_dict[f"{prefix}weight"] * 2


@pytest.mark.parametrize("make", [Centered, Renamed, Halved])
@pytest.mark.parametrize("buffers", ["average", "copy"])
def test_loaded_average_gives_the_measured_loss(tmp_path, make, buffers):
    x, y = tiny.data(32)
    options = {"average": {"kind": "ema", "decay": 0.8, "buffers": buffers}, "epochs": 4}
    run = tiny.fit(tmp_path, {"model": make(), "val": (x, y)}, **options)
    assert run.best.evaluated == "average"
    for which in ("best", "average"):
        model = make()
        run.load_model(model, which)
        with torch.no_grad():
            loss = float(nn.functional.cross_entropy(model.eval()(x), y))
        assert loss == pytest.approx(
            (run.best if which == "best" else run.last).metrics["val/loss"]
        )


def test_average_of_a_renamed_weight_is_not_left_out_of_an_export(tmp_path):
    average = {"kind": "ema", "decay": 0.8}
    run = tiny.fit(tmp_path / "run", {"model": Renamed()}, average=average)
    found = open_checkpoint(run.last.path)
    with pytest.raises(CheckpointError, match=r"an average of last\.\w+, and the model's"):
        export(found, tmp_path / "model.pt", average=True)
    export(found, tmp_path / "model.pt")


def test_average_of_a_resumed_run_counts_only_steps_that_were_taken(tmp_path):
    """Step 2 has no items, so the average is of the weights after the steps 1, 3, 4 and 5."""
    x, y = tiny.data(40)
    y[8:16] = -100
    average = {"kind": "swa", "start": 0, "every": "1 step"}
    options = {"max_steps": 5, "data": {"shuffle": False}, "average": average}
    seen = []
    for last in (3, 5):
        with tiny.prepare(tmp_path, {"train": (x, y)}, **options) as session:
            for result in session.steps():
                if result.took_step:
                    seen.append(tiny.weights(session.model))
                if result.step == last:
                    session.save()
                    break
            tensors = session.state.average.tensors.values()
            found = torch.cat([tensor.double().flatten() for tensor in tensors])
    assert len(seen) == 4
    torch.testing.assert_close(found, torch.stack(seen).mean(0), rtol=0, atol=1e-6)
