"""Cases for two ranks, unchanged and with a broken law, all forked from one process.

A mutation is a plausible mistake, applied by monkeypatch on each rank. `test_mutations.py` holds
the checks that must detect them. `starter.py` calls `main`, which writes the results of each rank
to a folder.
"""

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist

import surestep
from surestep.base.errors import SurestepError
from surestep.engine.data import batch_loader as loader
from surestep.engine.data.samplers import basic
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.parallel import fsdp
from surestep.engine.parallel.ddp import DDPStrategy, PiggybackScalars
from surestep.engine.plan import batching as order
from surestep.engine.rng import derive_seed
from surestep.engine.step_outcome import Gradients
from surestep.record.checkpoint import reader as opened
from surestep.record.checkpoint import writer as together
from surestep.record.checkpoint.writer import CheckpointFiles
from surestep.trainer import rank_consistency as alike
from tests.multi_rank import deepspeed_mutations, failures
from tests.multi_rank.cases import accuracy, data, half, masked, net, task, trained
from tests.multi_rank.forked import run_forked
from tests.multi_rank.fsdp import whole_weights

Patch = pytest.MonkeyPatch
Found = dict[str, Any]

MANY = 103  # samples to evaluate: two ranks split them unevenly
FSDP: Any = {"parallel": {"strategy": "fsdp"}, "weights": whole_weights}
DDP: Any = {"parallel": {}}
SHORT = {"timeout_s": 3.0, "start_timeout_s": 20.0}  # if a rank waits for one that never comes


def ranked(options: Found) -> Found:
    """Return the options, with those of several ranks if there are several."""
    return options if "RANK" in os.environ else {}


def cut(folder: Path) -> Found:
    """Train on masked targets, split unevenly; one rank has no sample of the last batch."""
    options = {"data": {"shuffle": False}, "micro_batch_size": 3, "max_steps": 6}
    return trained(folder, task(masked()), **options, **ranked(DDP))


def shuffled(folder: Path) -> Found:
    return trained(folder, task(), max_steps=4, **ranked(DDP))


def measured(folder: Path) -> Found:
    """Evaluate samples that the ranks cannot split evenly."""
    made = surestep.Task(
        *(net, torch.nn.CrossEntropyLoss()),
        **{"train": data(), "val": data(samples=MANY), "metrics": {"accuracy": accuracy}},
    )
    return trained(folder, made, max_steps=2, **ranked(DDP))


def clipped_by_parts(folder: Path) -> Found:
    return trained(folder, task(), max_grad_norm=0.01, max_steps=6, **ranked(FSDP))


def gone_on_by_parts(folder: Path) -> Found:
    """Save sharded state after 7 steps; resume in a new session."""
    dist.init_process_group("gloo")  # of both sessions
    half(folder, parallel=FSDP["parallel"])
    return trained(folder, task(), max_steps=9, **FSDP)


def saved_by_parts(folder: Path) -> Found:
    """Save sharded state; record when each file was synced and the folder renamed."""
    noted: Found = {"synced": {}, "published": None}
    own_sync, own_publish = os.fsync, together.publish

    def synced(descriptor: int) -> None:
        own_sync(descriptor)
        noted["synced"][Path(os.readlink(f"/proc/self/fd/{descriptor}")).name] = time.monotonic()

    def published(temporary: Path, final: Path) -> None:
        noted["published"] = time.monotonic()
        own_publish(temporary, final)

    with Patch.context() as patch:
        patch.setattr(os, "fsync", synced)
        patch.setattr(together, "publish", published)
        half(folder, parallel=FSDP["parallel"])
    (path,) = (folder / "checkpoints").iterdir()
    return {**noted, "files": sorted(each.name for each in path.glob("*.safetensors"))}


class StopOnLast(surestep.Callback):
    """Requests a stop after step 3, on the last rank only."""

    def on_step(self, state, outcome):
        return surestep.Request.STOP if failures.rank() == 1 and outcome.step == 3 else None


