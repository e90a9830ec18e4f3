"""Law 3 for streams: a run over a stream equals a plain loop over torch's DataLoader."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import surestep
from tests.laws.support.plain import distance, usual_loop
from tests.laws.support.tasks import mlp, rows, train

STEPS = 14


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(*rows(), strict=True)


def epochs(batch_size):
    """Yield batches of one pass after another over a DataLoader."""
    while True:
        yield from DataLoader(Stream(), batch_size)


def test_run_over_a_stream_equals_a_plain_loop(folder):
    plain, ours = mlp(), mlp()
    loss = nn.CrossEntropyLoss()
    norms = usual_loop(plain, loss, epochs(8), steps=STEPS)
    task = surestep.Task(ours, loss, Stream())
    train(task, folder(), batch_size=8, micro_batch_size=3, max_steps=STEPS)
    assert distance(plain, ours) <= 1e-6
    assert len(norms) == STEPS
    assert distance(plain, mlp()) > 1e-2


def test_evaluation_over_a_stream_equals_that_of_tensors(folder):
    torch.manual_seed(0)
    data = rows(41)
    val = {"tensors": data, "stream": lambda: zip(*data, strict=True)}
    options = {"max_steps": 1, "batch_size": 8, "validation": {"batch_size": 7}}
    task = surestep.Task(mlp(), nn.CrossEntropyLoss(), rows(), val=val)
    with surestep.prepare(
        task, surestep.Config(logging={"progress": "quiet"}, **options), run=folder()
    ) as session:
        found = session.evaluate()
    assert found["stream/loss"] == found["tensors/loss"]
