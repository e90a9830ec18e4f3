import math

import pytest
import torch
from torch import nn

from surestep.engine.parallel.cargo import Cargo, Carrier


def arrived(said, ranks=None):
    """Let each rank say its numbers, and DDP divide by the ranks and add up, as it does."""
    ranks = len(said) if ranks is None else ranks
    carrier = Carrier(nn.Linear(2, 1), len(said[0]))
    cargo = Cargo(carrier.cargo, ranks)
    total = torch.zeros_like(carrier.cargo)
    for numbers in said:
        cargo.board(numbers)
        carrier.cargo.grad = None
        root, seed = cargo.root(torch.tensor(0.1))
        torch.autograd.backward(root, seed)
        total += carrier.cargo.grad * (1 / ranks)
    carrier.cargo.grad = total
    return cargo


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 7, 24, 100, 1023])
def test_whole_numbers_arrive_exactly_from_any_number_of_ranks(ranks):
    said = [[2**24 + 1 + rank, rank % 2, 4095 * 4097, 10**9] for rank in range(ranks)]
    assert arrived(said).landed() == [sum(each) for each in zip(*said, strict=True)]


@pytest.mark.parametrize("size", [1e-9, 1e-6, 1e-3, 1.0, 1e6])
def test_a_number_of_any_size_keeps_its_digits(size):
    said = [[0.3 * size, 7 / 9 * size], [1e-3 * size, 0.0], [123.45678 * size, 0.0]]
    sums = [sum(each) for each in zip(*said, strict=True)]
    assert arrived(said).landed() == pytest.approx(sums, rel=1e-11, abs=0)


def test_what_a_step_was_to_send_that_failed_is_forgotten():
    carrier = Carrier(nn.Linear(2, 1), 1)
    cargo = Cargo(carrier.cargo, 1)
    cargo.board([5.0])
    cargo.unload()
    torch.autograd.backward(*cargo.root(torch.tensor(1.0)))
    assert (float(cargo.loss_sum()), cargo.landed()) == (1.0, None)


@pytest.mark.parametrize("number", [math.nan, math.inf, -1.0, 2e12])
def test_what_cannot_be_sent_arrives_as_no_number_and_the_rest_as_it_is(number):
    sums = arrived([[number, 3.0], [1.0, 4.0]]).landed()
    assert math.isnan(sums[0])
    assert sums[1] == 7.0


def test_a_loss_that_is_not_finite_leaves_the_numbers_alone():
    carrier = Carrier(nn.Linear(2, 1), 1)
    cargo = Cargo(carrier.cargo, 1)
    cargo.board([5.0])
    torch.autograd.backward(*cargo.root(torch.tensor(math.nan)))
    assert math.isnan(cargo.loss_sum())
    assert cargo.landed() == [5.0]


def test_the_losses_of_micro_batches_add_up_and_numbers_travel_once():
    carrier = Carrier(nn.Linear(2, 1), 1)
    cargo = Cargo(carrier.cargo, 1)
    cargo.board([5.0])
    for loss in (1.0, 2.0, 4.0):
        torch.autograd.backward(*cargo.root(torch.tensor(loss)))
    assert (float(cargo.loss_sum()), cargo.landed(), cargo.landed()) == (7.0, [5.0], None)


def test_a_carrier_answers_as_its_model_and_lies_in_the_same_bucket():
    model = nn.Linear(2, 1, dtype=torch.float64)
    carrier = Carrier(model, 1)
    x = torch.ones(3, 2, dtype=torch.float64)
    assert torch.equal(carrier(input=x), model(x))
    assert carrier.cargo.dtype == torch.float64
    assert Carrier(model.to(torch.bfloat16), 1).cargo.dtype == torch.float32


def test_beside_complex_parameters_real_numbers_travel():
    model = nn.ParameterList([torch.zeros(2, dtype=torch.complex128)])
    assert Carrier(model, 1).cargo.dtype == torch.float64
