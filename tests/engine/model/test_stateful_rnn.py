"""The state of a recurrent model: a row for each lane, in training and in eval mode."""

import pytest
import torch
from torch import nn

from surestep import StatefulRNN
from surestep.base.errors import TaskError


class Sums(nn.Module):
    """Adds its inputs to the state."""

    def forward(self, x, state):
        return state + x, state + x


def sums(lanes=3):
    return StatefulRNN(Sums(), torch.tensor([[10.0]]), lanes=lanes)


def call(net, x, lanes, first=()):
    given = torch.tensor([float(value) for value in x])[:, None]
    resets = torch.tensor([lane in first for lane in lanes])
    return net(given, torch.tensor(lanes), resets).flatten().tolist()


def test_each_lane_continues_from_its_own_state_or_from_the_start():
    net = sums()
    assert call(net, [1, 2, 3], [0, 1, 2], first=(0, 1, 2)) == [11, 12, 13]
    assert call(net, [1], [2]) == [14]
    assert call(net, [1, 1], [2, 0]) == [15, 12]  # in any order
    assert call(net, [5, 5], [1, 0], first=(1,)) == [15, 17]
    assert net.state_0.flatten().tolist() == [17, 15, 15]


def test_eval_mode_begins_with_the_state_of_training_and_has_its_own():
    net = sums(2)
    call(net, [1, 2], [0, 1], first=(0, 1))
    net.eval()
    with torch.inference_mode():
        assert call(net, [1, 1], [0, 1]) == [12, 13]
    with torch.no_grad():
        assert call(net, [1, 1], [0, 1]) == [13, 14]
        assert call(net, [0], [1], first=(1,)) == [10]
    net.train()
    assert net.state_0.flatten().tolist() == [11, 12]
    assert call(net, [1, 1], [0, 1]) == [12, 13]


@pytest.mark.parametrize("dim", [0, 1])
def test_states_of_a_tuple_have_their_lanes_in_one_dimension(dim):
    class Pair(nn.Module):
        def forward(self, x, states):
            return x, tuple(state + 1 for state in states)

    sizes = [1, 4] if dim == 0 else [4, 1, 2]
    start = (torch.zeros(sizes), torch.ones(sizes))
    net = StatefulRNN(Pair(), start, lanes=3, dim=dim)
    net(torch.zeros(2), torch.tensor([2, 0]), torch.tensor([True, True]))
    for index in (0, 1):
        rows = getattr(net, f"state_{index}").movedim(dim, 0).flatten(1)[:, 0]
        assert rows.tolist() == [index + 1, index, index + 1]


def test_start_of_several_lanes_is_rejected():
    with pytest.raises(TaskError, match="size 1 in dimension 0"):
        StatefulRNN(Sums(), torch.zeros(2, 1), lanes=2)
