import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from surestep.engine.optim.param_roles import hidden_matrices, param_info, sparse_embeddings


class Net(nn.Module):
    """An embedding, a convolution, a hidden linear layer and a head."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 4, sparse=True)
        self.conv = nn.Conv1d(4, 4, 3)
        self.first = nn.Linear(4, 4)
        self.out = nn.Linear(4, 3)


def test_hidden_matrices_exclude_embeddings_convolutions_and_the_head():
    assert hidden_matrices(Net()) == ["first.weight"]


def test_frozen_matrix_is_not_a_hidden_matrix():
    net = Net()
    net.first.weight.requires_grad_(False)
    assert hidden_matrices(net) == []


def test_declared_output_embeddings_are_the_head():
    class Declared(Net):
        def get_output_embeddings(self):
            return self.first

    assert hidden_matrices(Declared()) == ["out.weight"]


def test_head_tied_to_an_embedding_is_an_embedding():
    net = Net()
    net.body, net.head = nn.Linear(4, 4), nn.Linear(4, 9, bias=False)
    net.head.weight = net.table.weight
    assert "head.weight" not in hidden_matrices(net)
    assert "table.weight" not in hidden_matrices(net)


@pytest.mark.parametrize("norm", [parametrizations.weight_norm, nn.utils.weight_norm])
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
def test_only_the_directions_of_a_weight_norm_are_a_matrix(norm):
    net = Net()
    for name in ("first", "table"):
        norm(getattr(net, name))
    (found,) = hidden_matrices(net)
    assert net.get_parameter(found).shape == (4, 4)


def test_only_trained_embeddings_with_sparse_gradients_are_sparse():
    net = Net()
    assert sparse_embeddings(net) == ["table.weight"]
    net.table.weight.requires_grad_(False)
    assert sparse_embeddings(net) == []


def test_param_info_describes_the_parameters_for_the_plan():
    assert param_info(Net()) == {
        "floating": True,
        "half": False,
        "hidden": ("first.weight",),
        "sparse": ("table.weight",),
        "dense": True,
        "scalars": (),
    }
    alone = nn.Embedding(3, 2, sparse=True, dtype=torch.cfloat)
    assert param_info(alone)["dense"] is False
    assert param_info(alone)["floating"] is False
    assert param_info(nn.Linear(2, 2).bfloat16())["half"] is True
    assert param_info(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).half()))["half"] is True
    alone.register_parameter("scale", nn.Parameter(torch.tensor(1.0)))
    assert param_info(alone)["scalars"] == ("scale",)
