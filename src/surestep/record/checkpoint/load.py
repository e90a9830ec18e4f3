"""Load a verified checkpoint into a state or a model; nothing changes before everything fits."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from surestep.base.errors import CheckpointError
from surestep.base.secrets import describe_error
from surestep.engine.buffers import (
    differs,
    empty_buffers,
    every_buffer,
    has_plain_loading,
    left_out_of_state,
    may_change,
    replacement,
    restore_buffers,
    separate_buffers,
)
from surestep.engine.data.lengths import EPOCH_LENGTHS
from surestep.engine.data.stream_state import STREAM
from surestep.engine.distributed.shards import (
    ShardedStateProvider,
    TensorMeta,
    is_model_sharded,
    to_local,
)
from surestep.engine.losses.state import NAME as LOSS
from surestep.engine.model.attribute_writes import NAME as ATTRIBUTES
from surestep.engine.model.compile import unwrap_module
from surestep.engine.model.frozen_weights import fingerprint
from surestep.engine.state.average import NAME as AVERAGE
from surestep.engine.state.loss_spikes import SpikeDetector
from surestep.engine.state.state import BestMetric, Progress, State, Stateful, StepCounts
from surestep.engine.task.init_weights import summarize_names
from surestep.record.checkpoint.encoding import CALLBACK_STATES, decode
from surestep.record.checkpoint.manifest import BUFFERS, RECORD, checkpoint_error
from surestep.record.checkpoint.optimizer_state import load_states, match_optimizer_states
from surestep.record.checkpoint.reader import CheckpointReader

_NONE: Mapping[str, str] = MappingProxyType({})
_NO_BUFFERS: Mapping[str, Tensor | None] = MappingProxyType({})


def prepare_load(found: CheckpointReader, state: State) -> Callable[[], None]:
    """Read a verified checkpoint; return a function that loads it into the state, in place.

    If ranks share the state, each reads its own shards.

    Raises:
        CheckpointError: the checkpoint is of another model or optimizer.
    """
    record, average = found.record, state.average
    progress, counts = Progress(**record["progress"]), StepCounts(**record["counts"])
    weights = _match_weights(found, state.model, state.base, state.keeper)
    optimizer_states = match_optimizer_states(found, state)
    callback_states, buffers = decode_states(found), _match_buffers(found, state.built)
    keeps_dtypes = _has_dtypes_of(state.model, weights)
    averaged: dict[str, Tensor] | None = None
    missed = callback_states.get(AVERAGE, {}).get("missed", 0)
    has_updates = average is not None and average.n_updates(progress.step, missed)
    if average is not None and has_updates and "average" in found.manifest.tensors:
        averaged = found.tensors("average", average.tensors)
        _check_types(found, averaged, average.tensors)

    def load() -> None:
        with _load_callback_states(found, state, callback_states):
            if average is not None and averaged is not None:
                average.load(averaged, progress.step)
            _load_weights(found, state.model, weights, state.keeper)
            restore_buffers(state.model, state.built, buffers, keeps_dtypes=keeps_dtypes)
            if average is not None and has_updates and averaged is None:  # the option was added
                average.begin(progress.step)
            load_states(found, state, optimizer_states)
            if record["scaler"]:
                # The options of the scaler come from the config.
                scale = {name: record["scaler"][name] for name in ("scale", "_growth_tracker")}
                state.scaler.load_state_dict({**state.scaler.state_dict(), **scale})
            state.progress, state.counts = progress, counts
            state.load_frozen(record.get("requires_grad", {}))
            state.best = BestMetric(**record["best"])
            vars(state.plateau).update(record["plateau"])  # in place: the schedule has it
            state.spikes = _spikes(**record["spikes"])
            state.metadata = record["metadata"]

    return load


@contextmanager
def _load_callback_states(
    found: CheckpointReader, state: State, saved: Mapping[str, Any]
) -> Iterator[None]:
    """Load the states of callbacks; if that or the body fails, load their previous states."""
    before: list[tuple[Stateful, Any]] = []
    try:
        for name in sorted(saved.keys() & state.callback_states.keys()):
            owner = state.callback_states[name]
            with suppress(Exception):  # the callback may create its state later
                before.append((owner, copy.deepcopy(owner.state_dict())))
            try:
                owner.load_state_dict(saved[name])
            except CheckpointError:
                raise
            except Exception as error:
                raise CheckpointError(
                    f"{name} does not take the state that {found.path} has of it: "
                    f"{describe_error(error)}. Nothing was loaded. Correct its "
                    "load_state_dict(), or leave that callback out to resume without it."
                ) from error
        yield
    except Exception:
        for owner, previous in before:
            with suppress(Exception):  # raise the error above, not this one
                owner.load_state_dict(previous)
        raise


def decode_states(found: CheckpointReader) -> dict[str, Any]:
    """Return the states of callbacks in a checkpoint, by name."""
    tensors = found.tensors(CALLBACK_STATES) if CALLBACK_STATES in found.manifest.tensors else {}
    # Clone: tensors of a mapped file can have any alignment.
    copied = {name: tensor.clone() for name, tensor in tensors.items()}
    return dict(decode(found.path, found.record[CALLBACK_STATES], copied))


def unmatched_states(record: Mapping[str, Any], state: State) -> list[str]:
    """Describe states that only the checkpoint has, or only the callbacks of this run."""
    always = {STREAM, EPOCH_LENGTHS, AVERAGE, ATTRIBUTES}
    saved, here = always.union(record[CALLBACK_STATES]), always.union(state.callback_states)
    gone = "The checkpoint has a state of {}, which this run does not have. It is not loaded."
    new = "{} has no state in the checkpoint, and starts with its own."
    return [
        *(gone.format(name) for name in sorted(saved - here)),
        *(new.format(name) for name in sorted(here - saved)),
    ]


def _match_buffers(found: CheckpointReader, own: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    """Return the buffers that the model's state_dict leaves out; the model must have them."""
    tensors = found.tensors(BUFFERS) if BUFFERS in found.manifest.tensors else {}
    if foreign := sorted(tensors.keys() - own.keys()):
        raise CheckpointError(
            f"{found.name} is of a different model: it also has the buffers {_few(foreign)}. Build "
            "the model that was trained."
        )
    return tensors


