"""Replicas of parameters are compared bit for bit; threads act as the ranks."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from surestep.engine.distributed.replica_check import find_mismatched
from tests import tiny


class Ranks:
    """Ranks that exchange texts."""

    def __init__(self, size):
        self.texts, self.barrier, self.calls = [""] * size, Barrier(size, timeout=10), 0

    def world(self, rank):
        ranks = self

        class World:
            def all_gather_text(self, text):
                ranks.texts[rank] = text
                ranks.calls += rank == 0
                ranks.barrier.wait()
                found = list(ranks.texts)
                ranks.barrier.wait()
                return found

        return World()


def compare(*models):
    ranks = Ranks(len(models))
    with ThreadPoolExecutor(len(models)) as pool:
        worlds = map(ranks.world, range(len(models)))
        (first, *others) = pool.map(find_mismatched, worlds, models)
    assert all(found == first for found in others)
    return first, ranks.calls


def next_up(model, name, index=0):
    with torch.no_grad():
        values = model.get_parameter(name).view(-1)
        values[index] = torch.nextafter(values[index], torch.tensor(torch.inf, dtype=values.dtype))
    return model


def test_equal_replicas_exchange_one_hash():
    assert compare(tiny.model(), tiny.model(), tiny.model()) == ({}, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parameter_that_differs_in_one_bit_is_named_with_its_ranks(dtype):
    models = [tiny.model().to(dtype) for _ in range(4)]
    next_up(models[2], "0.weight", 5)
    next_up(models[1], "3.bias")
    next_up(models[3], "3.bias", 2)
    assert compare(*models) == ({"0.weight": "2", "3.bias": "1, 3"}, 2)
