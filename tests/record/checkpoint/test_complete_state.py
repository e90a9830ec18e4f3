"""Every field of State survives a checkpoint; a new field fails here until it does."""

from dataclasses import fields

import pytest
import torch
from torch import nn

from surestep.engine.plan.specs import AveragingSpec
from surestep.engine.schedule.lr import PlateauState
from surestep.engine.state.average import AveragedWeights
from surestep.engine.state.loss_spikes import SpikeDetector
from surestep.engine.state.state import WHOLE, BestMetric, Progress, State, StepCounts
from tests import tiny
from tests.record.checkpoint.on_disk import load_checkpoint, save_checkpoint

EMA = AveragingSpec(
    "ema", decay=0.9, warmup=False, start=0, interval=1, buffers="live", lr=None, anneal=0
)
BEST = {
    "metric": "val/accuracy",
    "best": 0.5,
    "best_step": 4,
    "since_best": 2,
    "latest_step": 6,
    "latest": {"val/loss": 0.25, "val/confusion": [[1.0, 2.0], [3.0, 4.0]]},
    "measured": "average",
    "data": "0123abcd",
    "is_due": True,
}


class Memory:
    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


def state_of(seed: int) -> State:
    """Return a state with every part; with different seeds, all its numbers differ."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    net[1].running_mean.uniform_()
    state = tiny.state_of(net, seed=seed, steps=3)
    state.scaler = torch.amp.GradScaler("cpu", enabled=True)
    state.average = AveragedWeights(EMA, net, net.parameters())
    for tensor in state.average.tensors.values():
        tensor.add_(seed)
    state.callback_states = {"memory": Memory(seed)}
    return state


def scaled(state):
    state.scaler.load_state_dict({**state.scaler.state_dict(), "scale": 8.0, "_growth_tracker": 5})


def counted(kind):
    return {name: number for number, name in enumerate(names_of(kind), start=13)}


def names_of(kind):
    return kind._fields if hasattr(kind, "_fields") else [field.name for field in fields(kind)]


CHANGES = {
    "model": lambda state: None,
    "optimizers": lambda state: None,
    "scaler": scaled,
    "progress": lambda state: setattr(state, "progress", Progress(20, 19, 15, 16, 17.0)),
    "counts": lambda state: vars(state.counts).update(counted(StepCounts)),
    "best": lambda state: vars(state.best).update(BEST),
    "plateau": lambda state: vars(state.plateau).update(counted(PlateauState) | {"scale": 0.5}),
    "plateaus": None,  # among the callback_states
    "metadata": lambda state: state.metadata.update(seen=[1, "two"]),
    "average": lambda state: None,
    "base": None,  # set before: the fingerprints of the weights that a checkpoint lacks
    "base_sums": None,  # of the same weights, computed from them at each start
    "built": None,  # the keys from before the first step; other keys belong to the model
    "callback_states": lambda state: None,
    "keeper": None,  # its tensors are those of the model and the optimizers
    "spikes": lambda state: vars(state.spikes).update(SPIKES),
    "schedules": None,  # what the user's code has set is stored with the optimizers
    "built_names": None,  # of the model
    "built_trained": None,  # of the model before the first step
    "unfreezing": lambda state: state.model[0].requires_grad_(False),
    "built_options": None,  # how the optimizers are built; a checkpoint stores it separately
}
SEEN = {
    "model": lambda state: state.model.state_dict(),
    "optimizers": lambda state: {
        name: state.optimizers[WHOLE].state[parameter]
        for name, parameter in state.model.named_parameters()
    },
    "scaler": lambda state: state.scaler.state_dict(),
    "progress": lambda state: state.progress._asdict(),
    "counts": lambda state: vars(state.counts),
    "best": lambda state: vars(state.best),
    "plateau": lambda state: vars(state.plateau),
    "metadata": lambda state: state.metadata,
    "average": lambda state: state.average.tensors,
    "callback_states": lambda state: {
        name: declared.value for name, declared in state.callback_states.items()
    },
    "spikes": lambda state: vars(state.spikes),
    "unfreezing": lambda state: state.read_frozen(),  # what the options freeze is not stored
}
SPIKES = {"losses": [0.5, 0.0, -0.25], "skipped_steps": [(3, 10)], "rollbacks": 1}


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return a == b and type(a) is type(b)


def differs_everywhere(a, b):
    """Return whether every value differs, so that none can survive by chance."""
    if isinstance(a, dict):
        return bool(a) and all(key not in b or differs_everywhere(a[key], b[key]) for key in a)
    return not same(a, b)


def test_every_field_of_the_state_is_covered():
    assert set(CHANGES) == set(names_of(State))
    assert set(BEST) == set(names_of(BestMetric))
    assert set(SPIKES) == set(names_of(SpikeDetector))


@pytest.mark.parametrize("field", SEEN)
def test_field_of_the_state_survives_a_checkpoint(tmp_path, field):
    state, other = state_of(1), state_of(2)
    for change in filter(None, CHANGES.values()):
        change(state)
    look = SEEN[field]
    if field in ("progress", "counts", "best", "plateau", "metadata", "callback_states", "spikes"):
        assert differs_everywhere(look(state), look(other))
    assert not same(look(state), look(other))
    load_checkpoint(save_checkpoint(tmp_path, state), other)
    assert same(look(state), look(other))


def _momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


class Shuffled(nn.Module):
    """Registers its children, and so its parameters, in a given order."""

    def __init__(self, order):
        super().__init__()
        for name in order:
            self.add_module(name, nn.Linear(4, 4))  # all of one shape


@pytest.mark.parametrize("make", [tiny.fused_adamw, _momentum], ids=["adamw", "sgd"])
def test_state_is_loaded_by_name_for_any_order_of_parameters(tmp_path, make):
    state = tiny.state_of(Shuffled("abc"), make, steps=3)
    other = tiny.state_of(Shuffled("cab"), make, steps=0, seed=9)
    load_checkpoint(save_checkpoint(tmp_path, state), other)
    assert list(dict(other.model.named_parameters())) != list(dict(state.model.named_parameters()))
    assert same(SEEN["model"](state), SEEN["model"](other))
    assert same(SEEN["optimizers"](state), SEEN["optimizers"](other))
    for changed in (state, other):
        for name, parameter in changed.model.named_parameters():
            parameter.grad = torch.full_like(parameter, float(ord(name[0])))
        changed.optimizer.step()
    assert same(SEEN["model"](state), SEEN["model"](other))