def _spikes(losses: list[float], skipped_steps: list[list[int]], rollbacks: int) -> SpikeDetector:
    return SpikeDetector(losses, [(first, last) for first, last in skipped_steps], rollbacks)


def load_weights(
    found: CheckpointReader,
    model: nn.Module,
    *,
    average: bool,
    keeper: ShardedStateProvider | None = None,
    loss: Stateful | None = None,
    attributes: Stateful | None = None,
    built: Mapping[str, Tensor | None] = _NO_BUFFERS,
) -> None:
    """Load all of a verified checkpoint that an evaluation uses into a model and its loss.

    Args:
        found: the checkpoint.
        model: in the modes of training, in which its weights were saved.
        average: load the average of the weights.
        keeper: has the parameters that the model lacks.
        loss: has the buffers of the loss.
        attributes: has those that forwards change.
        built: the first values of buffers that the model's state_dict leaves out. Those that are in
            neither do not change.

    Raises:
        CheckpointError: names or shapes differ, or the model has only shards of its parameters;
            nothing is loaded.
    """
    model = unwrap_module(model)
    if keeper is None and is_model_sharded(model) and not dist.is_initialized():
        raise CheckpointError(
            f"{found.name} cannot be loaded into this model: its parameters are still sharded over "
            "the processes of a run that has ended. Build a new model, and load the checkpoint "
            "into it."
        )
    weights = _match_weights(found, model, keeper=keeper)
    if average and keeper is not None:
        raise CheckpointError(
            f"The average in {found.path} cannot be loaded where the processes keep their weights. "
            "Load it in one process: surestep evaluate, or run.load_model(model)."
        )
    left_out = {name: owner._buffers[key] for name, owner, key in left_out_of_state(model)}
    buffers = _match_buffers(found, left_out)
    averaged = _match_average(found, model) if average else {}
    states = decode_states(found)
    for name, owner in ((LOSS, loss), (ATTRIBUTES, attributes)):
        if owner is not None:  # it checks the names before it loads
            owner.load_state_dict(states.get(name, {}))
    _load_weights(found, model, weights, keeper)
    keeps_dtypes = _has_dtypes_of(model, weights)
    restore_buffers(model, built, buffers, keeps_dtypes=keeps_dtypes)
    with torch.no_grad():
        own = _own_tensors(model)
        for name in averaged.keys() & own.keys():
            to_local(own[name]).copy_(to_local(averaged[name]))


