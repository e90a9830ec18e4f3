"""Load a checkpoint into a state or a model: verified first, and nothing moves until all fits."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from surestep.base.errors import CheckpointError
from surestep.engine.buffers import empty_buffers, every_buffer, restore_buffers
from surestep.engine.distributed.shards import ShardedStateProvider, TensorMeta, is_model_sharded
from surestep.engine.model.frozen_weights import fingerprint
from surestep.engine.model.param_patterns import unwrap_module
from surestep.engine.state.loss_spikes import SpikeDetector
from surestep.engine.state.state import BestMetric, Progress, State, Stateful, StepCounts
from surestep.engine.task.init_weights import summarize_names
from surestep.record.checkpoint.encoding import decode_states, put_together
from surestep.record.checkpoint.errors import checkpoint_error
from surestep.record.checkpoint.manifest import RECORD
from surestep.record.checkpoint.optimizer_state import load_states, match_optimizer_states
from surestep.record.checkpoint.reader import CheckpointReader, open_checkpoint
from surestep.record.checkpoint.staging import BUFFERS

_NONE: Mapping[str, str] = {}


def load_checkpoint(path: Path, state: State) -> None:
    """Load a checkpoint into the state, in place.

    Raises:
        DamagedError: it is not what was written; the state is then as it was.
        CheckpointError: it does not fit this model or optimizer; the state is then as it was.
    """
    load_into_state(open_checkpoint(path), state)


def load_into_state(found: CheckpointReader, state: State) -> None:
    """Load a checkpoint that was verified into the state, in place.

    Raises:
        CheckpointError: it does not fit this model or optimizer; the state is then as it was.
    """
    prepare_load(found, state)()


def prepare_load(found: CheckpointReader, state: State) -> Callable[[], None]:
    """Read a checkpoint that was verified; return what then loads it into the state, in place.

    Of what ranks share, each reads its own boxes.

    Raises:
        CheckpointError: it does not fit this model or optimizer.
    """
    record = found.record
    place, counts = Progress(**record["progress"]), StepCounts(**record["counts"])
    weights = _fitting_weights(found, state.model, state.base, state.keeper)
    optimizer_states = match_optimizer_states(found, state)
    declared, buffers = decode_states(found), _fitting_buffers(found, state)
    averaged: dict[str, Tensor] | None = None
    updates = state.average.n_updates(place.steps_taken) if state.average is not None else 0
    begins = updates and "average" not in found.manifest.tensors  # there was none until now
    if state.average is not None and updates and not begins:
        averaged = found.tensors("average", state.average.tensors)
        _check_types(found, averaged, state.average.tensors)

    def load() -> None:
        with _declared_states(found, state, declared):
            load_rest()

    def load_rest() -> None:
        if averaged is not None and state.average is not None:
            state.average.load(averaged, place.steps_taken)
        _load_weights(found, state.model, weights, state.keeper)
        restore_buffers(state.model, state.built, buffers)
        if state.average is not None and begins:
            state.average.begin(place.steps_taken)
        load_states(found, state, optimizer_states)
        if record["scaler"]:
            # How the scale moves is an option, whose value of now counts.
            moved = {name: record["scaler"][name] for name in ("scale", "_growth_tracker")}
            state.scaler.load_state_dict({**state.scaler.state_dict(), **moved})
        state.progress, state.counts, state.best = place, counts, BestMetric(**record["best"])
        vars(state.plateau).update(record["plateau"])  # in place: the rate looks at it
        state.spikes = _spikes(**record["spikes"])
        state.metadata = record["metadata"]

    return load


@contextmanager
def _declared_states(
    found: CheckpointReader, state: State, saved: Mapping[str, Any]
) -> Iterator[None]:
    """Load the states that callbacks declare; if that or the body fails, load those of before.

    They are loaded first, since code of the user's may refuse them.

    Raises:
        CheckpointError: one refuses its state.
    """
    before: list[tuple[Stateful, Any]] = []
    try:
        for name in sorted(saved.keys() & state.callback_states.keys()):
            owner = state.callback_states[name]
            with suppress(Exception):  # it may make its state later: then there is none to keep
                before.append((owner, copy.deepcopy(owner.state_dict())))
            try:
                owner.load_state_dict(saved[name])
            except CheckpointError:
                raise
            except Exception as error:
                raise CheckpointError(
                    f"{name} does not take the state that {found.path} has of it: "
                    f"{type(error).__name__}: {error}. Nothing was loaded. Correct its "
                    "load_state_dict(), or leave that callback out to resume without it."
                ) from error
        yield
    except Exception:
        for owner, kept in before:
            with suppress(Exception):  # the error above is the one to raise
                owner.load_state_dict(kept)
        raise


def _fitting_buffers(found: CheckpointReader, state: State) -> dict[str, Tensor]:
    """Return the buffers that the model's state_dict leaves out, of names that the model has."""
    tensors = found.tensors(BUFFERS) if BUFFERS in found.manifest.tensors else {}
    foreign = sorted(tensors.keys() - state.built.keys())
    if foreign:
        raise CheckpointError(
            f"{found.name} is of another model: it has the buffers {_few(foreign)} besides. Build "
            "the model that was trained."
        )
    known = {name: each for name, each in state.built.items() if each is not None}
    _check_types(found, tensors, known)
    return tensors


