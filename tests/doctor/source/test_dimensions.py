"""The shapes that the source shows are those that the tensors have."""

import time
from pathlib import Path

import pytest

from surestep.doctor.source.dimensions import count_samples, dim_of, shape_of
from surestep.doctor.source.files import Project, parse_source
from surestep.doctor.source.interpreter import follow
from surestep.doctor.source.operators import find_operations
from surestep.doctor.source.values import Constant, Operation

HEADER = """
import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
x, y = torch.randn(6, 4), torch.zeros(6)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
loader = DataLoader(TensorDataset(x, y), batch_size=3)
first = next(iter(loader))
"""


def argument_of_print(expression):
    script = f"{HEADER}for a, b in loader:\n    print({expression})\n"
    program = follow(parse_source(Path("script.py"), script.encode()), Project())
    events = program.traces[0].events
    return next(e.call for e in events if e.call is not None and e.call.path == "print").args[0]


@pytest.mark.parametrize(
    "expression",
    [
        *("x", "y", "net(x)", "net(a)", "a", "b", "b.float()", "net(x).squeeze(1)", "x[0]"),
        *("x[:, 0]", "x[:, None]", "x[1:, 2]", "y.unsqueeze(1)", "y.unsqueeze(-1)", "y[None]"),
        *("x.view(-1, 2)", "x.reshape(24)", "x.flatten()", "x.flatten(1)", "x.sum()", "x.mean(1)"),
        *("x.sum(dim=1)", "x.sum(-1, keepdim=True)", "x.argmax(dim=1)", "net(x) - y", "x > 0"),
        *("(net(x) > 0.5) == y", "-x", "2 * x", "torch.tensor([1.0, 2.0])", "torch.ones((2, 3))"),
        *("torch.tensor([[1], [2]])", "torch.randint(3, (6,))", "torch.arange(4)", "x.squeeze()"),
        *(
            "torch.full((2, 1), 0.5)",
            "nn.Embedding(5, 2)(torch.randint(5, (3,)))",
            "torch.sum(x, 1)",
        ),
        *("nn.Flatten()(x)", "torch.flatten(x, 1)", "torch.randn(size=(2, 1))", "x.to('cpu').data"),
    ],
)
def test_shape_is_that_of_the_tensor(expression):
    names = {}
    exec(HEADER, names)
    names["a"], names["b"] = names["first"]
    real = tuple(eval(expression, names).shape)
    shape = shape_of(argument_of_print(expression))
    assert shape is not None
    assert len(shape) == len(real)
    assert all(size in (None, known) for size, known in zip(shape, real, strict=True))


@pytest.mark.parametrize(
    "expression",
    ["model(x)", "x[mask]", "torch.randn(size)", "torch.randn(*size)", "x.squeeze(axis)", "x.T"],
)
def test_uncertain_shape_is_not_claimed(expression):
    assert shape_of(argument_of_print(expression)) is None


def test_value_that_is_used_many_times_is_followed_once():
    nested = "x"
    for _ in range(8):
        nested = f"(lambda v: v + v * v)({nested})"
    started = time.process_time()
    shape_of(argument_of_print(nested))
    assert time.process_time() - started < 2  # 3 ** 8 visits of each take longer


@pytest.mark.parametrize(
    ("expression", "count"),
    [
        ("TensorDataset(x, y)", 6),
        ("TensorDataset(torch.randn(n, 4))", None),
        ("torchvision.datasets.MNIST('data', train=False)", None),  # not imported
        ("data", None),
    ],
)
def test_samples_of_a_data_set_are_counted(expression, count):
    assert count_samples(argument_of_print(expression)) == count


def test_operations_that_share_their_operands_are_found_once():
    value = Constant(1.0)
    for _ in range(16):
        value = Operation("+", (value, value))
    assert len(list(find_operations(value))) == 16


@pytest.mark.parametrize(
    "expression",
    ["x.mean(1)", "torch.mean(x, 1)", "x.amin(dim=1)", "numpy.mean(x, axis=1)", "numpy.mean(x, 1)"],
)
def test_dimension_of_a_call_is_given_by_position_or_by_name(expression):
    assert dim_of(argument_of_print(expression)).value == 1


def test_dimension_may_follow_other_arguments_or_be_left_out():
    assert dim_of(argument_of_print("x.topk(2, 1)"), 1).value == 1
    assert dim_of(argument_of_print("torch.topk(x, 2, 1)"), 1).value == 1
    assert dim_of(argument_of_print("x.mean()")) is None
