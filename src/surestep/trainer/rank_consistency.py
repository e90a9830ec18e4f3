"""What ranks can share of a Task: streams that all of them read alike, metrics to put together."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from surestep.base.errors import DataError, ParallelError, TaskError
from surestep.config.duration import Duration, count_periods
from surestep.engine.batch import Batch
from surestep.engine.data.dataset import count_samples, dataset_of
from surestep.engine.data.open_source import dataset_fingerprint
from surestep.engine.data.stream import StreamReader, fingerprint, is_stream
from surestep.engine.diagnose.rerun import preserve_state
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.distributed.rank_status import format_ranks
from surestep.engine.distributed.replica_check import find_mismatched
from surestep.engine.metrics.distributed import check_metrics
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import State, trainable_parameters
from surestep.engine.step.train_step import StepContext, forward_backward
from surestep.engine.task.task import Task
from surestep.record.io import to_jsonable
from surestep.trainer.config_diff import CODE, FIRST, LOOKED_AT, NOT_SAID
from surestep.trainer.planning import PreparedTask, TaskOrigin, data_splits
from surestep.trainer.run_identity import run_identity


def check_shared(world: Communicator, task: Task, plan: Plan) -> None:
    """Check that ranks can share the metrics and the streams, of which all must read the same.

    Raises:
        TaskError: what ranks have seen of a metric cannot be put together.
        DataError: a stream begins otherwise on another rank.
    """
    if world.size == 1:
        return
    check_metrics(task.metrics)
    begins = {
        split: fingerprint(StreamReader(dataset_of(data, split), plan.seed))
        for split, data in data_splits(task).items()
        if is_stream(data)
    }
    each = [json.loads(text) for text in world.all_gather_text(json.dumps(begins))]
    for rank, others in enumerate(each):
        for split, other in others.items():
            if other != each[0].get(split, other):
                raise DataError(
                    f"The {split} stream begins with other samples on rank {rank} than on rank 0, "
                    "so it is split among the ranks already. surestep shares out each batch, and "
                    "every rank reads the whole stream: take out what looks at the rank, such as "
                    "split_by_node, split_dataset_by_node or torch.distributed.get_rank()."
                )


_MOST = 8  # lines of a message
_OF_A_MACHINE = ("machine.device", "machine.threads", "recipe.path", "recipe.name")
_OF_A_RANK = ("decided.parallel.rank",)
_DIGESTS = (f"data.{LOOKED_AT}", f"data.{FIRST}")  # of the training data
_DRAWN = (
    "Data that is made at random must be the same on all ranks: call torch.manual_seed(0) before "
    "it is made, or make it in a recipe's function, which is called after seeding."
)
_START = "Start all ranks by one command, with the same files, packages and data on each machine."


def check_same_setup(world: Communicator, origin: TaskOrigin, planned: PreparedTask) -> None:
    """Check that all ranks have the same config, code, data and model.

    Raises:
        ParallelError: they have not; what differs, and on which ranks. Or two have one GPU.
        TaskError, DataError: a metric or a stream cannot be shared.
    """
    if world.size == 1:
        return
    check_shared(world, planned.task, planned.plan)
    own = {name: _text(value) for name, value in _known(origin, planned)}
    digest = hashlib.blake2b(json.dumps(own, sort_keys=True).encode(), digest_size=16)
    each_said = [
        text.split(" ", 1)
        for text in world.all_gather_text(f"{digest.hexdigest()} {_gpu(planned)}")
    ]
    check_own_gpus([gpu for _, gpu in each_said])
    if len({known for known, _ in each_said}) == 1:
        return
    each = [json.loads(text) for text in world.all_gather_text(json.dumps(own))]
    if any(_differences(each)):  # not where one rank only has imported more than another
        raise ParallelError(describe_differences(each))


def _gpu(planned: PreparedTask) -> str:
    """Return which GPU this rank computes on; nothing where it is the CPU."""
    device, known = planned.plan.device, planned.system.cuda_ids
    return known[device.index or 0] if device.type == "cuda" and known else ""


def check_own_gpus(gpus: Sequence[str]) -> None:
    """Check that no two ranks compute on one GPU, which NCCL cannot do.

    Args:
        gpus: of each rank in turn, by what no other has; empty on a CPU.

    Raises:
        ParallelError: two do; which.
    """
    ranks: dict[str, list[int]] = {}
    for rank, gpu in enumerate(gpus):
        ranks.setdefault(gpu, []).append(rank)
    for gpu, which in ranks.items():
        if gpu and len(which) > 1:
            raise ParallelError(
                f"Ranks {format_ranks(which)} would all compute on one GPU ({gpu}), since each "
                "sees that "
                "one alone. Start as many processes as there are GPUs (--nproc 1 for one), give "
                "each its own (srun --gpus-per-task=1), or let CUDA_VISIBLE_DEVICES name all of "
                "them."
            )


def describe_differences(each: list[dict[str, str]]) -> str:
    """Return what is not the same, of what each rank is known by, and what to do.

    Args:
        each: of each rank in turn, values by name.
    """
    lines = list(_differences(each))
    left = f"\n  and {len(lines) - _MOST} more" if len(lines) > _MOST else ""
    shown = "\n".join(lines[:_MOST])
    names = {name for one in each for name in one}
    drawn = any(_digested(name) and len({one.get(name) for one in each}) > 1 for name in names)
    hint = f"{_DRAWN} {_START}" if drawn else _START
    return f"The ranks do not train the same:\n{shown}{left}\n{hint}"


def check_same_weights(world: Communicator, model: nn.Module) -> None:
    """Check that a model begins with the same values on all ranks.

    Raises:
        ParallelError: it does not; which parameters, and on which ranks.
    """
    found = {} if world.size == 1 else find_mismatched(world, model)
    if found:
        named = [f"  {name}: other values on rank {ranks}" for name, ranks in found.items()]
        left = f"\n  and {len(named) - _MOST} more" if len(named) > _MOST else ""
        raise ParallelError(
            "The model begins with other weights on some ranks than on the rest:\n"
            + "\n".join(named[:_MOST])
            + f"{left}\nIts values must not depend on the rank, the time or the machine: call "
            "torch.manual_seed(0) before it is made, or let the Task's model be a function, which "
            "is called after seeding."
        )


class ReplicaDriftCheck:
    """Compares the copies of the parameters on all ranks, now and then, at a log point.

    Args:
        world: the ranks.
        state: what is trained.
        plan: knows how long an epoch is.
        every: how often.
    """

    def __init__(self, world: Communicator, state: State, plan: Plan, *, every: Duration) -> None:
        self._world = world
        self._state = state
        per_epoch = plan.steps_per_epoch
        self._by_epoch = every.unit == "epochs" and per_epoch is None
        scale = per_epoch if every.unit == "epochs" and per_epoch is not None else 1
        self._period = every.amount * scale
        self._done = -1

    def __call__(self) -> None:
        """Compare them where a period is over since the last time.

        Raises:
            ParallelError: on all ranks, where they differ on one.
        """
        place = self._state.progress
        periods = count_periods(place.epoch if self._by_epoch else place.step, self._period)
        if periods <= self._done:
            return
        self._done = periods
        found = find_mismatched(self._world, self._state.model)
        if found:
            name, ranks = next(iter(found.items()))
            more = f", and so have {len(found) - 1} more parameters" if len(found) > 1 else ""
            raise ParallelError(
                f"The copies of the model are no longer the same after step {place.step}: {name} "
                f"has other values on rank {ranks}{more}. Something changes them on one rank "
                "alone: a callback or a hook, or a machine that computes wrongly. Go on from a "
                "checkpoint before that, with a smaller parallel.replica_check_every to find the "
                "step."
            )


def check_no_unused_params(parts: StepContext, batch: Batch) -> None:
    """Check that each parameter gets a gradient on each rank: DDP waits for those that do not.

    Raises:
        TaskError: one does not; which, and on which ranks.
    """
    parallel = parts.strategy
    with preserve_state(parts), parallel.sync_grads(when=False):
        forward_backward(parts, batch, 1.0)
        trained = trainable_parameters(parts.state.model)
        unused = [name for name, each in trained.items() if each.grad is None]
    said = [json.loads(text) for text in parallel.world.all_gather_text(json.dumps(unused))]
    ranks = {name: [r for r, one in enumerate(said) if name in one] for one in said for name in one}
    if ranks:
        named = [f"{name} (rank {format_ranks(on)})" for name, on in ranks.items()]
        left = f" and {len(ranks) - _MOST} more" if len(ranks) > _MOST else ""
        raise TaskError(
            f"No gradient reaches {', '.join(named[:_MOST])}{left} in the first step, and "
            "DDP waits for the gradient of each parameter. Freeze what is never used "
            "(requires_grad_(False)) or take it out of the model; where it is used in some steps "
            "only, say parallel.find_unused_parameters=True."
        )


def _known(origin: TaskOrigin, planned: PreparedTask) -> Iterator[tuple[str, Any]]:
    """Yield what a rank is known by, as flat names."""
    found = run_identity(origin, planned)
    found.pop("model")  # told by its parameters
    code = found.pop("code")
    for name, value in _flat(found):
        if name not in (*_OF_A_MACHINE, *_OF_A_RANK):
            yield _SHOWN.get(name, name.removeprefix("decided.").removeprefix("config.")), value
    for name, known in code.items():
        yield f"{CODE}{name}", known
    yield from _measured(planned)
    for name, module in planned.model.named_modules():
        yield f"module {name}" if name else "model", _kind(module)
    for name, parameter in planned.model.named_parameters():
        if not is_lazy(parameter):
            yield f"parameter {name}", f"{tuple(parameter.shape)} {parameter.dtype}"


def _kind(module: nn.Module) -> str:
    """Return what a module is; with its options where it is one of torch's, which tell no more."""
    kind = type(module)
    of_torch = kind.__module__.startswith("torch.nn.modules.")
    return f"{kind.__qualname__}({module.extra_repr() if of_torch else ''})"


