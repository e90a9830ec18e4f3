import torch

from surestep.engine.profile.oom import memory_snapshot
from tests import tiny


def test_tensors_in_lists_of_the_optimizer_state_are_counted():
    """As L-BFGS stores its history."""
    state, cpu = tiny.state_of(), torch.device("cpu")
    before = memory_snapshot(state, cpu)["optimizer"]
    first = next(iter(state.optimizer.state.values()))
    first["history"] = [torch.zeros(5), torch.zeros(7)]
    assert memory_snapshot(state, cpu)["optimizer"] == before + 4 * 12