def stopped(folder: Path) -> Found:
    config = surestep.Config(max_steps=8, batch_size=20, logging={"progress": "quiet"}, **DDP)
    with surestep.prepare(task(), config, run=folder, callbacks=[StopOnLast()]) as session:
        return {"steps": [each.step for each in session.steps()]}


def trouble(folder: Path, name: str) -> Found:
    """Train with a fault on one rank; return the error that all ranks must raise."""
    try:
        failures.train(folder, name)
    except SurestepError as error:
        return {"told": f"{type(error).__name__}: {error}"}
    return {"told": "nothing"}


CASES: dict[str, Callable[[Path], Found]] = {
    **{"cut": cut, "shuffled": shuffled, "measured": measured, "stopped": stopped},
    **{"clipped by parts": clipped_by_parts, "saved by parts": saved_by_parts},
    "by parts": lambda folder: trained(folder, task(), max_steps=9, **FSDP),
    "gone on by parts": gone_on_by_parts,
    "by zero": deepspeed_mutations.by_zero,
    **{name: partial(trouble, name=name) for name in ("pushed", "other options")},
}


class Mutation(NamedTuple):
    """A law broken on purpose.

    Attributes:
        law: its number.
        case: the case that must detect it.
        mutate: breaks it on this rank.
        ends: text of the error that ends the run; "" if the run continues.
    """

    law: int
    case: str
    mutate: Callable[[Patch], None]
    ends: str = ""


def instead(owner: Any, name: str, other: Any) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(owner, name, other)


def of_this_rank(_: DDPStrategy, batch: Any, __: Any) -> Any:
    """Assume that the other ranks have as many items as this one."""
    return batch._replace(items=batch.items * dist.get_world_size() or 1.0)


def synced_but_last(patch: Patch, own: Callable = DDPStrategy.sync_grads) -> None:
    """Sync the wrong gradients; the replicas, which then diverge, are not compared."""
    patch.setattr(DDPStrategy, "sync_grads", lambda self, *, when: own(self, when=not when))
    patch.setattr(alike, "find_mismatched", lambda *_: {})


def of_something(
    self: DDPStrategy, loss_sum: torch.Tensor, items: float, own: Any = DDPStrategy.backward
) -> None:
    """Skip the backward of a rank without items."""
    if loss_sum.detach():
        own(self, loss_sum, items)


def keep_divisor(_: DDPStrategy, gradients: Gradients, items: float) -> Gradients:
    return gradients._replace(items=items)