def _spikes(losses: list[float], skipped_steps: list[list[int]], rollbacks: int) -> SpikeDetector:
    return SpikeDetector(losses, [(first, last) for first, last in skipped_steps], rollbacks)


def load_model(path: Path, model: nn.Module, *, average: bool = False) -> None:
    """Load the weights and buffers of a checkpoint into a model, in place.

    Args:
        path: the checkpoint's folder.
        model: of the same build.
        average: load the averaged weights over the others.

    Raises:
        DamagedError: it is not what was written; nothing is loaded then.
        CheckpointError: names or shapes differ; nothing is loaded then.
    """
    load_weights(open_checkpoint(path), model, average=average)


def load_weights(
    found: CheckpointReader,
    model: nn.Module,
    *,
    average: bool,
    keeper: ShardedStateProvider | None = None,
) -> None:
    """Load the weights and buffers of a checkpoint that was verified, as `load_model` does.

    Raises:
        CheckpointError: names or shapes differ, or the model holds parts of its parameters;
            nothing is loaded then.
    """
    model = unwrap_module(model)
    if keeper is None and is_model_sharded(model) and not dist.is_initialized():
        raise CheckpointError(
            f"{found.name} cannot be loaded into this model: it holds parts of its parameters, as "
            "the processes that shared it left it, and those are gone. Build a new model, and load "
            "into that one."
        )
    weights = _fitting_weights(found, model, keeper=keeper)
    if average and keeper is not None:
        raise CheckpointError(
            f"The average in {found.path} does not go where the processes keep their weights. "
            "Load it in one process: surestep evaluate, or run.load_model(model)."
        )
    if average:
        own = {name: v for name, v in model.state_dict().items() if isinstance(v, Tensor)}
        averaged, aliases = found.tensors("average", own), found.record["aliases"]
        averaged |= {name: averaged[of] for name, of in aliases.items() if of in averaged}
        _check_shapes(found, averaged, own)
        weights |= averaged
    _load_weights(found, model, weights, keeper)


def _fitting_weights(
    found: CheckpointReader,
    model: nn.Module,
    known: Mapping[str, str] = _NONE,
    keeper: ShardedStateProvider | None = None,
) -> dict[str, Any]:
    """Return the state dict in a checkpoint, which fits the model.

    Args:
        found: the checkpoint.
        model: has what the checkpoint leaves out.
        known: fingerprints of the model's tensors, where somebody has taken them.
        keeper: has the parameters that the model lacks; they are not read yet.
    """
    state_dict, record = model.state_dict(), found.record
    own: dict[str, Any] = {name: v for name, v in state_dict.items() if isinstance(v, Tensor)}
    apart = _apart(model, keeper)
    tensors: dict[str, Any] = dict(found.entries("model"))
    with found.open_tensors("model") as read:
        for name, stored in tensors.items():
            tensors[name] = stored.described if name in apart else read(name, own.get(name))
    own |= apart
    try:
        tensors |= {name: tensors[first] for name, first in record["aliases"].items()}
    except KeyError as error:
        raise CheckpointError(
            f"{found.path} cannot be read: it lacks the tensor {error}."
        ) from error
    tensors |= _base(found, record.get("base") or {}, own, known)
    if tensors.keys() & record["extra"].keys():
        raise checkpoint_error(found.path, RECORD, "it has an extra state that is a tensor as well")
    try:
        tensors, others = put_together(tensors, record["extra"])
    except ValueError as error:
        raise checkpoint_error(found.path, RECORD, error) from error
    _check_shapes(found, {name: each for name, each in tensors.items() if name in own}, own)
    extra = state_dict.keys() - own.keys()
    here, there = own.keys() | extra, tensors.keys() | others.keys()
    missing, foreign = sorted(here - there), sorted(there - here - empty_buffers(model).keys())
    if missing or foreign:
        raise CheckpointError(
            f"{found.name} is of another model: it lacks {_few(missing)} and has "
            f"{_few(foreign)} besides. Build the model that was trained."
        )
    return {**tensors, **others}