def _measured(planned: PreparedTask) -> Iterator[tuple[str, Any]]:
    """Yield what the data is known by that is measured; how a stream begins says `check_shared`."""
    task, plan = planned.task, planned.plan
    for split, data in data_splits(task).items():
        if split != "train":
            samples = count_samples(data, split)
            yield f"data.{split} samples", "a stream" if samples is None else samples
            if not is_stream(data):
                yield f"{split}/{LOOKED_AT}", dataset_fingerprint(data, split, task=task, plan=plan)


_SHOWN = {"recipe.sha256": "recipe file", "machine.torch": "torch", "machine.surestep": "surestep"}


def _flat(nested: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in nested.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _text(value: Any) -> str:
    text = json.dumps(to_jsonable(value))
    if len(text) <= 60:
        return text
    return f"{text[:40]}... ({hashlib.blake2b(text.encode(), digest_size=4).hexdigest()})"


def _differences(each: list[dict[str, str]]) -> Iterator[str]:
    """Yield a line for each thing that is not the same on all ranks."""
    for name in dict.fromkeys(name for one in each for name in one):
        values: dict[str, list[int]] = {}
        for rank, one in enumerate(each):
            if name in one or not name.startswith(CODE):  # a rank may import more than others
                values.setdefault(one.get(name, NOT_SAID), []).append(rank)
        split = _digested(name)
        if len(values) > 1 and split:
            others = [rank for rank, one in enumerate(each) if one.get(name) != each[0].get(name)]
            yield f"  {split} data: other values on rank {format_ranks(others)} than on rank 0"
        elif len(values) > 1 and name.startswith(CODE):
            (first, *_), *rest = values.values()
            others = [rank for ranks in rest for rank in ranks]
            yield f"  {name}: another file on rank {format_ranks(others)} than on rank {first}"
        elif len(values) > 1:
            said = "; ".join(
                f"{value} on rank {format_ranks(ranks)}" for value, ranks in values.items()
            )
            yield f"  {name}: {said}"


def _digested(name: str) -> str:
    """Return which data a name holds a digest of; nothing where it holds something else."""
    split, _, looked_at = name.rpartition("/")
    return "training" if name in _DIGESTS else split if looked_at == LOOKED_AT else ""
