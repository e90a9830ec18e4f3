import torch

from surestep.engine.profile.oom import memory_snapshot
from tests import tiny


def test_what_an_optimizer_holds_in_lists_is_counted():
    """As L-BFGS holds its history."""
    state, cpu = tiny.state_of(), torch.device("cpu")
    before = memory_snapshot(state, cpu)["optimizer"]
    first = next(iter(state.optimizer.state.values()))
    first["history"] = [torch.zeros(5), torch.zeros(7)]
    assert memory_snapshot(state, cpu)["optimizer"] == before + 4 * 12
