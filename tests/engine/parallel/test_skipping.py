"""A fused optimizer that skips its first step does not change its state."""

import pytest
import torch

from surestep.engine.optim.registry import BUILT_IN as OPTIMIZERS
from tests import tiny
from tests.engine.parallel.test_single import give_gradients, single

FUSED = [name for name, each in OPTIMIZERS.items() if "fused" in each.signature]
TRAPS = [
    *((name, {}) for name in FUSED),
    ("sgd", {"momentum": 0.9}),
    ("sgd", {"momentum": 0.9, "nesterov": True}),
    ("adam", {"amsgrad": True}),
    ("adamw", {"amsgrad": True}),
    ("adagrad", {"initial_accumulator_value": 0.5, "lr_decay": 0.1}),
]


@pytest.mark.parametrize(("name", "options"), TRAPS)
def test_skipped_first_step_does_not_affect_later_steps(name, options):
    bad, good = torch.tensor(torch.nan), torch.tensor(1.0)
    states = []
    for losses in ([bad, bad, good, good], [good, good]):
        parallel, state = single(model=tiny.model(), optim={"name": name, "lr": 0.1, **options})
        assert type(parallel.guard).__name__ == "DeviceGuard"
        for index, loss in enumerate(losses):
            give_gradients(state.model, seed=len(losses) - index)
            parallel.step(loss, torch.tensor(1.0))
            if loss is bad:
                parallel.reset_guard()
        states.append(state)
    first, second = states
    assert torch.equal(tiny.weights(first.model), tiny.weights(second.model))
    pairs = zip(first.optimizer.state.values(), second.optimizer.state.values(), strict=True)
    for slots, others in pairs:
        assert all(torch.equal(slots[key], others[key]) for key in slots)


def test_sgd_with_dampening_uses_the_host_guard():
    optim = {"name": "sgd", "momentum": 0.9, "dampening": 0.5}
    parallel, state = single(model=tiny.model(), optim=optim)
    assert type(parallel.guard).__name__ == "HostGuard"
    assert not state.optimizer.state
    assert state.optimizer.param_groups[0]["fused"]
