"""data.group_by_length, which measures the lengths from the samples."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

import surestep
from surestep.base.errors import DataError
from surestep.engine.data.samplers.length import measure_length
from tests.tiny import config, weights

LENGTHS = [1 + (7 * index) % 11 for index in range(24)]
SAMPLES = [(torch.full((length,), index % 5), index % 3) for index, length in enumerate(LENGTHS)]


@pytest.mark.parametrize(
    ("sample", "length"),
    [
        ((torch.zeros(5, 2), 1), 5),
        ((torch.zeros(5), torch.zeros(7), torch.zeros(9)), 7),
        ({"input_ids": [1, 2, 3], "label": 4}, 3),
        (({"a": torch.zeros(2), "b": 1}, torch.zeros(9)), 2),
        (torch.zeros(4), 4),
        (("some text", 0), 9),
    ],
)
def test_length_is_that_of_the_longest_input(sample, length):
    assert measure_length(sample) == length


def test_sample_without_a_length_is_an_error():
    with pytest.raises(DataError, match=r"tuple of Tensor, int. Give Task\(sampler="):
        measure_length((torch.tensor(1.0), 2, 3))


class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(5, 4), nn.Linear(4, 3)

    def forward(self, tokens):
        return self.last(self.table(tokens).mean(dim=1))


def pad(samples):
    tokens, targets = zip(*samples, strict=True)
    return pad_sequence(list(tokens), batch_first=True), torch.tensor(targets)


def train(run, options, **parts):
    torch.manual_seed(0)
    task = surestep.Task(
        model=Mean(), loss=nn.CrossEntropyLoss(), train=SAMPLES, collate_fn=pad, **parts
    )
    session = surestep.prepare(task, config(**{"batch_size": 4, "epochs": 2, **options}), run=run)
    with session:
        for _ in session.steps():
            pass
    return weights(session.model)


def test_option_trains_as_the_sampler_of_these_lengths(tmp_path):
    grouped = {"data": {"group_by_length": True}}
    by_option = train(tmp_path / "a", grouped)
    by_sampler = train(tmp_path / "b", {}, sampler=surestep.samplers.by_length(LENGTHS))
    assert torch.equal(by_option, by_sampler)
    assert not torch.equal(by_option, train(tmp_path / "c", {}))