def _own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers under each of their names, which a hook may change."""
    buffers = {name: owner._buffers[key] for name, owner, key in every_buffer(model)}
    known = {name: tensor for name, tensor in buffers.items() if tensor is not None}
    return {**dict(model.named_parameters(remove_duplicate=False)), **known}


def _match_average(found: CheckpointReader, model: nn.Module) -> dict[str, Tensor]:
    """Return the averaged tensors, which fit the parameters and buffers of the model."""
    own = _own_tensors(model)
    averaged = found.tensors("average", own)
    _check_shapes(found, averaged, own)
    tied = found.with_aliases(averaged, partial=True)
    return {name: tensor for name, tensor in tied.items() if name in own}


def _match_weights(
    found: CheckpointReader,
    model: nn.Module,
    known: Mapping[str, str] = _NONE,
    keeper: ShardedStateProvider | None = None,
) -> dict[str, Any]:
    """Return the state dict in a checkpoint, which fits the model.

    The weights that the checkpoint leaves out are the model's, of which `known` has fingerprints
    that were taken before. The parameters of a keeper are not read yet.
    """
    state_dict, record = model.state_dict(), found.record
    own: dict[str, Any] = {name: v for name, v in state_dict.items() if isinstance(v, Tensor)}
    kept = _describe_kept(model, keeper)
    tensors: dict[str, Any] = dict(found.entries("model"))
    with found.open_tensors("model") as read:
        for name, stored in tensors.items():
            tensors[name] = stored.described if name in kept else read(name, own.get(name))
    own |= kept
    tensors = found.with_aliases(tensors) | _frozen_base(found, own, known)
    if tensors.keys() & record["extra"].keys():
        raise checkpoint_error(found.path, RECORD, "it has an extra state that is a tensor as well")
    extra = decode(found.path, record["extra"], tensors)
    loaded = {**tensors, **extra}
    changing = {name for name, owner, key in every_buffer(model) if may_change(owner, key)}
    fixed = {name: t for name, t in loaded.items() if name in own and name not in changing}
    _check_shapes(found, fixed, own)
    here, there = state_dict.keys() | own.keys(), loaded.keys()
    missing = sorted(here - there - set(record.get("empty", ())))
    foreign = sorted(there - here - empty_buffers(model))
    if missing or foreign:
        raise CheckpointError(
            f"{found.name} is of a different model: it lacks {_few(missing)} and has "
            f"{_few(foreign)} that this model does not have. Build the model that was trained."
        )
    return loaded


def _describe_kept(model: nn.Module, keeper: ShardedStateProvider | None) -> dict[str, TensorMeta]:
    """Return the shapes and dtypes of a keeper's parameters, under each of their names."""
    if keeper is None:
        return {}
    described, named = keeper.described(), dict(model.named_parameters(remove_duplicate=False))
    by_id = {id(named[name]): tensor for name, tensor in described.items()}
    return {name: by_id[id(tensor)] for name, tensor in named.items() if id(tensor) in by_id}


def _few(names: list[str], most: int = 20) -> str:
    short = [name if len(name) <= 100 else f"{name[:100]}..." for name in names[:most]]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{short}{more}" if names else "nothing"


def _check_shapes(
    found: CheckpointReader, tensors: Mapping[str, Any], own: Mapping[str, Tensor]
) -> None:
    for name, tensor in tensors.items():
        shape = getattr(tensor, "shape", "not a tensor")
        if name in own and is_lazy(own[name]):
            continue  # loading gives it its shape
        if name not in own or shape != own[name].shape:
            here = tuple(own[name].shape) if name in own else "not there"
            raise CheckpointError(
                f"{name} is {tuple(shape)} in {found.name} but {here} here. Build the model with "
                "the sizes it was trained with."
            )
    _check_types(found, tensors, own)


