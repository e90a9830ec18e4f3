"""The memory of a step, traced: numbers by hand, and the same with fake and with real tensors."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from surestep.base.errors import ConfigError
from surestep.engine.profile.step_memory import KINDS, StepMemory
from surestep.engine.profile.workspace import describe_call, measure_workspace
from surestep.trainer import memory
from surestep.trainer.memory import (
    estimate_evaluation,
    estimate_step,
    find_largest,
    find_largest_eval_batch,
    find_largest_micro_batch,
)
from tests import tiny

WIDE = 64
SCALARS = 40  # bytes of losses and of factors, at most


def wide() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, WIDE), nn.Tanh(), nn.Dropout(0.5), nn.Linear(WIDE, 3))


def as_dict(found: StepMemory) -> dict[str, int]:
    return {kind: getattr(found, kind) for kind in KINDS}


def test_memory_of_a_linear_layer_is_that_by_hand():
    def loss(outputs, targets):
        return outputs.mean()

    x = torch.randn(24, 4)
    planned = tiny.plan(
        {"model": nn.Linear(4, 3, bias=False), "loss": loss, "train": (x, x[:, :3])},
        optim={"name": "sgd", "lr": 0.1},
    )
    found = estimate_step(planned)
    assert (found.weights, found.buffers, found.optimizer, found.average) == (4 * 12, 0, 0, 0)
    assert found.inputs == 4 * 8 * (4 + 3)
    outputs = 4 * 8 * 3
    assert 0 <= found.activations - outputs <= SCALARS
    # In the backward: the gradient of the outputs, and that of the weights.
    assert 0 <= found.temporaries + found.gradients - (outputs + 4 * 12) <= SCALARS
    assert found.peak == sum(as_dict(found).values())
    assert found.kept == pytest.approx(outputs, abs=SCALARS)


@pytest.mark.parametrize("size", [1, 8])
@pytest.mark.parametrize(
    "options",
    [
        {"optim": {"name": "adamw"}},
        {"optim": {"name": "sgd", "momentum": 0.9}, "average": {"kind": "ema"}},
        {"precision": "bf16", "activation_checkpointing": "0 3"},
        {"precision": "fp16"},
    ],
    ids=["adamw", "average", "bf16", "fp16"],
)
def test_fake_tensors_give_the_memory_of_real_ones(monkeypatch, size, options):
    planned = tiny.plan({"model": wide()}, **options)
    real = estimate_step(planned, micro_batch_size=size)
    monkeypatch.setattr(memory, "_SMALL", 0)
    fake = estimate_step(planned, micro_batch_size=size)
    assert not real.not_known
    assert (as_dict(fake), fake.by_module) == (as_dict(real), real.by_module)


@pytest.mark.parametrize("small", [0, 10**6], ids=["fake", "real"])
def test_an_estimate_changes_nothing(monkeypatch, small):
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
            self.rnn = nn.GRU(8, 3)
            self.calls, self.scale = 0, torch.ones(3)

        def forward(self, x):
            self.calls += 1
            self.last = self.rnn(self.net(x)[None])[0][0]
            return self.last * self.scale

    monkeypatch.setattr(memory, "_SMALL", small)
    net: Any = Counting().eval()
    x, y = tiny.data()
    planned = tiny.plan({"model": net, "val": (x, y)})
    before, attributes, numbers = tiny.weights(net), dict(vars(net)), torch.get_rng_state()
    drawn = np.random.get_state()[1].copy()
    assert not estimate_step(planned).not_known
    assert not estimate_evaluation(planned, 4).not_known
    assert torch.equal(tiny.weights(net), before)
    assert vars(net) == attributes
    assert all(type(p) is nn.Parameter and p.grad is None for p in net.parameters())
    assert torch.equal(torch.get_rng_state(), numbers)
    assert (np.random.get_state()[1] == drawn).all()
    assert net.rnn._flat_weights[0] is net.rnn.weight_ih_l0


def test_the_largest_micro_batch_is_the_last_that_fits():
    planned = tiny.plan({"model": wide()})
    peaks = [0] + [estimate_step(planned, micro_batch_size=size).peak for size in range(1, 9)]
    for limit in (*peaks, peaks[1] - 1, 10**9):
        found = find_largest_micro_batch(planned, limit)
        assert peaks[found] <= limit
        assert found == 8 or peaks[found + 1] > limit


def test_a_micro_batch_of_one_sample_is_not_needed_with_batch_norm():
    planned = tiny.plan({"model": nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))})
    limit = estimate_step(planned, micro_batch_size=3).peak
    assert find_largest_micro_batch(planned, limit) in (3, 4)


def test_the_largest_batch_of_an_evaluation_is_the_last_that_fits():
    planned = tiny.plan({"model": wide(), "val": tiny.data(30)})
    limit = estimate_evaluation(planned, 11).peak
    assert find_largest_eval_batch(planned, limit) == 11
    assert find_largest_eval_batch(planned, 10**9) == 30


@pytest.mark.parametrize("most", [1, 2, 7, 64, 1000])
def test_the_largest_size_is_found_for_any_growth(most):
    for growth in (
        lambda size: 100 + 7 * size,
        lambda size: max(500, 11 * size),
        lambda size: 100 + size * size,
        lambda size: 1000 * -(-size // 16),
    ):
        for limit in (0, 99, 107, 500, 1000, 5000, 10**9):
            fits = [size for size in range(1, most + 1) if growth(size) <= limit]
            found = find_largest(growth, most, limit)
            assert found == max(fits, default=0)


def test_the_largest_of_the_first_batches_is_traced():
    samples = [(torch.zeros(length, 4), 0) for length in (1, 3, 9, 2, 4, 1, 1, 1)]

    def padded(chosen):
        longest = max(len(x) for x, _ in chosen)
        rows = [nn.functional.pad(x, (0, 0, 0, longest - len(x))) for x, _ in chosen]
        return torch.stack(rows), torch.tensor([y for _, y in chosen])

    class Mean(nn.Linear):
        def forward(self, x):
            return super().forward(x.mean(1))

    parts = {"model": Mean(4, 3), "train": samples, "collate_fn": padded}
    planned = tiny.plan(parts, batch_size=2, data={"shuffle": False})
    assert estimate_step(planned).inputs == 2 * (9 * 4 * 4 + 8)


@pytest.mark.parametrize("small", [0, 10**6], ids=["fake", "real"])
def test_what_a_convolution_has_inside_is_counted(monkeypatch, small):
    monkeypatch.setattr(memory, "_SMALL", small)
    net = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.Flatten(), nn.Linear(16 * 64, 3))
    x, y = torch.randn(16, 16, 8, 8), torch.zeros(16, dtype=torch.long)
    found = estimate_step(tiny.plan({"model": net, "train": (x, y)}))
    options = ([16], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, True, True])
    call = describe_call(
        torch.ops.aten.convolution_backward.default, (x[:8], x[:8], net[0].weight, *options)
    )
    assert found.workspace == measure_workspace(call) > 0


def test_a_model_that_reads_values_is_traced_with_real_tensors(monkeypatch):
    class Reading(nn.Linear):
        def forward(self, x):
            return super().forward(x[x[:, 0] > x[:, 0].min().item()])

    class OnPart(nn.Module):
        def forward(self, outputs, targets):
            return nn.functional.cross_entropy(outputs, targets[: len(outputs)])

    planned = tiny.plan({"model": Reading(4, 3), "loss": OnPart()})
    expected = estimate_step(planned)
    assert not expected.not_known
    monkeypatch.setattr(memory, "_SMALL", 0)
    assert estimate_step(planned) == expected


def test_a_step_that_fails_is_not_known_and_says_why():
    class Never(nn.Linear):
        def forward(self, x):
            raise ZeroDivisionError("of mine")

    planned = tiny.plan({"model": Never(4, 3)})
    found = estimate_step(planned)
    assert found.not_known == "the first batch fails: ZeroDivisionError: of mine"
    assert (found.weights, found.gradients, found.optimizer) == (60, 60, 128)
    with pytest.raises(ConfigError, match=r"not known: .* of mine\. Set micro_batch_size to a num"):
        find_largest_micro_batch(planned, 10**9)
    with pytest.raises(ConfigError, match="no validation data"):
        find_largest_eval_batch(planned, 10**9)
