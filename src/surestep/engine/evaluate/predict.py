"""The predictions of a model for each sample, in the order of the data.

Monte-Carlo dropout: Gal and Ghahramani 2016, https://arxiv.org/abs/1506.02142
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader

from surestep.base.errors import ConfigError, DataError, TaskError, suggest_names
from surestep.engine.batch import (
    TARGETS,
    MicroBatch,
    as_members,
    batch_as_inputs,
    left_out_hint,
    map_tensors,
)
from surestep.engine.data.batch_loader import BatchLoader, make_loader, seeded_inputs
from surestep.engine.data.stream import is_stream
from surestep.engine.device import sum_dtype
from surestep.engine.evaluate.evaluate import generators_of, inference, measured_batches, model_rng
from surestep.engine.losses.adapt import Loss, items_only_loss
from surestep.engine.losses.base import at_least_fp32
from surestep.engine.metrics.row_buffer import RowBuffer
from surestep.engine.model.preserve import Write
from surestep.engine.modes import set_modes
from surestep.engine.plan.plan import Plan
from surestep.engine.task.task import Task

_ROWS = 1024  # predictions that are checked at a time


@dataclass(frozen=True, eq=False)
class Predictions(Mapping[str, NDArray[Any]]):
    """The predictions of a model for each sample of a split, in the order of the data, by name.

    Attributes:
        arrays: by name, each with a row per sample; above 256 MiB they are mapped to temporary
            files, which exist as long as the arrays. "index" is the sample's number in the split;
            "output" what the model returned ("output_<name>" of several); "target" the targets. If
            the loss chooses among classes, "prediction" is the class, or -1 if the outputs are NaN.
            With Monte-Carlo dropout "output" is the mean over the passes and "spread" their
            standard deviation; of classes also "probability", the mean of the softmax, and its
            "entropy" in nats.
        passes: of Monte-Carlo dropout, or None.
        notices: messages about the predictions.
    """

    arrays: Mapping[str, NDArray[Any]]
    passes: int | None = None
    notices: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self.arrays:
            raise KeyError(f"There is no array {name!r}. {suggest_names(str(name), self.arrays)}")
        return self.arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)

    @property
    def samples(self) -> int:
        """How many samples were predicted."""
        return len(self.arrays["index"])


def make_predict_loader(data: Any, part: str, *, task: Task, plan: Plan) -> BatchLoader:
    """Return the loader of a split to predict on: all of it, in order, with or without targets."""
    if isinstance(data, DataLoader) and is_stream(data) and data.num_workers > 1:
        # Several workers would alternate, and the order of the stream would be lost.
        data = DataLoader(
            data.dataset,
            data.batch_size,
            num_workers=1,
            collate_fn=data.collate_fn,
            worker_init_fn=data.worker_init_fn,
        )
    lenient = replace(task, inputs=partial(_inputs_and_targets, task))
    plan, loss = plan.single_process(), items_only_loss("samples")
    loader = make_loader(data, part, task=lenient, loss=loss, plan=plan)
    loader.inputs = seeded_inputs(task, plan)  # without what is around it
    return loader


def _inputs_and_targets(task: Task, batch: Any) -> tuple[Any, Any]:
    """Split a batch into inputs and targets, which may be missing."""
    is_plain = task.inputs is None and task.loss is not None and task.loss != "model"
    names = (*TARGETS, *task.loss) if isinstance(task.loss, Mapping) else TARGETS
    if isinstance(batch, Mapping):
        has_targets = any(key in names for key in batch)
    else:
        has_targets = isinstance(batch, (tuple, list)) and len(batch) != 1
    if is_plain and not has_targets:
        args, kwargs, targets = batch_as_inputs(batch)
    else:
        args, kwargs, targets = task.split_batch(batch)
    if isinstance(targets, Mapping) and targets.keys() == kwargs.keys():
        targets = None  # a batch without labels, for a model that computes its own loss
    return (kwargs or args), targets


def predict(
    model: nn.Module,
    loader: BatchLoader,
    loss: Loss,
    *,
    autocast: AbstractContextManager[Any],
    passes: int | None = None,
    watch: Callable[[int], object] | None = None,
    folder: Path | None = None,
    writes: Sequence[Write] = (),
) -> Predictions:
    """Return the predictions of a model in eval mode; waits for the device.

    Args:
        model: on the device of `loader`.
        loader: of `make_predict_loader`.
        loss: selects the prediction from the outputs.
        autocast: the context of a forward.
        passes: of Monte-Carlo dropout, with only dropout in train mode. The dropped units depend on
            the seed, the pass, and the position and size of the batch.
        watch: called after each batch with the number of samples done.
        folder: of the temporary files of what does not fit into memory.
        writes: parameters and attributes that a forward changes, to restore.

    Raises:
        ConfigError: fewer than two passes.
        TaskError: there is no dropout, or the outputs have no row for each sample.
        DataError: there is no sample.
    """
    check_passes(passes)
    dropping = set[nn.Module]() if passes is None else set(dropout_modules(model))
    rows = PredictionBuffer(folder)
    randomness = model_rng(loader, generators_of(model, loss))

    def forward(micro: MicroBatch, number: int = 0) -> Any:
        """Return the outputs under the seed of the position, and of the number of the pass."""
        randomness.seed_for("evaluate", micro.position, number, loader.subset)
        with autocast:
            return loss.predictions(model(*micro.args, **micro.kwargs))

    with inference(model, loader, loss, writes):
        if dropping:
            set_modes([(module, module in dropping) for module in model.modules()])
        for batch in measured_batches(loader):
            for micro in batch.micro_batches:
                if passes is None:
                    rows.add(micro, _name_outputs(forward(micro), loss))
                else:
                    rows.add(micro, _mc_dropout(forward, micro, passes, loss))
            if watch is not None:
                watch(batch.end)
    if not rows.n_samples:
        raise DataError("There is no sample to predict.")
    arrays = rows.arrays()
    return Predictions(arrays, passes, (*rows.warnings(), *_find_problems(arrays)))


def _find_problems(arrays: Mapping[str, NDArray[Any]]) -> Iterator[str]:
    chosen = arrays.get("prediction", np.empty(0))
    if unknown := sum(
        int((chosen[first : first + _ROWS] == -1).sum()) for first in range(0, len(chosen), _ROWS)
    ):
        yield (
            f"{unknown} predictions are -1: the outputs there are not numbers. Check the inputs "
            "and the weights."
        )
    spread = [array for name, array in arrays.items() if name.startswith("spread")]
    if spread and not any(array.any() for array in spread):
        yield "The spread is 0 everywhere: no dropout module of the model affects these outputs."


def _name_outputs(outputs: Any, loss: Loss) -> dict[str, Any]:
    """Return the outputs, and the class if there is one."""
    named = {"output": outputs}
    if (class_dim := loss.find_class_dim(outputs)) is not None:
        named["prediction"] = _choose(outputs, class_dim)
    return named


def _mc_dropout(
    forward: Callable[[MicroBatch, int], Any], micro: MicroBatch, passes: int, loss: Loss
) -> dict[str, Tensor]:
    """Return mean and spread over the passes; of classes also their mean probability."""

    def run_pass(number: int) -> dict[str, Tensor]:
        # Copied, since a model may write into its inputs.
        args = map_tensors(micro.args, Tensor.clone)
        kwargs = map_tensors(dict(micro.kwargs), Tensor.clone)
        outputs = forward(micro._replace(args=args, kwargs=kwargs), number)
        tensors = flatten_outputs(outputs, "output")
        if (class_dim := loss.find_class_dim(outputs)) is not None:
            tensors["probability"] = at_least_fp32(outputs).softmax(class_dim)
        return tensors

    named, spread = mean_and_std(run_pass, passes)
    probability = named.pop("probability", None)
    for name in list(named):
        named[name.replace("output", "spread", 1)] = spread[name]
    if probability is not None and loss.class_dim is not None:
        named["probability"] = probability
        named["prediction"] = _choose(probability, loss.class_dim)
        named["entropy"] = torch.special.entr(probability).sum(loss.class_dim)
    return named


def _choose(scores: Tensor, class_dim: int) -> Tensor:
    """Return the class of the largest score; -1 if one is NaN."""
    known = ~scores.isnan().any(class_dim)
    return scores.argmax(class_dim).where(known, -1)


def check_passes(passes: int | None) -> None:
    """Raise ConfigError if there are too few passes for a spread."""
    if passes is not None and passes < 2:
        raise ConfigError(
            f"Monte-Carlo dropout with {passes} passes has no spread. Use 2 or more, such as 30."
        )


def dropout_modules(model: nn.Module) -> list[nn.Module]:
    """List the modules whose only difference in train mode is that they drop units.

    A TransformerEncoderLayer with dropout is one: in eval mode torch skips its dropout modules.

    Raises:
        TaskError: there are none.
    """
    found = [module for module in model.modules() if _drops(module)]
    if not found:
        raise TaskError(
            f"{type(model).__name__} has no dropout, so Monte-Carlo dropout would give the same "
            "outputs each time. Leave --mc-dropout out, or train with nn.Dropout modules (a "
            "functional dropout within forward() is not found)."
        )
    return found


def _drops(module: nn.Module) -> bool:
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    if isinstance(module, (nn.MultiheadAttention, nn.RNNBase)):
        return module.dropout > 0
    if isinstance(module, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
        return any(_drops(part) for part in module.modules() if part is not module)
    return False


def mean_and_std(
    run_pass: Callable[[int], Mapping[str, Tensor]], passes: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the mean and the standard deviation (over passes - 1) of named tensors.

    By Welford's algorithm, so no pass is stored.
    """
    mean: dict[str, Tensor] = {}
    squares: dict[str, Tensor] = {}
    kinds: dict[str, torch.dtype] = {}
    for number in range(1, passes + 1):
        for name, value in run_pass(number).items():
            kinds[name] = torch.promote_types(value.dtype, torch.float32)
            wide = value.to(torch.promote_types(value.dtype, sum_dtype(value.device)))
            if number == 1:
                mean[name], squares[name] = wide.clone(), torch.zeros_like(wide.real)
                continue
            away = wide - mean[name]
            mean[name] += away / number
            squares[name] += (away * (wide - mean[name]).conj()).real
    spread = {name: (value / (passes - 1)).sqrt() for name, value in squares.items()}
    return (
        {name: value.to(kinds[name]) for name, value in mean.items()},
        {name: value.to(kinds[name].to_real()) for name, value in spread.items()},
    )


