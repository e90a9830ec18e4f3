import pytest
import torch
from torch import nn

from surestep.engine.parallel.wrap_policy import in_order, select_wrap_units


class Block(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2)
        self.wide = nn.Linear(width, width)


class Net(nn.Module):
    """Two blocks between an embedding and a head, which may share their weight."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4)
        self.layers = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 9, bias=False)
        if tied:
            self.head.weight = self.table.weight


LARGE = ("layers.0.attention", "layers.1.attention")
INSIDE = ("layers.0.attention", "layers.0.wide", "layers.1.attention", "layers.1.wide")


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("auto", ("layers.0", "layers.1")),
        ("class Block", ("layers.0", "layers.1")),
        ("class Block Embedding", ("table", "layers.0", "layers.1")),
        ("size 36", ("table", *LARGE, "head")),
        ("size 90", ("layers.0", "layers.1")),
        ("size 18", ("table", *INSIDE, "head")),
        ("name layers.*.wide", ("layers.0.wide", "layers.1.wide")),
        ("name layers.*", ("layers.0", "layers.1")),
        ("name layers.* layers.1.w*", ("layers.0", "layers.1", "layers.1.wide")),
    ],
)
def test_blocks_are_chosen_by_class_size_and_name(choice, names):
    found = select_wrap_units(Net(), choice)
    assert (found.names, found.problem) == (names, "")
    assert found.text.startswith(f"{len(names)} ")


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ("class Blok", "Block (2)"),
        ("class Net", "'Net' matches no part of the model"),
        (
            "class Linear Blokk",
            "'Blokk' matches no part of the model. Did you mean 'Block'? Its classes are: ",
        ),
        ("class Block Net", "'Net' matches no part of the model"),
        ("name layers.* heat", "'heat' matches no part of the model. Did you mean 'head'? Its"),
        ("name layers.* foo.*", "'foo.*' matches no part of the model"),
        ("size 1e9", "matches no part of the model"),
        ("name layer.*", "Did you mean"),
        ("name layers", "matches no part"),
        ("class NonDynamicallyQuantizableLinear", "matches no part"),
    ],
)
def test_choice_that_matches_nothing_lists_the_classes(choice, words):
    problem = select_wrap_units(Net(), choice).problem
    assert words in problem
    assert choice in problem
    assert "MultiheadAttention (2)" in problem


def test_tied_modules_are_gathered_with_the_model():
    found = select_wrap_units(Net(tied=True), "class Block Linear Embedding")
    assert found.names == ("layers.0", "layers.0.wide", "layers.1", "layers.1.wide")
    assert "table, head share a weight" in found.text
    problem = select_wrap_units(Net(tied=True), "name head").problem
    assert "What shares a weight is gathered with the model" in problem


def test_small_models_without_blocks_are_split_by_size():
    model = nn.Sequential(nn.Linear(9, 9), nn.Linear(9, 1), nn.Linear(1, 9))
    assert select_wrap_units(model, "auto").names == ("0", "2")
    assert "the full model at once" in select_wrap_units(nn.Linear(3, 3), "auto").text


@pytest.mark.parametrize(
    ("parameter", "words"),
    [
        (nn.Parameter(torch.tensor(1.0)), "own has no dimension"),
        (nn.Parameter(torch.zeros(3, dtype=torch.complex64)), "own is complex"),
        (nn.Parameter(torch.zeros(3, 2).T), "own is not contiguous"),
        (nn.UninitializedParameter(), "own has no shape before the first batch"),
    ],
)
def test_parameter_that_cannot_be_sharded_is_named(parameter, words):
    model = Net()
    model.own = parameter
    assert words in select_wrap_units(model, "auto").problem


def test_inner_blocks_come_first():
    model = Net()
    inner, outer = in_order(model, ("layers.0", "layers.0.wide"))
    assert (inner, outer) == (model.layers[0].wide, model.layers[0])
