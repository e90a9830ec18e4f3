import math
from functools import partial

import numpy as np
import pytest
import torch

from surestep.base.errors import CheckpointError
from surestep.record.checkpoint.reader import read_record
from tests import tiny
from tests.record.checkpoint.on_disk import load_checkpoint, save_checkpoint


class Counting(torch.optim.SGD):
    """Adds a count to every group at its first step, as some third-party optimizers do."""

    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1


class Keeping(torch.optim.SGD):
    def step(self, closure=None):
        super().step()
        self.keep()


class InState(Keeping):
    def keep(self):
        self.state["all"]["count"] = 1


class InOptions(Keeping):
    """Keeps values in its options that JSON cannot store, as Prodigy does."""

    def keep(self):
        group = self.param_groups[0]
        group["sum"] = group.get("sum", torch.zeros(2)) + 0.1
        group["d"] = np.float32(group.get("d", 1)) * np.float32(1.1)
        group["best"] = min(group.get("best", math.inf), math.inf)
        group["history"] = [*group.get("history", []), np.arange(2.0)]


class InGenerator(Keeping):
    def keep(self):
        self.param_groups[0]["rng"] = np.random.default_rng()


def state(kind, steps):
    return tiny.state_of(make=lambda parameters: kind(parameters, lr=0.1), steps=steps)


def test_option_added_at_the_first_step_resumes(tmp_path):
    path = save_checkpoint(tmp_path, state(Counting, steps=3))
    fresh = state(Counting, steps=0)
    load_checkpoint(path, fresh)
    assert fresh.optimizer.param_groups[0]["count"] == 3


def test_tensor_and_numpy_options_are_loaded(tmp_path):
    saved, fresh = state(InOptions, steps=3), state(InOptions, steps=0)
    load_checkpoint(save_checkpoint(tmp_path, saved), fresh)
    for owner in (saved, fresh):
        owner.optimizer.keep()
    now, expected = (owner.optimizer.param_groups[0] for owner in (fresh, saved))
    assert torch.equal(now["sum"], expected["sum"])
    assert (now["d"], type(now["d"])) == (expected["d"], np.float32)
    assert now["best"] == math.inf
    np.testing.assert_array_equal(now["history"], expected["history"])


def test_option_that_cannot_be_saved_is_rejected(tmp_path):
    with pytest.raises(CheckpointError, match=r"groups/0/rng' is a Generator, which has no form"):
        save_checkpoint(tmp_path, state(InGenerator, steps=1))


def test_optimizer_state_of_no_parameter_is_rejected(tmp_path):
    with pytest.raises(CheckpointError, match=r"InState keeps .*'all', which belongs"):
        save_checkpoint(tmp_path, state(InState, steps=1))


def decaying(decay, steps=2):
    """Return a state with a given weight decay whose optimizer changes its momentum."""
    make = partial(Moving, lr=0.1, weight_decay=decay, momentum=0.5)
    return tiny.state_of(make=make, steps=steps)


class Moving(Keeping):
    def keep(self):
        self.param_groups[0]["momentum"] /= 2


def test_new_option_value_is_used_and_a_value_the_optimizer_changed_is_loaded(tmp_path):
    saved, fresh = decaying(0.25), decaying(0.75, steps=0)
    load_checkpoint(save_checkpoint(tmp_path, saved), fresh)
    (group,) = fresh.optimizer.param_groups
    assert group["weight_decay"] == 0.75
    assert group["momentum"] == saved.optimizer.param_groups[0]["momentum"] == 0.125


@pytest.mark.parametrize(
    "change",
    [
        lambda slots: slots.update(exp_avg=slots["exp_avg"].double()),
        lambda slots: slots.update(exp_avg_sq=slots["exp_avg_sq"].reshape(-1)),
        lambda slots: slots.update(step=torch.zeros(2)),
        lambda slots: slots.update(step=torch.zeros((), dtype=torch.int64)),
        lambda slots: slots.update(exp_avg=1.0),
    ],
    ids=["dtype", "shape", "step", "integer step", "number"],
)
def test_state_that_a_kernel_would_read_wrongly_is_rejected(tmp_path, change):
    saved, fresh = tiny.state_of(), tiny.state_of(steps=0)
    change(saved.optimizer.state[saved.model[3].weight])
    with pytest.raises(CheckpointError, match=r"of 3\.weight, which does not fit 3\.weight: "):
        load_checkpoint(save_checkpoint(tmp_path, saved), fresh)
    assert not fresh.optimizer.state