def _check_types(
    found: CheckpointReader, tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]
) -> None:
    """Check that no tensor would lose its fraction or its imaginary part."""
    for name, tensor in tensors.items():
        types = tensor.dtype, own[name].dtype if name in own else tensor.dtype
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
    """Load what fits; the model's own code may reject an extra state or a buffer."""
    kept = _describe_kept(model, keeper)
    here = {name: tensor for name, tensor in weights.items() if name not in kept}
    slots = [(owner, key, owner._buffers[key]) for _, owner, key in every_buffer(model)]
    has_extra = not all(isinstance(tensor, Tensor) for tensor in here.values())
    may_reject = has_extra or _has_own_loading(model, here)
    before = copy.deepcopy(model.state_dict()) if may_reject else {}
    replaced = _replace_buffers(model, here, set(found.record.get("empty", ())))
    here = {name: tensor for name, tensor in here.items() if name not in replaced}
    here |= _copies_for_own_loading(model, here)
    try:  # all names were compared before
        model.load_state_dict(here, strict=not kept and not replaced)
    except Exception as error:
        if not may_reject:
            raise
        for owner, key, tensor in slots:
            owner._buffers[key] = tensor
        model.load_state_dict(before)
        what = "an extra state" if has_extra else "a buffer"
        raise CheckpointError(
            f"{found.path} does not fit: {what} of the model was rejected: {error!r}."
        ) from error
    if keeper is not None:
        with found.open_tensors("model") as read:
            for name in keeper.described():
                keeper.put_weight(name, read(found.record["aliases"].get(name, name), None))


def _has_own_loading(model: nn.Module, weights: Mapping[str, Any]) -> bool:
    """Return whether code of the model loads a buffer, as that of observers does."""
    return any(
        name in weights and not has_plain_loading(owner) for name, owner, _ in every_buffer(model)
    )


def _copies_for_own_loading(model: nn.Module, weights: Mapping[str, Any]) -> dict[str, Tensor]:
    """Copy what the loading code of a module gets, which may use the tensor itself from then on.

    That of an observer does, and the tensors of a mapped file can't be resized or written to.
    """
    own = tuple(
        f"{prefix}." if prefix else ""
        for prefix, module in model.named_modules()
        if not has_plain_loading(module)
    )
    return {
        name: tensor.clone()
        for name, tensor in weights.items()
        if name.startswith(own) and isinstance(tensor, Tensor)
    }


def _has_dtypes_of(model: nn.Module, weights: Mapping[str, Any]) -> bool:
    """Return whether the parameters have the dtypes in which they were trained."""
    named = model.named_parameters(remove_duplicate=False)
    pairs = [(parameter, weights.get(name)) for name, parameter in named]
    return all(p.dtype == value.dtype for p, value in pairs if isinstance(value, Tensor))


def _replace_buffers(model: nn.Module, weights: Mapping[str, Any], empty: set[str]) -> set[str]:
    """Set the buffers that no copy can fill; return their names.

    They are None, sparse, or have had another shape or dtype since training changed them. Those in
    `empty` were None. Modules with their own loading code, as observers, change theirs in it.
    """
    replaced, keeps = set(), _has_dtypes_of(model, weights)
    copies: dict[int, Tensor] = {}
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    separate_buffers(every_buffer(model), weights)
    slots = [(slot, slot[1]._buffers[slot[2]]) for slot in every_buffer(model)]
    for (name, owner, key), now in slots:
        value = weights.get(name)
        if name in empty:
            owner._buffers[key] = None
        elif not isinstance(value, Tensor) or (now is not None and is_lazy(now)):
            continue  # loading gives a lazy one its shape
        elif now is None:
            owner._buffers[key] = value.to(device, copy=True)
            replaced.add(name)
        elif now.layout is not torch.strided or (
            has_plain_loading(owner) and differs(now, value, keeps_dtypes=keeps)
        ):
            owner._buffers[key] = replacement(now, value, copies, keeps_dtypes=keeps)
            replaced.add(name)
    return replaced


def _frozen_base(
    found: CheckpointReader, own: Mapping[str, Tensor], known: Mapping[str, str]
) -> dict[str, Tensor]:
    """Return the model's tensors that the checkpoint leaves out, if their fingerprints match."""
    base = found.record["base"]
    other = [
        name
        for name, sha in base.items()
        if name in own and sha != (known.get(name) or fingerprint(own[name]))
    ]
    if other:
        raise CheckpointError(
            f"{found.name} has weights trained on a frozen base, and this base is a different one: "
            f"{summarize_names(other, 3)}. Build it as when it was trained: the same "
            "Task(init=...), or the same weights in the function that builds the model."
        )
    return {name: own[name] for name in base if name in own}