def padded(self: order.BatchLayout, first: int, end: int) -> Any:
    """Give all ranks the same number of samples, some of them twice."""
    samples, size = end - first, self.micro_batch_size
    largest = -(-samples // self.ranks)
    begin = min(first + largest * self.rank, end - largest)
    for start in range(begin, begin + largest, size):
        yield start, min(start + size, begin + largest)


def order_of_ranks(samples: int, seed: int, epoch: int) -> torch.Tensor:
    place = derive_seed("order", seed, epoch, dist.get_world_size())
    return torch.randperm(samples, generator=torch.Generator().manual_seed(place))


def asked_by_first(patch: Patch) -> None:
    """Send only the request of rank 0."""
    kept = "wanted by this rank"
    wanted = property(
        lambda self: vars(self).setdefault(kept, set()) if self.is_first else set(),
        lambda self, value: vars(self).update({kept: value}),
    )
    patch.setattr(Communicator, "requests", wanted, raising=False)


def heeded_alone(patch: Patch) -> None:
    """Fulfil on each rank only its own request."""
    kept, sent = "wanted by this rank", "sent by this rank"

    def take(self: Communicator, value: set[str]) -> None:
        vars(self).update({sent: vars(self).get(kept, set()), kept: value})

    wanted = property(lambda self: vars(self).setdefault(kept, set()), take)
    agreed = property(lambda self: set(vars(self).get(sent, ())), lambda *_: None)
    patch.setattr(Communicator, "requests", wanted, raising=False)
    patch.setattr(Communicator, "agreed", agreed, raising=False)


def of_first_alone(written: CheckpointFiles, own: Callable = CheckpointFiles.sync) -> None:
    if failures.rank() == 0:
        own(written)


def last_alone(
    scalars: PiggybackScalars, loss_sum: Any, own: Callable = PiggybackScalars.root
) -> Any:
    """Send the values of the last micro-batch, and nothing of the earlier ones."""
    root, seed = own(scalars, loss_sum)
    scalars.parameter.grad = None
    return root, seed


def from_the_start(tensor: Any, own: Callable = opened.shard_extent) -> Any:
    """Use the shard of rank 0 for each rank."""
    offset, shape, is_first_copy = own(tensor)
    return tuple(0 for _ in offset), shape, is_first_copy


def blind_to(field: str, own: Callable = alike._known) -> Callable[..., Any]:
    return lambda *args: {name: v for name, v in own(*args).items() if not name.endswith(field)}


MUTATIONS: dict[str, Mutation] = {
    "the divisor is of this rank alone": Mutation(
        1, "cut", instead(DDPStrategy, "count_items", of_this_rank)
    ),
    "the first guess of the items is the last": Mutation(
        1, "cut", instead(DDPStrategy, "_divide_again", keep_divisor)
    ),
    "the loss of a micro-batch takes the place of the one before": Mutation(
        1, "cut", instead(PiggybackScalars, "root", last_alone)
    ),
    "all backwards but the last are synced": Mutation(1, "cut", synced_but_last),
    "a sample that a rank borrows counts": Mutation(
        1, "cut", instead(loader, "as_empty", lambda micro: micro)
    ),
    "an empty rank goes not backward": Mutation(
        1, "cut", instead(DDPStrategy, "backward", of_something), ends="mismatch|Error"
    ),
    "each rank clips by the norm of its part": Mutation(
        1, "clipped by parts", partial(deepspeed_mutations.unsummed, module=fsdp)
    ),
    "the order depends on the number of ranks": Mutation(
        1, "shuffled", instead(basic, "epoch_permutation", order_of_ranks)
    ),
    "an evaluation is padded": Mutation(
        1, "measured", instead(order.BatchLayout, "micro_batches", padded)
    ),
    "each rank reads the first part": Mutation(
        2, "gone on by parts", instead(opened, "shard_extent", from_the_start)
    ),
    "the others do not sync what they wrote": Mutation(
        7, "saved by parts", instead(CheckpointFiles, "sync", of_first_alone)
    ),
    "what the first rank wants is all that counts": Mutation(10, "stopped", asked_by_first),
    "what a rank wants counts there alone": Mutation(
        10,
        "stopped",
        heeded_alone,
        ends="cannot continue|gave up|collective mismatch",
    ),
    "copies are never compared": Mutation(
        10, "pushed", instead(alike, "find_mismatched", lambda *_: {})
    ),
    "the start is blind to the learning rate": Mutation(
        10, "other options", instead(alike, "_known", blind_to("optim.lr"))
    ),
    **{
        name: Mutation(law, "by zero", how)
        for name, (law, how) in deepspeed_mutations.BROKEN.items()
    },
}


def run(folder: Path, name: str) -> None:
    """Run a case, with or without a mutation; write the results of this rank."""
    torch.set_num_threads(1)
    mutation = MUTATIONS.get(name)
    with Patch.context() as patch:
        if mutation is not None:
            mutation.mutate(patch)
            if mutation.ends:
                DDP["parallel"].update(SHORT)
        case = CASES[name if mutation is None else mutation.case]
        torch.save(case(folder / name), folder / f"{name}-{failures.rank()}.pt")


def main(folder: Path) -> None:
    acts = {name: partial(run, folder, name) for name in (*CASES, *MUTATIONS)}
    run_forked(folder, acts)
