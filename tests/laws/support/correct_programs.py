"""Correct programs of many kinds, whose laws must hold: recipes, and tasks with one feature."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import surestep
from surestep.laws.proof import Proof
from surestep.laws.prove import prove_laws
from surestep.laws.recipe_task import RecipeTask
from surestep.recipes.load import call_recipe, load
from tests import tiny
from tests.laws.support.manual_step_tasks import actor_critic_task, wgan_task
from tests.laws.support.planted_programs import CORRECT, Net, Rows, make

RECIPES = (
    *("spiral", "digits", "tabular", "imbalanced", "chars", "segment", "finetune", "distill"),
    *("gan", "hf", "images"),
)
MINUTES = 6.0


class Drawn(Rows):
    """Adds noise of the global generators, which loading seeds."""

    def read(self, index: int) -> Tensor:
        """Add noise."""
        return self.x[index] + 0.1 * torch.randn(4)


class Named(Dataset[dict[str, Tensor]]):
    """Samples that are dicts."""

    def __init__(self) -> None:
        self.x, self.y = tiny.data(64)

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": self.x[index], "labels": self.y[index]}


class Ragged(Dataset[tuple[Tensor, Tensor]]):
    """Sequences of several lengths."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.arange(2 + index % 5) % 7, torch.tensor(index % 3)


def pad(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return a batch padded with zeros."""
    x = nn.utils.rnn.pad_sequence([one for one, _ in samples], batch_first=True)
    return x, torch.stack([one for _, one in samples])


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """A stream that saves how far it is."""

    def __init__(self) -> None:
        self.x, self.y = tiny.data(64)
        self.at = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while self.at < 64:
            self.at += 1
            yield self.x[self.at - 1], self.y[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        """Return the number of samples that were read."""
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue after them."""
        self.at = state["at"]


class Bag(nn.Module):
    """Sums embeddings, without those of padding."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(7, 8, padding_idx=0), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens) to (batch, 3)."""
        return self.last(self.table(x).sum(1))


class Recurrent(nn.Module):
    """An LSTM over the features."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(1, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 4) to (batch, 3)."""
        return self.last(self.lstm(x.unsqueeze(-1))[0][:, -1])


class Attention(nn.Module):
    """A transformer layer with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 4) to (batch, 3)."""
        return self.last(self.layer(x.unsqueeze(1))[:, 0])


class CountsInBuffer(Net):
    """Counts its training forwards in a buffer, which checkpoints have."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def between(self, hidden: Tensor) -> Tensor:
        """Count, and scale by nothing."""
        if self.training:
            self.seen += 1
        return hidden


class Tied(nn.Module):
    """Two layers with one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 4) to (batch, 3)."""
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Counting(surestep.Callback):
    """Counts the steps, and saves its count."""

    def __init__(self) -> None:
        self.steps = 0

    def on_step(self, state: Any, result: Any) -> None:
        """Count."""
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the count."""
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the count."""
        self.steps = state["steps"]


def normed() -> nn.Sequential:
    """Return a network with BatchNorm and dropout."""
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)
    )


def numbers() -> tuple[Tensor, Tensor]:
    """Return rows and numbers (64, 1)."""
    x, _ = tiny.data(64)
    return x, x.sum(1, keepdim=True)


def first_program() -> surestep.Task:
    """Make the first program of docs/migrating.md."""
    torch.manual_seed(0)
    x, y = torch.randn(600, 4), torch.randint(2, (600,))
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    return surestep.Task(
        net, nn.CrossEntropyLoss(), train=(x[:500], y[:500]), val=(x[500:], y[500:])
    )


def prove_recipe(name: str) -> Proof:
    """Prove every law of a built-in recipe."""
    options = {"batch_size": 8} if name == "finetune" else {}  # an epoch must have two batches
    call = call_recipe(load(name), options, {})
    return prove_laws(
        RecipeTask(call), call.config, callbacks=call.recipe.callbacks, minutes=MINUTES
    )


def prove(
    make_task: Callable[[], surestep.Task],
    callbacks: Callable[[], list[surestep.Callback]] = list,
    **options: Any,
) -> Proof:
    """Prove every law of a task."""
    config = tiny.config(**options)
    return prove_laws(make_task, config, callbacks=callbacks(), minutes=MINUTES)


def list_tasks() -> Iterator[tuple[str, Callable[[], Proof]]]:
    """Yield programs by name, each with what proves it."""
    for name, correct in CORRECT.items():
        yield name, partial(prove, correct)
    plain, numeric = make(), make(lambda: nn.Linear(4, 1), train=numbers(), val=None, loss="mse")
    yield "the first program of a migration", partial(prove, first_program, batch_size=32)
    yield "BatchNorm and dropout", partial(prove, make(normed))
    yield "noise of the global generators", partial(prove, make(data=Drawn))
    yield "dicts as samples", partial(prove, make(lambda: ByName(), data=Named, val=None))
    yield (
        "padded sequences",
        partial(
            prove, make(Bag, data=Ragged, val=None, collate_fn=pad), data={"group_by_length": False}
        ),
    )
    yield "an LSTM", partial(prove, make(Recurrent))
    yield "a transformer layer", partial(prove, make(Attention))
    yield "a count in a buffer", partial(prove, make(CountsInBuffer))
    yield "tied weights", partial(prove, make(Tied))
    yield "a callback with a state", partial(prove, plain, lambda: [Counting()])
    yield "a regression", partial(prove, numeric)
    yield (
        "a DataLoader",
        partial(prove, make(train=DataLoader(Rows(), 8, shuffle=True)), batch_size=None),
    )
    yield (
        "a stream with a state",
        partial(prove, lambda: tiny.task(train=Stream()), batch_size=4, max_steps=12),
    )
    yield "an average of weights", partial(prove, plain, average={"kind": "ema", "decay": 0.9})
    yield (
        "a cosine schedule with warmup",
        partial(prove, plain, schedule={"name": "cosine", "warmup": "2 steps"}),
    )
    yield "clipping", partial(prove, plain, max_grad_norm=0.1)
    yield "micro-batches", partial(prove, plain, micro_batch_size=3)
    yield "bf16", partial(prove, plain, precision="bf16")
    yield "fp16", partial(prove, plain, precision="fp16")
    yield "a frozen layer", partial(prove, plain, optim={"lr": 0.1, "groups": ["first freeze"]})
    yield (
        "layers that thaw",
        partial(prove, plain, optim={"lr": 0.1, "groups": ["first freeze='3 steps'"]}),
    )
    yield "a plateau", partial(prove, plain, schedule={"name": "reduce_on_plateau", "patience": 0})
    yield "an order in storage", partial(prove, plain, data={"shuffle": False})
    yield (
        "a drawn sampler",
        partial(prove, make(sampler=surestep.samplers.weighted([1.0, 2.0] * 32))),
    )
    yield "a WGAN in manual steps", partial(prove, wgan_task, max_steps=12)
    yield "an actor and a critic", partial(prove, actor_critic_task, max_steps=12)


class ByName(nn.Module):
    """A model that gets x by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 4) to (batch, 3)."""
        return self.layer(x)


PROGRAMS = dict(list_tasks()) | {name: partial(prove_recipe, name) for name in RECIPES}
