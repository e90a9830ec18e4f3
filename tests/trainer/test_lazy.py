"""Lazy modules are initialized by the first batch: before the Plan, and for every command."""

import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import TaskError
from surestep.engine.batch import MicroBatch
from surestep.engine.model.lazy import initialize_lazy
from tests import tiny


def lazy(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(3))


def plain(seed: int = 0) -> nn.Module:
    """The same model, initialized by hand before any other random number is drawn."""
    model = lazy(seed)
    with torch.no_grad():
        model.eval()(tiny.data()[0][:8])
    return model


def end(folder, model, **said):
    with tiny.prepare(folder, {"model": model, "val": tiny.data(8)}, **said) as session:
        list(session.steps())
        return tiny.weights(session.model)


def test_lazy_model_trains_as_one_initialized_by_hand(tmp_path):
    assert torch.equal(end(tmp_path / "a", lazy()), end(tmp_path / "b", plain()))


class Counter(nn.Module):
    """Counts its calls in a buffer and in an attribute."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.calls = 0

    def forward(self, x):
        self.seen += 1
        self.calls += 1
        return x


def test_initialization_changes_only_what_has_no_shape():
    model = nn.Sequential(nn.LazyLinear(2), Counter(), nn.Dropout().eval())
    x, y = tiny.data(8)
    initialize_lazy(model, MicroBatch((x,), {}, y, 8, 8, 0))
    assert model[0].weight.shape == (2, tiny.FEATURES)
    assert (float(model[1].seen), model[1].calls) == (0, 0)
    assert [module.training for module in model.modules()] == [True, True, True, False]


@pytest.mark.parametrize("kind", ["instance", "function"])
def test_run_of_a_lazy_model_can_be_resumed(tmp_path, kind):
    def make(seed=0):
        return lazy(seed) if kind == "instance" else (lambda: lazy(seed))

    whole = end(tmp_path / "whole", make())
    with tiny.prepare(tmp_path / "run", {"model": make(), "val": tiny.data(8)}) as session:
        next(iter(session.steps()))
        session.save()
    assert torch.equal(whole, end(tmp_path / "run", make(seed=5)))


def test_lazy_model_can_be_evaluated_and_can_predict(tmp_path):
    end(tmp_path, lazy())
    with tiny.prepare(tmp_path, {"model": lazy(3), "val": tiny.data(8)}) as session:
        assert session.evaluate()["val/loss"] > 0
        assert session.predict("val").samples == 8


def test_lazy_model_is_initialized_from_a_dataset_in_a_loader(tmp_path):
    data = torch.utils.data.TensorDataset(*tiny.data())
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    parts = {"model": lazy(), "train": loader}
    with surestep.prepare(tiny.task(**parts), surestep.Config(epochs=1), run=tmp_path) as session:
        list(session.steps())


def test_forward_that_fails_or_skips_lazy_modules_is_named_in_the_error(tmp_path):
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.LazyLinear(3), nn.LazyLinear(3)

        def forward(self, x):
            return self.used(x)

    with pytest.raises(TaskError, match=r"leaves unused\.weight, unused\.bias without a shape"):
        tiny.prepare(tmp_path / "a", {"model": Unused()})
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(2, 2))
    with pytest.raises(TaskError, match=r"lazy modules \(0\.weight, 0\.bias\).*got \(8, 3\)"):
        tiny.prepare(tmp_path / "b", {"model": model})