def test_rollback_restores_an_option_that_was_changed_since(tmp_path):
    """A checkpoint from before has it as it was built."""
    path, state = save_checkpoint(tmp_path, state_of_two_groups()), state_of_two_groups()
    for group in state.optimizer.param_groups:
        group["momentum"] = 0.5
    load_checkpoint(path, state)
    assert [group["momentum"] for group in state.optimizer.param_groups] == [0.9, 0.8]


def state_of_two_groups():
    def make(parameters):
        first, *rest = parameters
        groups = [{"params": [first]}, {"params": rest, "momentum": 0.8}]
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9)

    return tiny.state_of(make=make)


class InOtherDtypes(torch.optim.SGD):
    """Keeps state of the parameter's shape in fp64, fp32 and int64."""

    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            slots = self.state[parameter]
            master = slots.setdefault("master", parameter.detach().double())
            master.add_(parameter.grad.double(), alpha=-1 / 3)
            slots["moment"] = master.float() / 7
            slots["count"] = torch.full_like(parameter, 2**40 + 1, dtype=torch.int64)
            parameter.data.copy_(master)


def test_optimizer_state_of_another_dtype_than_its_parameter_is_loaded_unrounded(tmp_path):
    def bfloat16(steps):
        make = partial(InOtherDtypes, lr=0.1)
        return tiny.state_of(tiny.model().bfloat16(), make=make, steps=steps)

    saved, fresh = bfloat16(2), bfloat16(0)
    load_checkpoint(save_checkpoint(tmp_path, saved), fresh)
    pairs = zip(fresh.optimizer.state.values(), saved.optimizer.state.values(), strict=True)
    assert len(fresh.optimizer.state) == 4
    for found, expected in pairs:
        for slot, value in expected.items():
            torch.testing.assert_close(found[slot], value, rtol=0, atol=0)


class Lookahead(torch.optim.Optimizer):
    """Steps an SGD with momentum, and returns a third of the way every second step."""

    def __init__(self, parameters):
        self.inner = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        super().__init__(self.inner.param_groups, {})
        self.param_groups = self.inner.param_groups

    @torch.no_grad()
    def step(self, closure=None):
        self.inner.step()
        for parameter in self.param_groups[0]["params"]:
            own = self.state[parameter]
            slow = own.setdefault("slow.weights", parameter.clone())
            own["steps"] = own.get("steps", 0) + 1
            if own["steps"] % 2 == 0:
                parameter.copy_(slow.lerp_(parameter, 1 / 3))


@pytest.mark.parametrize("steps", [0, 4], ids=["fresh", "rolled back"])
def test_optimizer_in_another_continues_from_its_state(tmp_path, steps):
    """A slot may have a point in its name."""

    def go_on(state):
        for seed in (7, 8, 9):
            tiny.move(state, seed)
        return tiny.weights(state.model)

    saved = tiny.state_of(make=Lookahead, steps=3)
    other = tiny.state_of(make=Lookahead, steps=steps)
    load_checkpoint(save_checkpoint(tmp_path, saved), other)
    assert torch.equal(go_on(other), go_on(saved))


@pytest.mark.parametrize("begun", [True, False])
def test_rollback_to_the_first_step_leaves_no_state_in_an_optimizer(tmp_path, begun):
    """An optimizer has none before its first step; neither has one that it wraps."""
    make = Lookahead if begun else partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    saved, other = (tiny.state_of(make=make, steps=steps) for steps in (0, 3))
    load_checkpoint(save_checkpoint(tmp_path, saved), other)
    for state in (saved, other):
        tiny.move(state, 5)
    assert torch.equal(tiny.weights(other.model), tiny.weights(saved.model))


