"""Which modules are recomputed in the backward, and when."""

from functools import partial

import pytest
import torch
from torch import nn

from surestep.engine.model.activation_checkpointing import activation_checkpointing, select_modules


class Block(nn.Module):
    """A block that counts how often it is called."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.calls = nn.Linear(3, 3), nn.Linear(3, 3), 0

    def forward(self, x):
        self.calls += 1
        return self.b(self.a(x).tanh())


def blocks(count=4):
    return nn.Sequential(*[Block() for _ in range(count)])


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("on", ["0", "1", "2", "3"]),
        ("every 1", ["0", "1", "2", "3"]),
        ("every 2", ["0", "2"]),
        ("every 3", ["0", "3"]),
        ("1 1.a *.b", ["1", "0.b", "2.b", "3.b"]),
        ("[03]", ["0", "3"]),
    ],
)
def test_selected_modules_are_not_inside_each_other(choice, names):
    assert list(select_modules(blocks(), choice)) == names


@pytest.mark.parametrize("mode", ["train", "eval", "no_grad"])
def test_only_a_forward_of_training_is_recomputed_and_own_forwards_are_restored(mode):
    model = blocks(2)
    own = partial(Block.forward, model[1])
    model[1].forward = own
    model.train(mode != "eval")
    with activation_checkpointing(model, "on"):
        with torch.set_grad_enabled(mode != "no_grad"):
            outputs = model(torch.ones(2, 3))
        if mode != "no_grad":
            outputs.sum().backward()
    assert [block.calls for block in model] == [2 if mode == "train" else 1] * 2
    assert "forward" not in vars(model[0])
    assert model[1].forward is own
