"""Checks that all ranks train the same: setup, weights, gradients and replicas."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from surestep.base.errors import ParallelError, TaskError
from surestep.config.duration import Duration, count_periods
from surestep.engine.batch import Batch
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.diagnose.preserve_step import preserve_state
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.distributed.rank_status import format_ranks
from surestep.engine.distributed.replica_check import find_mismatched
from surestep.engine.metrics.base import check_metrics_of_ranks
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import State, trainable_parameters
from surestep.engine.step.part import Part
from surestep.engine.step.train_step import StepContext, forward_backward
from surestep.record.io import to_jsonable
from surestep.trainer.config_diff import FIRST_SAMPLES, NOT_SET, SOME_SAMPLES
from surestep.trainer.planning import PreparedTask, TaskOrigin
from surestep.trainer.run_identity import describe_split, run_identity

_LISTED = 8  # names in a message
_OF_ONE_RANK = {  # these may differ between ranks
    "machine.device",
    "machine.threads",
    "recipe.path",
    "recipe.name",
    "decided.parallel.rank",
}
_START = "Start all ranks by one command, with the same files, packages and data on each machine."
_RANDOM_DATA = (
    "Data that is made at random must be the same on all ranks: call torch.manual_seed(0) before "
    "it is made, or make it in a recipe's function, which is called after seeding."
)
_SPLIT_STREAM = (
    "surestep shares out each batch, so every rank must read the full stream: remove what splits "
    "it by rank, such as split_by_node, split_dataset_by_node or torch.distributed.get_rank()."
)


def check_same_setup(world: Communicator, origin: TaskOrigin, planned: PreparedTask) -> None:
    """Raise a ParallelError unless all ranks have the same config, data, model, and a GPU each."""
    if world.size == 1:
        return
    check_metrics_of_ranks(planned.task.metrics)
    own = json.dumps(_known(origin, planned))
    digest = hashlib.blake2b(own.encode(), digest_size=16).hexdigest()
    device, ids = planned.plan.device, planned.system.cuda_ids
    gpu = ids[device.index or 0] if device.type == "cuda" and ids else ""
    gathered = [text.split(" ", 1) for text in world.all_gather_text(f"{digest} {gpu}")]
    _check_own_gpus([gpu for _, gpu in gathered])
    if len({digest for digest, _ in gathered}) > 1:
        ranks = [json.loads(text) for text in world.all_gather_text(own)]
        if text := describe_differences(ranks):
            raise ParallelError(text)


def _known(origin: TaskOrigin, planned: PreparedTask) -> dict[str, str]:
    """Return what must be the same on all ranks: short values by name."""
    identity = run_identity(origin, planned)
    identity.pop("config")  # what the options led to is compared
    described = identity.pop("validation")
    flat = {name: value for name, value in _flatten(identity) if name not in _OF_ONE_RANK}
    task, plan = planned.task, planned.plan
    if task.test is not None:
        described["test"] = describe_split(task.test, "test", task=task, plan=plan)
    for split, known in described.items():
        flat |= {f"data.{split} {name}": value for name, value in known.items()}
    for name, parameter in planned.model.named_parameters():
        flat[f"parameter {name}"] = str(parameter.dtype)
    return {name: _shorten(json.dumps(to_jsonable(value))) for name, value in flat.items()}


def _flatten(nested: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in nested.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _shorten(text: str) -> str:
    if len(text) <= 60:
        return text
    return f"{text[:40]}... ({hashlib.blake2b(text.encode(), digest_size=4).hexdigest()})"


def describe_differences(ranks: list[dict[str, str]]) -> str:
    """Return what differs between the values of ranks, and what to do; empty if nothing does."""
    lines, names = [], []
    for name in dict.fromkeys(name for values in ranks for name in values):
        by_value: dict[str, list[int]] = {}
        for rank, values in enumerate(ranks):
            if name in values or not name.startswith("code."):  # some ranks import more modules
                by_value.setdefault(values.get(name, NOT_SET), []).append(rank)
        if len(by_value) > 1:
            shown = "; ".join(f"{v} on rank {format_ranks(on)}" for v, on in by_value.items())
            lines.append(f"  {name.removeprefix('decided.')}: {shown}")
            names.append(name)
    if not lines:
        return ""
    more = f"\n  and {len(lines) - _LISTED} more" if len(lines) > _LISTED else ""
    hints = [_START]
    if any(name.endswith(SOME_SAMPLES) for name in names):
        hints.append(_RANDOM_DATA)
    if any(name.endswith(FIRST_SAMPLES) for name in names):
        hints.append(_SPLIT_STREAM)
    listed = "\n".join(lines[:_LISTED])
    return f"The ranks have different setups:\n{listed}{more}\n{' '.join(hints)}"


def _check_own_gpus(gpus: list[str]) -> None:
    """Check that no two ranks have a GPU with the same id, which NCCL does not support."""
    for gpu in set(gpus) - {""}:
        ranks = [rank for rank, other in enumerate(gpus) if other == gpu]
        if len(ranks) > 1:
            raise ParallelError(
                f"Ranks {format_ranks(ranks)} would all compute on one GPU ({gpu}), the only one "
                "that each of them sees. Start as many processes as there are GPUs (--nproc 1 for "
                "one), give each its own (srun --gpus-per-task=1), or list all GPUs in "
                "CUDA_VISIBLE_DEVICES."
            )


def check_same_weights(world: Communicator, model: nn.Module) -> None:
    """Raise a ParallelError unless a model starts with the same values on all ranks."""
    if world.size > 1 and (mismatched := find_mismatched(world, model)):
        raise ParallelError(
            "The model starts with different weights on some ranks: "
            f"{_describe_mismatched(mismatched)}. Its values must not depend on the rank, the time "
            "or the machine: call torch.manual_seed(0) before it is made, or let the Task's model "
            "be a function, which is called after seeding."
        )


def _describe_mismatched(ranks: Mapping[str, str]) -> str:
    name = next(iter(ranks))
    more = f", and so have {len(ranks) - 1} more parameters" if len(ranks) > 1 else ""
    return f"{name} has different values on rank {ranks[name]}{more}"


class CheckReplicas(Part):
    """Checks that all ranks have the same parameters.

    Args:
        world: the ranks.
        plan: the options of the run.
        every: the interval.
    """

    def __init__(self, world: Communicator, plan: Plan, every: Duration) -> None:
        self._world, self._done = world, -1
        self._by_epoch = every.unit == "epochs" and plan.steps_per_epoch is None
        self._period = every.amount if self._by_epoch else every.steps(plan.steps_per_epoch)

    def on_due(self, state: State) -> None:
        """Compare the parameters at the first log point after each interval.

        Raises:
            ParallelError: they differ.
        """
        progress = state.progress
        periods = count_periods(progress.epoch if self._by_epoch else progress.step, self._period)
        if periods <= self._done:
            return
        self._done = periods
        if mismatched := find_mismatched(self._world, state.model):
            raise ParallelError(
                f"The copies of the model are no longer the same after step {progress.step}: "
                f"{_describe_mismatched(mismatched)}. Something changes them on one rank alone: a "
                "callback or a hook, or a machine that computes incorrectly. Resume from an "
                "earlier checkpoint with a smaller parallel.replica_check_every to find the step."
            )


def warm_up_ddp(context: StepContext, loader: BatchLoader, plan: Plan) -> None:
    """Run a forward and a backward on several ranks, and restore the state.

    After its first backward DDP changes its buckets, and with them the order in which it sums. A
    run that resumes would sum its first step in a different order than one that never stopped.
    """
    batch = loader.move(next(loader.batches(0)))
    if loader.transform is not None:
        batch = loader.transform.preview(batch, 0)
    # With a static graph DDP learns from the first backward what is unused.
    finds_unused = plan.parallel_find_unused_parameters or plan.parallel_static_graph
    if context.strategy.copies_model and not finds_unused:
        check_no_unused_params(context, batch)
    with preserve_state(context):
        forward_backward(context, batch, 1.0)


def check_no_unused_params(context: StepContext, batch: Batch) -> None:
    """Raise a TaskError unless each parameter gets a gradient on each rank, as DDP expects."""
    strategy = context.strategy
    with preserve_state(context), strategy.sync_grads(when=False):
        forward_backward(context, batch, 1.0)
        trained = trainable_parameters(context.state.model)
        unused = [name for name, parameter in trained.items() if parameter.grad is None]
    by_rank = [json.loads(text) for text in strategy.world.all_gather_text(json.dumps(unused))]
    names = list(dict.fromkeys(name for unused in by_rank for name in unused))
    if names:
        listed = ", ".join(
            f"{name} (rank {format_ranks([r for r, on in enumerate(by_rank) if name in on])})"
            for name in names[:_LISTED]
        )
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        raise TaskError(
            f"No gradient reaches {listed}{more} in the first step, and DDP waits for the gradient "
            "of each parameter. Freeze what is never used (requires_grad_(False)) or remove it; "
            "if it is used in some steps only, set parallel.find_unused_parameters=True."
        )
