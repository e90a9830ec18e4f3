"""Whether sequences of random numbers are independent, and what a run draws."""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import surestep
from tests import tiny

CELLS = 8
# Chi-squared of 49 degrees of freedom, above which a table of independent numbers has a probability
# of 3e-7.
MOST = 114.8

# As low bits and as high bits of the words that a generator gives.
INTEGERS = {
    "torch": lambda: int(torch.randint(CELLS, ())),
    "numpy": lambda: int(np.random.randint(CELLS)),
    "python": lambda: random.randrange(CELLS),
}
SHARES = {
    "torch": lambda: int(torch.rand((), dtype=torch.float64) * CELLS),
    "numpy": lambda: int(np.random.rand() * CELLS),
    "python": lambda: int(random.random() * CELLS),
}

Place = tuple[str, ...]
Draws = dict[Place, Sequence[int]]


def draw(forms: dict[str, Callable[[], int]] = INTEGERS) -> list[int]:
    """Draw one cell with each library."""
    return [function() for function in forms.values()]


def by_library(place: Place, rows: Sequence[Sequence[int]]) -> Draws:
    """Return the columns of rows of `draw` by (library, *place)."""
    columns = zip(*rows, strict=True)
    return {(library, *place): column for library, column in zip(INTEGERS, columns, strict=True)}


def is_dependent(a: Any, b: Any) -> bool:
    """Whether a table of two sequences of cells is too unlikely if they are independent."""
    counts = np.bincount(a * CELLS + b, minlength=CELLS**2)
    counts = counts.reshape(CELLS, CELLS)
    expected = counts.sum(1, keepdims=True) * counts.sum(0, keepdims=True) / counts.sum()
    return bool(((counts - expected) ** 2 / expected).sum() > MOST)


def find_dependent(sequences: dict[Any, Sequence[int]]) -> list[tuple[Any, Any]]:
    """Return the pairs of sequences that depend on each other."""
    arrays = {name: np.asarray(sequence) for name, sequence in sequences.items()}
    pairs = combinations(arrays, 2)
    return [pair for pair in pairs if is_dependent(arrays[pair[0]], arrays[pair[1]])]


class DrawnSamples(Dataset[tuple[Tensor, Tensor]]):
    """Samples of what each library draws."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.tensor(draw()), torch.zeros(1)


class DrawnStream(IterableDataset[tuple[Tensor, Tensor]]):
    """The same as a stream, which workers share."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        info = get_worker_info()
        workers, number = (1, 0) if info is None else (info.num_workers, info.id)
        for index in range(number, self.size, workers):
            yield torch.tensor(draw()), torch.full((1,), float(index))  # distinguishes the shards


class DrawingModel(nn.Module):
    """A model that draws in its forward."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)  # all ranks start with the same weights
        self.linear, self.rows = nn.Linear(1, 1), list[list[int]]()

    def forward(self, x: Tensor) -> Tensor:
        """Note a draw of each library."""
        self.rows.append(draw())
        out: Tensor = self.linear(x[:, :1].float())
        return out


SETS = ("val", "far")


def draws_of_run(
    folder: Path,
    size: int = 401,
    *,
    stream: bool = False,
    workers: int = 0,
    manual: bool = False,
    ranks: int = 1,
) -> Draws:
    """Train two epochs and evaluate two sets; return the draws by library, function and pass.

    Args:
        folder: of the run.
        size: how many samples each epoch and set has on this rank.
        stream: whether the training data is a stream.
        workers: that load the data.
        manual: whether the step is one of the Task, with noise.
        ranks: that train together.
    """
    model, noise = DrawingModel(), list[int]()
    rows: dict[str, list[list[int]]] = {"load": [], "inputs": [], "transform": []}

    def inputs(batch: Any) -> Any:
        rows["inputs"].append(draw())
        rows["load"].append(batch[0][0].tolist())
        return batch

    def transform(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        rows["transform"].append(draw())
        return x, y

    def step(manual_step: surestep.ManualStep) -> None:
        for micro in manual_step.micro_batches():
            noise.append(int(manual_step.rand(micro, 1) * CELLS))
            loss = manual_step.model(micro.args[0]).square().mean()
            manual_step.backward(loss, micro)
        manual_step.step("model")

    made = (DrawnStream if stream else DrawnSamples)(size * ranks)
    sets = {name: DrawnSamples(size * ranks) for name in SETS}
    parts: dict[str, Any] = {"step": step} if manual else {}
    if not manual and ranks == 1:  # a transform of the global batch makes each rank load all of it
        parts = {"batch_transform": transform}
    task = surestep.Task(model, nn.MSELoss(), train=made, val=sets, inputs=inputs, **parts)
    config = tiny.config(
        epochs=2,
        batch_size=ranks,
        data={"shuffle": False, "num_workers": workers},
        validation={"batch_size": 1},
        doctor={"check_data": "off"},
    )
    with surestep.prepare(task, config, run=folder) as session:
        for drawn in (*rows.values(), model.rows):
            drawn.clear()  # of the checks
        for _ in session.steps():
            pass
        session.evaluate()
    found: Draws = {}
    for place, drawn in (rows | {"model": model.rows}).items():
        passes = ("epoch 0", "epoch 1", *(() if place == "transform" else SETS))
        if place == "transform" and "batch_transform" not in parts:
            continue
        assert len(drawn) == len(passes) * size, (place, len(drawn))
        for number, name in enumerate(passes):
            found |= by_library((place, name), drawn[number * size :][:size])
    if noise:
        found |= {("noise", "epoch 0"): noise[:size], ("noise", "epoch 1"): noise[size:]}
    return found
