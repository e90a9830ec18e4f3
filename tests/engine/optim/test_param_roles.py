import torch
from torch import nn

from surestep.engine.optim.param_roles import hidden_matrices, param_info, sparse_embeddings


class Net(nn.Module):
    """A table, a convolution, a recurrent layer and a head that was registered before it."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 4, sparse=True)
        self.conv = nn.Conv1d(4, 4, 3)
        self.first = nn.Linear(4, 4)
        self.out = nn.Linear(4, 3)


def test_hidden_matrices_are_neither_tables_nor_convolutions_nor_the_last_layer():
    assert hidden_matrices(Net()) == ["first.weight"]


def test_a_frozen_matrix_is_not_one():
    net = Net()
    net.first.weight.requires_grad_(False)
    assert hidden_matrices(net) == []


def test_a_model_that_declares_its_last_layer_is_believed():
    class Declared(Net):
        def get_output_embeddings(self):
            return self.first

    assert hidden_matrices(Declared()) == ["out.weight"]


def test_a_head_tied_to_a_table_is_a_table():
    net = Net()
    net.body, net.head = nn.Linear(4, 4), nn.Linear(4, 9, bias=False)
    net.head.weight = net.table.weight
    assert "head.weight" not in hidden_matrices(net)
    assert "table.weight" not in hidden_matrices(net)


def test_sparse_tables_are_those_that_say_so_and_are_trained():
    net = Net()
    assert sparse_embeddings(net) == ["table.weight"]
    net.table.weight.requires_grad_(False)
    assert sparse_embeddings(net) == []


def test_what_a_plan_must_know_of_a_model():
    assert param_info(Net()) == {
        "floating": True,
        "hidden": ("first.weight",),
        "sparse": ("table.weight",),
        "dense": True,
        "scalars": (),
    }
    alone = nn.Embedding(3, 2, sparse=True, dtype=torch.cfloat)
    assert param_info(alone)["dense"] is False
    assert param_info(alone)["floating"] is False
    alone.register_parameter("scale", nn.Parameter(torch.tensor(1.0)))
    assert param_info(alone)["scalars"] == ("scale",)