def flatten_outputs(value: Any, name: str) -> dict[str, Tensor]:
    """Return the tensors of nested outputs by name: "output", or "output_<key>" of several.

    Raises:
        TaskError: two have the same name, such as {"a": {"b": x}, "a_b": y}.
    """
    if isinstance(value, Tensor):
        return {name: value}
    members = value._asdict() if hasattr(value, "_asdict") else as_members(value)
    pairs: Any = ()
    if isinstance(members, Mapping):
        pairs = members.items()
    elif isinstance(members, (tuple, list)):
        pairs = enumerate(members)
    found: dict[str, Tensor] = {}
    for key, member in pairs:
        inner = flatten_outputs(member, f"{name}_{key}")
        if twice := found.keys() & inner.keys():
            raise TaskError(
                f"Two tensors of a batch are called {min(twice)!r}. Give one of them another name "
                "where the model, or the data, returns it."
            )
        found |= inner
    return found


class PredictionBuffer:
    """Tensors by name, each with a row for each sample; on the host, in bounded memory.

    Outputs must have a row for each sample. Targets that have not are left out, with a warning.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.n_samples = 0
        self._buffer = RowBuffer(folder=folder)
        self._left_out: dict[str, str] = {}

    def add(self, micro: MicroBatch, named: Mapping[str, Any]) -> None:
        """Append the outputs and the targets of a micro-batch.

        Raises:
            TaskError: outputs without a row for each sample.
        """
        tensors: dict[str, Tensor] = {}
        rows = micro.rows
        for name, value in named.items():
            tensors |= flatten_outputs(value, name)
        outputs = {name: tensor for name, tensor in tensors.items() if tensor.dim()}
        for name in tensors.keys() - outputs.keys():
            self._left_out[name] = "one number for a whole batch"
        if not outputs:
            output = named.get("output")
            kind = f"a {type(output).__name__}"
            if isinstance(output, Tensor):
                kind = f"a tensor of shape {tuple(output.shape)}"
            raise TaskError(
                f"The model returned {kind}, which holds no tensor with a row for each "
                "sample. Return a tensor, or a dict or tuple of tensors."
            )
        for name, tensor in outputs.items():
            if reason := self._buffer.mismatch(name, tensor, rows):
                raise TaskError(
                    f"The model's {name} has {reason}. Predictions have a row for each sample, all "
                    "of one shape: pad all samples to one length (collate_fn), or leave it out of "
                    f"what the model returns.{left_out_hint(len(tensor), rows)}"
                )
            self._buffer.add(name, tensor)
        for name, tensor in flatten_outputs(micro.targets, "target").items():
            if reason := self._buffer.mismatch(name, tensor, rows):
                self._left_out.setdefault(name, reason)
            elif name not in self._left_out:
                self._buffer.add(name, tensor)
        step = 0 if micro.is_ready else 1  # all rows of a ready batch are of one element
        self._buffer.add("index", micro.position + step * torch.arange(rows))
        self.n_samples += rows

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays, the index first and the targets last.

        Raises:
            TaskError: outputs that only some batches have.
        """
        found = {"index": self._buffer.array("index")}
        names = [name for name in self._buffer.columns if name not in (*self._left_out, "index")]
        for name in sorted(names, key=lambda name: name.startswith("target")):
            if (rows := self._buffer.columns[name].rows) != self.n_samples:
                raise TaskError(
                    f"{name} exists for {rows} of {self.n_samples} samples. "
                    "Return the same names for every batch."
                )
            found[name] = self._buffer.array(name)
        return found

    def warnings(self) -> Iterator[str]:
        """Yield what was left out."""
        for name, reason in self._left_out.items():
            yield f"{name} is left out: {reason}."
