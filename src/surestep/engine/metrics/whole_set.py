"""Metrics over all predictions of a set at once: AUC, F1, correlations.

Such a metric is not a mean over batches. Each rank keeps what it has seen, in bounded memory; then
one rank gathers it, in the order of the data, and computes.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from surestep.base.errors import TaskError
from surestep.engine.batch import (
    as_members,
    describe_tensors,
    explain_targets,
    flatten_tensors,
    left_out_hint,
    map_tensors,
)
from surestep.engine.distributed.communicator import ALONE, Communicator
from surestep.engine.metrics.row_buffer import RowBuffer
from surestep.engine.modes import needs_gradient_hint
from surestep.engine.value import Value

_SAY = "Give surestep.whole_set(fn, preprocess=...), which returns a pair of tensors to keep"


@dataclass(frozen=True)
class WholeSet:
    """A metric that is computed over all predictions of a set: the arguments of `whole_set`."""

    function: Callable[[Any, Any], Any]
    preprocess: Callable[[Any, Any], tuple[Any, Any]] | None = None
    higher_is_better: bool | Mapping[str, bool | None] | None = None

    def __call__(self, outputs: Any, targets: Any) -> Any:
        """Compute the metric of these outputs and targets."""
        return self.function(outputs, targets)


def whole_set(
    function: Callable[[Any, Any], Any],
    *,
    preprocess: Callable[[Any, Any], tuple[Any, Any]] | None = None,
    higher_is_better: bool | Mapping[str, bool | None] | None = None,
) -> WholeSet:
    """Return a metric that is computed once over all predictions of a set, for `Task(metrics=)`.

    Its value does not depend on `validation.batch_size` or the number of ranks. Each rank keeps up
    to 256 MiB of predictions in memory, and the rest in a temporary file in the folder that TMPDIR
    sets.

    Args:
        function: `function(outputs, targets)`, which returns a number, a table, or a dict of these.
            It gets tensors on the CPU, with one row per sample, in stored order; half precision as
            fp32. Above the memory limit they are mapped to the file.
        preprocess: `preprocess(outputs, targets)` is called on each batch and returns the pair to
            store instead, such as the probability of one class, or only the tokens that count. Its
            rows need not be samples.
        higher_is_better: whether a larger value is better, for `validation.metric`; a dict by name
            for several values. None: set `validation.mode`.

    Raises:
        TaskError: `function` is not callable, or is an object that keeps its own state.

    Example:
        >>> import torch
        >>> import surestep
        >>> def rmse(outputs, targets):
        ...     return (outputs - targets).square().mean().sqrt()
        >>> x, y = torch.randn(64, 4), torch.randn(64, 1)
        >>> metrics = {"rmse": surestep.whole_set(rmse, higher_is_better=False)}
        >>> task = surestep.Task(
        ...     torch.nn.Linear(4, 1), "mse", train=(x, y), val=(x, y), metrics=metrics
        ... )
    """
    for name, given in {"function": function, "preprocess": preprocess}.items():
        if not callable(given) and (given is not None or name == "function"):
            raise TaskError(
                f"whole_set({name}=...) is a {type(given).__name__}. Give a function of (outputs, "
                "targets)."
            )
    if hasattr(function, "update") and hasattr(function, "compute"):
        raise TaskError(
            f"whole_set() takes a function of (outputs, targets), and {type(function).__name__} "
            "has update and compute: give it to Task(metrics=...) as it is."
        )
    return WholeSet(function, preprocess, higher_is_better)


def metric_error(name: str, where: str, error: Exception, outputs: Any, targets: Any) -> TaskError:
    """Return an error of a metric with what it got, and what to change if that is known."""
    text = f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(".")
    remedy = ""
    if "ScalarType BFloat16" in text:
        remedy = (
            " numpy has no bfloat16: use outputs.float() in the metric, or surestep.whole_set(fn), "
            "whose function gets float32."
        )
    elif hint := needs_gradient_hint(error):
        remedy = f" {hint}"
    elif isinstance(error, (TypeError, AttributeError)):
        remedy = f" {explain_targets(targets, 'the metric')}".rstrip()
    return TaskError(
        f"metrics[{name!r}] fails {where}: {text}. It got outputs {describe_tensors(outputs)} and "
        f"targets {describe_tensors(targets)}.{remedy}"
    )


class Piece(NamedTuple):
    """The rows that one micro-batch added, from which position of the set on, and on which rank."""

    position: int
    rows: int
    rank: int = 0


class WholeSetMetric:
    """A metric of `whole_set` during one evaluation of one set."""

    def __init__(self, name: str, metric: WholeSet) -> None:
        self.name = name
        self.metric = metric
        self._buffer = RowBuffer()
        self._pieces: list[Piece] = []
        self._template: Any = ()

    def update(self, outputs: Any, targets: Any, count: int, at: range) -> None:
        """Keep a batch, whose samples are `at` these positions of the set."""
        kept, rows = (outputs, targets), len(at)
        if self.metric.preprocess is not None:
            kept = self.metric.preprocess(outputs, targets)
            if not isinstance(kept, tuple) or len(kept) != 2:
                raise TaskError(
                    f"metrics[{self.name!r}]: preprocess returned a {type(kept).__name__}. Return "
                    "a pair of tensors: (outputs, targets)."
                )
            rows = next((len(tensor) for tensor in flatten_tensors(kept) if tensor.dim()), 0)
        tensors, leaf = _by_path(kept), _other_leaf(kept)
        if leaf is not None or not tensors:
            kind = "nothing" if leaf is None else f"a {type(leaf).__name__}"
            raise TaskError(
                f"metrics[{self.name!r}] keeps tensors of a whole set, and was given {kind}. {_SAY}"
                "."
            )
        self._template = self._template or map_tensors(kept, lambda tensor: tensor.new_empty(0))
        if missing := tensors.keys() ^ _by_path(self._template).keys():
            raise TaskError(
                f"metrics[{self.name!r}] keeps the same tensors of each batch, and only some "
                f"batches have {', '.join(sorted(missing))}. {_SAY}."
            )
        for path, tensor in tensors.items():
            if problem := self._buffer.mismatch(path, tensor, rows):
                raise TaskError(
                    f"metrics[{self.name!r}] keeps a row for each sample, and got a tensor with "
                    f"{problem}. {_SAY}, all of one row shape and type."
                    f"{left_out_hint(len(tensor), rows) if tensor.dim() else ''}"
                )
            self._buffer.add(path, tensor)
        self._pieces.append(Piece(at.start, rows))

    def compute(self, world: Communicator = ALONE) -> dict[str, Value]:
        """Return the metric of all ranks' samples; NaN where there are none."""
        if world.size == 1:
            return self._value(self._buffer, self._pieces)
        with world.long_timeout():
            return self._value_of_ranks(world)

    def _value(self, buffer: RowBuffer, pieces: Sequence[Piece]) -> dict[str, Value]:
        if not pieces:
            return {self.name: float("nan")}
        paths = _by_path(self._template)  # in the order of `map_tensors`
        arrays = (torch.from_numpy(buffer.array(path)) for path in paths)
        outputs, targets = map_tensors(self._template, lambda _: next(arrays))
        try:
            return named_values(self.name, self.metric.function(outputs, targets))
        except TaskError:
            raise
        except Exception as error:  # whatever the user's function raises
            where = f"on all {sum(piece.rows for piece in pieces)} rows"
            raise metric_error(self.name, where, error, outputs, targets) from error

    def _value_of_ranks(self, world: Communicator) -> dict[str, Value]:
        """Gather all rows on the rank that has the first, and have it compute."""
        columns = sorted(self._buffer.columns.items())
        layout = [(path, str(one.kind), one.row_shape) for path, one in columns]
        own = json.dumps({"parts": [piece[:2] for piece in self._pieces], "layout": layout})
        ranks = [json.loads(text) for text in world.all_gather_text(own)]
        pieces = sorted(
            Piece(position, rows, rank)
            for rank, stored in enumerate(ranks)
            for position, rows in stored["parts"]
        )
        layouts = [stored["layout"] for stored in ranks if stored["parts"]]
        if any(other != layouts[0] for other in layouts):
            raise TaskError(
                f"metrics[{self.name!r}] keeps {layouts[0]} on one rank and others elsewhere: "
                f"{layouts}. {_SAY}, all of one row shape and type."
            )
        root = pieces[0].rank if pieces else 0
        buffer = self._gather(world, pieces, root)
        answer: dict[str, Any] = {}
        if world.rank == root:
            try:
                answer = {"values": self._value(buffer, pieces)}
            except TaskError as error:  # which every rank raises
                answer = {"error": str(error)}
        answer = json.loads(world.all_gather_text(json.dumps(answer))[root])
        if "error" in answer:
            raise TaskError(answer["error"])
        values: dict[str, Value] = answer["values"]
        return values

    def _gather(self, world: Communicator, pieces: Sequence[Piece], root: int) -> RowBuffer:
        """Return the rows of all ranks, in order, on the rank `root`; those of others are empty."""
        paths = sorted(self._buffer.columns)
        arrays = [torch.from_numpy(self._buffer.array(path)) for path in paths]
        buffer, done = RowBuffer(), 0
        for piece in pieces:
            if world.rank not in (piece.rank, root):
                continue
            for path, array in zip(paths, arrays, strict=True):
                if piece.rank == world.rank:
                    rows = array[done : done + piece.rows].contiguous()
                else:
                    rows = array.new_empty(piece.rows, *array.shape[1:])
                with world.explain_errors():
                    if piece.rank != root and rows.numel():
                        if world.rank == root:
                            dist.recv(rows, src=piece.rank, group=world.group)
                        else:
                            dist.send(rows, dst=root, group=world.group)
                if world.rank == root:
                    buffer.add(path, rows)
            done += piece.rows if piece.rank == world.rank else 0
        return buffer


