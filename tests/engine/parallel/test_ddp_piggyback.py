import math

import pytest
import torch
from torch import nn

from surestep.engine.parallel.ddp import PiggybackModule, PiggybackScalars


def arrived(sent_by_rank, ranks=None):
    """Send the numbers of each rank, then average as DDP does."""
    ranks = len(sent_by_rank) if ranks is None else ranks
    module = PiggybackModule(nn.Linear(2, 1), len(sent_by_rank[0]) - 1)
    scalars = PiggybackScalars(module.scalars, ranks)
    total = torch.zeros_like(module.scalars)
    for numbers in sent_by_rank:
        scalars.send(*numbers)
        module.scalars.grad = None
        root, seed = scalars.root(torch.tensor(0.1))
        torch.autograd.backward(root, seed)
        total += module.scalars.grad * (1 / ranks)
    module.scalars.grad = total
    return scalars


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 7, 24, 100, 1023])
@pytest.mark.parametrize("items", [2**24 + 1, 0, 4095 * 4097, 10**9])
def test_integer_item_counts_are_summed_exactly_over_any_number_of_ranks(ranks, items):
    sent = [[items + rank] for rank in range(ranks)]
    assert arrived(sent).receive() == [sum(each) for each in zip(*sent, strict=True)]


@pytest.mark.parametrize("ranks", [2, 3, 24, 1023])
def test_request_of_one_rank_and_the_time_of_rank_0_reach_all_ranks(ranks):
    sent = [[5.0, float(rank == ranks - 1), 0.0 if rank else 12345.678] for rank in range(ranks)]
    _, requests, seconds = arrived(sent).receive()
    assert (requests, seconds) == (pytest.approx(1), pytest.approx(12345.678))
    assert arrived([[5.0, 0.0, 0.0]] * ranks).receive()[1:] == [0.0, 0.0]


@pytest.mark.parametrize("size", [1e-9, 1e-6, 1e-3, 1.0, 1e6])
def test_items_of_any_magnitude_are_summed_precisely(size):
    sent = [[0.3 * size], [1e-3 * size], [123.45678 * size], [0.0]]
    sums = [sum(each) for each in zip(*sent, strict=True)]
    assert arrived(sent).receive() == pytest.approx(sums, rel=1e-11, abs=0)


def test_clear_discards_the_numbers_of_a_failed_step():
    module = PiggybackModule(nn.Linear(2, 1), 0)
    scalars = PiggybackScalars(module.scalars, 1)
    scalars.send(5.0)
    scalars.clear()
    torch.autograd.backward(*scalars.root(torch.tensor(1.0)))
    assert (float(scalars.loss_sum()), scalars.receive()) == (1.0, None)


@pytest.mark.parametrize("number", [math.nan, math.inf, -1.0, 2e12])
def test_invalid_number_arrives_as_nan_and_others_are_exact(number):
    sums = arrived([[number, 3.0], [1.0, 4.0]]).receive()
    assert math.isnan(sums[0])
    assert sums[1] == 7.0


def test_nonfinite_loss_does_not_change_the_sent_numbers():
    module = PiggybackModule(nn.Linear(2, 1), 0)
    scalars = PiggybackScalars(module.scalars, 1)
    scalars.send(5.0)
    torch.autograd.backward(*scalars.root(torch.tensor(math.nan)))
    assert math.isnan(scalars.loss_sum())
    assert scalars.receive() == [5.0]


def test_losses_of_micro_batches_add_up_and_numbers_are_sent_once():
    module = PiggybackModule(nn.Linear(2, 1), 0)
    scalars = PiggybackScalars(module.scalars, 1)
    scalars.send(5.0)
    for loss in (1.0, 2.0, 4.0):
        torch.autograd.backward(*scalars.root(torch.tensor(loss)))
    assert (float(scalars.loss_sum()), scalars.receive(), scalars.receive()) == (7.0, [5.0], None)


def test_piggyback_module_has_the_outputs_and_dtype_of_its_model():
    model = nn.Linear(2, 1, dtype=torch.float64)
    module = PiggybackModule(model, 1)
    x = torch.ones(3, 2, dtype=torch.float64)
    assert torch.equal(module(input=x), model(x))
    assert module.scalars.dtype == torch.float64
    assert PiggybackModule(model.to(torch.bfloat16), 1).scalars.dtype == torch.float32


def test_scalars_beside_complex_parameters_are_real():
    model = nn.ParameterList([torch.zeros(2, dtype=torch.complex128)])
    assert PiggybackModule(model, 1).scalars.dtype == torch.float64
