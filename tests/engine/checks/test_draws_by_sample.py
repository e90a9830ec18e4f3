"""What a sample draws does not depend on the other samples of the call."""

import random
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from surestep.engine.checks.draws_by_sample import DrawsBySample

X = torch.rand(6, 5, generator=torch.Generator().manual_seed(0))
OWN = torch.Generator()
PARTS = [range(6), range(1), range(1, 3), [5, 3]]
OF_SAMPLES = {
    "rand": lambda x: torch.rand(len(x), 4),
    "randn of 16 and more": lambda x: torch.randn(len(x), 20),
    "randint": lambda x: torch.randint(1000, (len(x),)),
    "two in turn": lambda x: torch.rand_like(x) - torch.rand_like(x),
    "in place": lambda x: torch.empty(len(x), 3).exponential_(),
    "in place, by sample": lambda x: torch.empty_like(x).bernoulli_(x),
    "time first": lambda x: torch.randn(3, len(x), 2).transpose(0, 1),
    "dropout": functional.dropout,
    "bernoulli": torch.bernoulli,
    "normal": lambda x: torch.normal(x, x + 1),
    "poisson": lambda x: torch.poisson(9 * x),
    "multinomial": lambda x: torch.multinomial(x, 2),
    "rrelu": lambda x: functional.rrelu(x - 0.5, training=True),
    "distribution": lambda x: torch.distributions.Gamma(x + 1, x + 1).sample(),
    "own generator": lambda x: torch.randn(x.shape, generator=OWN),
    "attention": lambda x: functional.scaled_dot_product_attention(
        *[x.view(-1, 5, 1)] * 3, dropout_p=0.5
    ),
}
OF_ALL = {
    "no samples": lambda x: x + torch.rand(5),
    "number of numpy": lambda x: x * np.random.random(),
    "number of Python": lambda x: x * random.random(),
}
OF_OTHERS = {
    "order": lambda x: x[torch.randperm(len(x))],
    "choice": lambda x: x[torch.multinomial(x.sum(1), 1)],
    "flat": lambda x: torch.rand(x.numel()).view_as(x),
    "numpy": lambda x: torch.from_numpy(np.random.random(x.shape)),
    "python": lambda x: torch.tensor([random.random() for _ in x]),
    "index": lambda x: x[torch.randint(len(x), ())],
}


def call_on_parts(function):
    draws = DrawsBySample(0, torch.device("cpu"))
    found = [draws.call("loss", rows, partial(function, X[rows])) for rows in PARTS]
    return found, draws.were_the_same("loss")


@pytest.mark.parametrize("name", [*OF_SAMPLES, *OF_ALL])
def test_sample_draws_the_same_in_each_part(name):
    before = OWN.get_state()
    (whole, *parts), are_same = call_on_parts((OF_SAMPLES | OF_ALL)[name])
    assert are_same
    assert all(torch.equal(whole[rows], part) for rows, part in zip(PARTS[1:], parts, strict=True))
    assert torch.equal(OWN.get_state(), before)


@pytest.mark.parametrize("function", OF_SAMPLES.values(), ids=OF_SAMPLES)
def test_samples_draw_different_numbers(function):
    draws = DrawsBySample(0, torch.device("cpu"))
    found = draws.call("loss", range(50), lambda: function(X[:1].repeat(50, 1)))
    assert not all(torch.equal(row, found[0]) for row in found)


@pytest.mark.parametrize("function", OF_OTHERS.values(), ids=OF_OTHERS)
def test_draws_that_depend_on_other_samples_are_noted(function):
    assert not call_on_parts(function)[1]


def test_calls_without_draws_are_the_same():
    found, are_same = call_on_parts(nn.Linear(5, 2))
    assert are_same
    assert [len(each) for each in found] == list(map(len, PARTS))