def _by_path(value: Any, path: str = "") -> dict[str, Tensor]:
    """Return nested tensors by where they are, in the order of `map_tensors`.

    The keys of a dict may come in another order in the next batch.
    """
    if isinstance(value, Tensor):
        return {path: value}
    value = as_members(value)
    members: Any = ()
    if isinstance(value, Mapping):
        members = value.items()
    elif isinstance(value, (tuple, list)):
        members = enumerate(value)
    found: dict[str, Tensor] = {}
    for key, member in members:
        found |= _by_path(member, f"{path}[{key!r}]")
    return found


def _other_leaf(value: Any) -> Any:
    """Return the first part of a nested value that is neither a tensor nor None; else None."""
    value = as_members(value)
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return next((leaf for part in value if (leaf := _other_leaf(part)) is not None), None)
    return None if isinstance(value, Tensor) else value


def plain_value(value: Any) -> Value:
    """Return a number as it is, and a table or a curve as nested lists of numbers."""
    if isinstance(value, (tuple, list)):
        return [plain_value(part) for part in value]
    if isinstance(value, np.ndarray):
        value = torch.as_tensor(value)
    if isinstance(value, Tensor) and value.numel() != 1:
        return list(value.tolist())
    return float(value)


def named_values(name: str, value: Any) -> dict[str, Value]:
    """Return the value of a metric by its name, or its values by "name_key" if it has several."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            if isinstance(part, Mapping):
                raise TaskError(
                    f"metrics[{name!r}] returned a dict whose {key!r} is a dict too. Return one "
                    f"dict of numbers and tables, such as {{'{key}_{next(iter(part), 'x')}': 0.5}}."
                )
        return {f"{name}_{key}": plain_value(part) for key, part in value.items()}
    return {name: plain_value(value)}