def _apart(model: nn.Module, keeper: ShardedStateProvider | None) -> dict[str, TensorMeta]:
    """Describe what a keeper has of the model's parameters, under each of their names."""
    if keeper is None:
        return {}
    described, named = keeper.described(), dict(model.named_parameters(remove_duplicate=False))
    by_id = {id(named[name]): each for name, each in described.items()}
    return {name: by_id[id(each)] for name, each in named.items() if id(each) in by_id}


def _few(names: list[str], most: int = 20) -> str:
    """Show names, not more than anybody reads."""
    short = [name if len(name) <= 100 else f"{name[:100]}..." for name in names[:most]]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{short}{more}" if names else "nothing"


def _check_shapes(
    found: CheckpointReader, tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]
) -> None:
    """Check that tensors fit those of the model."""
    for name, each in tensors.items():
        if name not in own or each.shape != own[name].shape:
            shape = tuple(own[name].shape) if name in own else "not there"
            raise CheckpointError(
                f"{name} is {tuple(each.shape)} in {found.name} but {shape} here. Build the model "
                "with the sizes it was trained with."
            )
    _check_types(found, tensors, own)


def _check_types(
    found: CheckpointReader, tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]
) -> None:
    """Check that no tensor would lose what makes it up: a fraction, or an imaginary part."""
    for name, each in tensors.items():
        types = each.dtype, own[name].dtype if name in own else each.dtype
        if len({(t.is_floating_point, t.is_complex, t == torch.bool) for t in types}) > 1:
            raise CheckpointError(
                f"{name} is of {types[0]} in {found.name} but of {types[1]} here. Build the model "
                "as it was trained."
            )


def _load_weights(
    found: CheckpointReader,
    model: nn.Module,
    weights: dict[str, Any],
    keeper: ShardedStateProvider | None = None,
) -> None:
    """Load what fits; an extra state is taken by code of the model, which may refuse it."""
    apart = _apart(model, keeper)
    here = {name: each for name, each in weights.items() if name not in apart}
    replaced = _replace_buffers(model, here)
    here = {name: each for name, each in here.items() if name not in replaced}
    strict = not apart and not replaced  # all names were compared before
    if not all(isinstance(each, Tensor) for each in here.values()):
        state_dict = model.state_dict().items()
        before = {name: copy.deepcopy(each) for name, each in state_dict if name not in replaced}
        try:
            model.load_state_dict(here, strict=strict)
        except Exception as error:
            model.load_state_dict(before, strict=not replaced)
            raise CheckpointError(
                f"{found.path} does not fit: an extra state of the model was refused: {error!r}."
            ) from error
    else:
        model.load_state_dict(here, strict=strict)
    if keeper is not None:
        with found.open_tensors("model") as read:
            for name in keeper.described():
                keeper.put_weight(name, read(found.record["aliases"].get(name, name), None))


def _replace_buffers(model: nn.Module, weights: Mapping[str, Any]) -> set[str]:
    """Load buffers that no copy can fill: those that are None here, and sparse ones; name them."""
    replaced = set()
    device = next((each.device for each in model.parameters()), torch.device("cpu"))
    for name, owner, key in every_buffer(model):
        now, value = owner._buffers[key], weights.get(name)
        if isinstance(value, Tensor) and (now is None or now.layout is not torch.strided):
            like = device if now is None else now.device
            owner._buffers[key] = value.to(like, copy=True)
            replaced.add(name)
    return replaced


def _base(
    found: CheckpointReader,
    base: Mapping[str, str],
    own: Mapping[str, Tensor],
    known: Mapping[str, str],
) -> dict[str, Tensor]:
    """Return the model's own tensors for those that the checkpoint leaves out, proven the same."""
    other = [
        name
        for name, sha in base.items()
        if name in own and sha != (known.get(name) or fingerprint(own[name]))
    ]
    if other:
        raise CheckpointError(
            f"{found.name} holds what was trained on a frozen base, and the base here is another: "
            f"{summarize_names(other, 3)}. Build it as when it was trained: the same "
            "Task(init=...), or the "
            "same weights in the function that builds the model."
        )
    return {name: own[name] for name in base if name in own}
