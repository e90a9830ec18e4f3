import pytest
import torch

from surestep.base.errors import CheckpointError
from surestep.record.checkpoint.read import load_checkpoint
from surestep.record.checkpoint.write import save_checkpoint
from tests import tiny


class Counting(torch.optim.SGD):
    """Puts a count into each group with its first step, as some optimizers of others do."""

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


class InTensor(Keeping):
    def keep(self):
        self.param_groups[0]["count"] = torch.ones(())


def state(kind, steps):
    return tiny.state_of(make=lambda parameters: kind(parameters, lr=0.1), steps=steps)


def test_a_count_that_came_with_the_first_step_goes_on(tmp_path):
    path = save_checkpoint(tmp_path, state(Counting, steps=3))
    fresh = state(Counting, steps=0)
    load_checkpoint(path, fresh)
    assert fresh.optimizer.param_groups[0]["count"] == 3


@pytest.mark.parametrize(("kind", "what"), [(InState, "'all'"), (InTensor, "'count'")])
def test_state_of_no_parameter_is_refused_and_not_lost(tmp_path, kind, what):
    with pytest.raises(CheckpointError, match=f"{kind.__name__} keeps .*{what}, which belongs"):
        save_checkpoint(tmp_path, state(kind, steps=1))