@pytest.mark.parametrize("options", [{"dampening": 0.5}, {}, {"nesterov": True}])
def test_momentum_that_begins_after_a_resume_begins_as_in_torch(tmp_path, options):
    """Two layers have no gradient before, as while they are frozen."""
    make = partial(torch.optim.SGD, lr=0.1, momentum=0.9, **options)

    def begun():
        state = tiny.state_of(make=make, steps=0)
        tiny.give_gradients(state.model)
        for parameter in state.model[0].parameters():
            parameter.grad = None
        state.optimizer.step()
        return state

    def go_on(state):
        for seed in (1, 2):
            tiny.move(state, seed)
        return tiny.weights(state.model)

    fresh = tiny.state_of(make=make, steps=0)
    load_checkpoint(save_checkpoint(tmp_path, begun()), fresh)
    assert torch.equal(go_on(fresh), go_on(begun()))


@pytest.mark.parametrize(
    ("kind", "before", "option", "slot"),
    [
        (torch.optim.AdamW, {}, {"amsgrad": True}, "max_exp_avg_sq"),
        (torch.optim.RMSprop, {}, {"centered": True}, "grad_avg"),
        (torch.optim.RMSprop, {}, {"momentum": 0.9}, "momentum_buffer"),
        (torch.optim.RMSprop, {"momentum": 0.9}, {"momentum": 0.5}, "momentum_buffer"),
    ],
)
def test_state_of_an_option_that_is_new_is_zero_and_of_others_is_loaded(
    tmp_path, kind, before, option, slot
):
    saved = tiny.state_of(make=partial(kind, lr=0.1, **before))
    fresh = tiny.state_of(make=partial(kind, lr=0.1, **option), steps=0)
    load_checkpoint(save_checkpoint(tmp_path, saved), fresh)
    pairs = zip(saved.optimizer.state.values(), fresh.optimizer.state.values(), strict=True)
    for old, new in pairs:
        assert torch.equal(new[slot], old.get(slot, torch.zeros_like(new[slot])))
        assert new["step"].device.type == "cpu"
    tiny.move(fresh, 3)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_history_of_lbfgs_is_cut_to_the_newest_that_fit(tmp_path, size):
    def made(history_size):
        make = partial(torch.optim.LBFGS, history_size=history_size)
        return tiny.state_of(make=make, steps=0)

    saved, fresh = made(4), made(size)
    parameter = next(saved.model.parameters())
    numbers = [torch.tensor(float(number)) for number in range(4)]
    history = {name: list(numbers) for name in ("old_dirs", "old_stps", "ro")}
    saved.optimizer.state[parameter] = {"func_evals": 5, "n_iter": 4, "al": [None] * 4, **history}
    load_checkpoint(save_checkpoint(tmp_path, saved), fresh)
    (slots,) = fresh.optimizer.state.values()
    for name in history:
        assert list(map(float, slots[name])) == [0.0, 1.0, 2.0, 3.0][-size:]
    assert ("al" in slots) == (size == 4)
    assert (slots["func_evals"], slots["n_iter"]) == (5, 4)


@pytest.mark.parametrize("optim", [{"name": "adamw"}, {"name": "sgd", "momentum": 0.9}])
def test_momentum_that_the_schedule_cycles_is_not_saved_as_an_option(tmp_path, optim):
    """So a run that resumes without the cycle has the momentum of its config."""
    options = {"optim": optim, "max_steps": 9, "schedule": {"name": "one_cycle"}}
    with tiny.prepare(tmp_path, **options) as session:
        for result in session.steps():
            if result.step == 3:
                break
        for cycled in session.state.optimizer.param_groups:
            assert (cycled["betas"][0] if "betas" in cycled else cycled["momentum"]) != 0.9
        groups = read_record(session.save())["optimizers"]["model"]["groups"]
    assert [group["options"] for group in groups] == [{}, {}]
