"""What the user brings: model, loss, data, metrics."""

import inspect
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from surestep.base.arguments import suggest_arguments
from surestep.base.errors import TaskError
from surestep.config.config import argument_instead
from surestep.config.optim import Optim
from surestep.config.schedule import Schedule
from surestep.engine.batch import batch_as_inputs, split_batch, split_named
from surestep.engine.losses.adapt import (
    Loss,
    LossFunction,
    as_loss,
    as_losses,
    items_only_loss,
)
from surestep.engine.losses.mixed import accept_mixed
from surestep.engine.losses.model_loss import (
    IN_TRAINING,
    batch_as_kwargs,
    model_loss,
    training_losses,
)
from surestep.engine.losses.multi import check_several
from surestep.engine.losses.registry import get_loss
from surestep.engine.metrics.base import EXAMPLE, check_metric
from surestep.engine.plan.batching import SampleOrder
from surestep.engine.schedule.registry import UserFunction
from surestep.engine.task.init_weights import Source, as_init

ParameterGroups = list[dict[str, Any]]
Items = str | Callable[[Any], float]
_OF_MODEL = ("model", IN_TRAINING)  # losses that the model computes


@dataclass(frozen=True)
class OptimizerSpec:
    """One of several optimizers of a Task.

    Attributes:
        optim: its options, or a callable that makes the optimizer from parameter groups.
        schedule: its schedule; the default is the Config's.
        modules: names of the submodules that it trains; the default is that of its own name.
    """

    optim: Optim | Callable[[ParameterGroups], torch.optim.Optimizer] = field(default_factory=Optim)
    schedule: Schedule | None = None
    modules: Sequence[str] = ()


@suggest_arguments(TaskError, argument_instead)
@dataclass(frozen=True)
class Task:
    """What to train, on which data, and how to measure it.

    Attributes:
        model: a module, or a function that builds it and is called after seeding.
        loss: one of

            - a loss of `surestep.losses`, or its name;
            - a torch loss module or function, whose denominator is known;
            - a function `loss(outputs, targets)` that returns a mean (see `items`), a sum (see
              `reduction`), or a dict of named terms to add up;
            - "model": the `.loss` that the model returns, as Hugging Face models do;
            - "model in training": the dict of losses that `model(inputs, targets)` returns in train
              mode, as torchvision's detectors do. Evaluations then compute metrics alone;
            - a dict of several losses by name. Each gets `outputs[name]` and `targets[name]`.
        loss_weights: weights of several losses, by name; the default is 1.
        train: a map-style dataset, a tuple or dict of tensors, a stream (an IterableDataset, an
            object whose `__iter__` starts from the beginning, or a function that returns an
            iterable), or a DataLoader over one of these; or a dict of datasets for
            `samplers.mixture`. None if `step` makes its own data.
        val: like `train`, or a dict of several validation sets by name.
        test: like `train`; never used in training.
        metrics: by name: objects with `update`, `compute` and
            `reset` such as those of torchmetrics, functions `metric(outputs, targets)` that return
            a mean over samples (or unmasked tokens) or a pair (sum, count), or
            `surestep.whole_set(fn)` for a function that is not such a mean (AUC, F1, a
            correlation).
        items: what a custom loss is a mean over: "samples", "tokens" (targets other than -100), or
            a function of the batch. For loss="model" the type of the model decides; "next tokens"
            are labels that the model shifts. By name for several losses.
        inputs: a function from a batch to `(inputs, targets)`. Inputs are the model's single
            argument, a tuple of positional or a dict of keyword arguments.
        sampler: the order of the samples in an epoch, from `surestep.samplers`; the default reads
            each sample once per epoch in a new random order.
        batch_transform: a function of (inputs, targets) that returns both. It changes each global
            training batch on the device: from `surestep.batch_transforms`, or your own.
        collate_fn: a function from a list of samples to a batch, for each part of the data. That of
            a DataLoader, unless it is torch's default, comes first for its part.
        groups: the group of each sample, such as its patient, for "train" and other parts of the
            data by name: a list, an array or a tensor each. A group whose samples are in the
            training data and in another part is a finding.
        times: the time of each sample, likewise: numbers, dates or others that can be compared.
            Samples of another part from before the last one of the training data are a finding.
        batched: each element of the data is a batch already, of any size. A step takes one element,
            or `batch_size` of them; they are never split or merged.
        optimizer: a callable that makes the optimizer from parameter groups, instead of `optim`.
        schedule: a function `schedule(steps_taken, total)` that returns the factor on the learning
            rate, instead of the Config's schedule.
        keep_eval: modules that stay in eval mode in training, such as a frozen BatchNorm.
        init: initial weights: a file, a folder of a Hugging Face model, a run folder, a state dict,
            or `surestep.InitWeights(...)`. A resumed run does not read them.
        step: a custom step, `step(manual_step)`, written with the methods of a
            `surestep.ManualStep`. `loss` is then used by evaluations only, and may be None.
        optimizers: the optimizers of a custom step, by name: an Optim, a callable or an
            OptimizerSpec each. Each trains the submodule of its own name.
        teacher: a frozen model, or a function that builds it. It gets the same inputs in eval mode,
            and the loss gets the targets `(targets, teacher's outputs)`. It is not saved.
        loss_is_separable: False if the loss of a batch is not a mean over its items, such as a
            contrastive loss.
        reduction: what a custom loss, or the model's own, returns: "mean" over `items`, or "sum",
            which is not divided. By name for several losses.

    Raises:
        TaskError: an attribute has the wrong type, or two of them do not fit each other.

    Example:
        >>> import torch
        >>> import surestep
        >>> x, y = torch.randn(64, 4), torch.randint(0, 3, (64,))
        >>> task = surestep.Task(torch.nn.Linear(4, 3), loss="multiclass", train=(x, y), val=(x, y))
    """

    model: nn.Module | Callable[[], nn.Module]
    loss: LossFunction | str | Mapping[str, LossFunction | str] | None = None
    train: Any = None
    val: Any = None
    test: Any = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    items: Items | Mapping[str, Items] = "samples"
    inputs: Callable[[Any], tuple[Any, Any]] | None = None
    sampler: SampleOrder | None = None
    batch_transform: Callable[..., tuple[Any, Any]] | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    optimizer: Callable[[ParameterGroups], torch.optim.Optimizer] | None = None
    schedule: UserFunction | None = None
    keep_eval: Sequence[nn.Module] = ()
    init: Source | None = None
    loss_is_separable: bool = True
    teacher: nn.Module | Callable[[], nn.Module] | None = None
    step: Callable[[Any], object] | None = None
    optimizers: Mapping[str, Any] = field(default_factory=dict)
    loss_weights: Mapping[str, float] = field(default_factory=dict)
    reduction: str | Mapping[str, str] = "mean"
    batched: bool = False
    groups: Mapping[str, Collection[Any]] = field(default_factory=dict)
    times: Mapping[str, Collection[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.train is None and self.step is None:
            raise TaskError(
                "The Task has no data to train on. Pass Task(train=...), or step= if a step makes "
                "its own data, such as from an environment."
            )
        self._check_step()
        self._check_loss()
        if not isinstance(self.model, nn.Module) and not callable(self.model):
            raise TaskError(
                f"model is a {type(self.model).__name__}. Give an nn.Module or a function that "
                "returns one."
            )
        if self.init is not None:
            # A relative path is that of the current directory, which a model function may change.
            object.__setattr__(self, "init", as_init(self.init))
        self._check_data()
        if not isinstance(self.metrics, Mapping):
            raise TaskError(
                f"metrics is a {type(self.metrics).__name__}, not a dict of functions by name. "
                f"Write {EXAMPLE.format('accuracy')}."
            )
        for name, metric in self.metrics.items():
            check_metric(name, metric)
            if not _is_name(name) or name in ("loss", *self.loss_names()):
                raise TaskError(
                    f"A metric cannot be called {name!r}. Use another name, such as 'score'."
                )
        for name in self.val_sets():
            if not _is_name(name):
                raise TaskError(
                    f"A validation set cannot be called {name!r}: its metrics are called "
                    f"'set/metric'. Use {str(name).replace('/', '_') or 'clean'!r}."
                )
            if name in ("train", "test"):
                meant = "the training data" if name == "train" else "Task(test=...)"
                raise TaskError(
                    f"A validation set cannot be called {name!r}, the name of {meant}. Use another "
                    f"name, such as val={{'{name}_part': ...}}."
                )

    def _check_data(self) -> None:
        # Task(net, loss, X, Y) would use the targets as validation data.
        pair, arrays = (self.train, self.val), (torch.Tensor, np.ndarray)
        are_arrays = self.inputs is None and all(isinstance(data, arrays) for data in pair)
        if are_arrays and len(self.train) == len(self.val):
            raise TaskError(
                f"train and val are two arrays of {len(self.train)} rows. Inputs and their targets "
                "are one argument: train=(X, Y)."
            )
        if self.batched and self.collate_fn is not None:
            raise TaskError(
                "Task(batched=True) takes each element of the data as a batch, so collate_fn would "
                "never be called. Leave one of them out."
            )
        if self.batched and self.batch_transform is not None:
            raise TaskError(
                "batch_transform changes the samples of a global batch together, and the batches "
                "of Task(batched=True) are not put together. Apply it in the dataset."
            )
        for option in ("groups", "times"):
            if not isinstance(getattr(self, option), Mapping):
                raise TaskError(
                    f"{option} is a {type(getattr(self, option)).__name__}, not a dict. Name the "
                    f"data: {option}={{'train': ..., 'val': ...}}."
                )
        if self.sampler is not None and not hasattr(self.sampler, "bind"):
            raise TaskError(
                f"sampler is a {type(self.sampler).__name__}. Give one of surestep.samplers, such "
                "as samplers.weighted(weights) or samplers.custom(function)."
            )
        if self.batch_transform is not None and not callable(self.batch_transform):
            raise TaskError(
                f"batch_transform is a {type(self.batch_transform).__name__}. Give one of "
                "surestep.batch_transforms, such as batch_transforms.mixup(0.2), or a function of "
                "(inputs, targets)."
            )

    def _check_loss(self) -> None:
        if isinstance(self.loss, type):
            name = self.loss.__name__
            raise TaskError(f"loss={name} is a class. Write {name}().")
        if isinstance(self.loss, Mapping):
            check_several(self.loss, self.items, self.loss_weights, self.teacher, self.reduction)
            return
        named_options = {"items": self.items, "reduction": self.reduction}
        by_name = [name for name, value in named_options.items() if isinstance(value, Mapping)]
        if self.loss_weights or by_name:
            option = "loss_weights" if self.loss_weights else by_name[0]
            raise TaskError(
                f"{option} names several losses, and the Task has one. Pass "
                "Task(loss={'mask': ..., 'kind': ...}), or leave the names out."
            )
        if self.loss is None and self.reduction != "mean":
            raise TaskError(
                f"reduction={self.reduction!r} is set, and the Task has no loss. Leave it out."
            )
        for name in ("step", "batch_transform", "batched"):
            if self.loss == IN_TRAINING and getattr(self, name):
                instead = ", and give collate_fn" if name == "batched" else ""
                raise TaskError(
                    f"loss={IN_TRAINING!r} does not go with {name}=. Leave {name} out{instead}."
                )
        if self.teacher is not None and (self.loss is None or self.loss in _OF_MODEL):
            raise TaskError(
                "A teacher needs a loss that takes its outputs. Pass "
                "Task(loss=surestep.losses.distillation())."
            )
        if isinstance(self.loss, str) and self.loss not in _OF_MODEL:
            get_loss(self.loss)
        elif not (self.loss is None or callable(self.loss) or self.loss in _OF_MODEL):
            raise TaskError(
                f"loss is a {type(self.loss).__name__}, not a callable. Give nn.CrossEntropyLoss() "
                'or a function of (outputs, targets), or "model" for a model that returns .loss.'
            )

    def _check_step(self) -> None:
        if self.step is None:
            if self.optimizers:
                raise TaskError(
                    "Task(optimizers=...) names several optimizers, but no step decides when each "
                    "is stepped. Pass Task(step=...), a function of a surestep.ManualStep."
                )
            if self.loss is None:
                raise TaskError("The Task has no loss. Pass Task(loss=...), or a step=.")
            return
        if not callable(self.step):
            raise TaskError(
                f"step is a {type(self.step).__name__}, not a function of a surestep.ManualStep."
            )
        if isinstance(self.loss, Mapping):
            raise TaskError(
                "The Task has several losses and a custom step, so the items that weight "
                "a micro-batch are not known. Pass one loss that returns a dict of named means."
            )
        if self.loss is None and (self.val is not None or self.test is not None):
            raise TaskError(
                "The Task has data to evaluate on and no loss to measure. Pass Task(loss=...), "
                "which evaluations compute from the model's outputs; your own step does not use it."
            )
        if self.optimizers and self.optimizer is not None:
            raise TaskError("Task has optimizer= and optimizers=. Put the first among the others.")
        for name, optim in self.optimizers.items():
            if not _is_name(name):
                raise TaskError(f"An optimizer cannot be called {name!r}. Choose another name.")
            if not isinstance(optim, (Optim, OptimizerSpec)) and not callable(optim):
                raise TaskError(
                    f"optimizers[{name!r}] is a {type(optim).__name__}. Give surestep.Optim(...), "
                    "a function that makes an optimizer, or a surestep.OptimizerSpec(...)."
                )

    def optimizer_specs(self) -> dict[str, OptimizerSpec]:
        """Return the optimizers by name, where the Task names them."""
        return {
            name: optim if isinstance(optim, OptimizerSpec) else OptimizerSpec(optim)
            for name, optim in self.optimizers.items()
        }

    def build_model(self) -> nn.Module:
        """Return the model, built now where the Task holds a function.

        Raises:
            TaskError: the function raised, or returned something else.
        """
        return _built(self.model, "model")

    def build_loss(self, model: nn.Module) -> Loss:
        """Return the loss with its denominator; where it is the model's own, by the model.

        Args:
            model: the built model; if it has 16-bit parameters, the loss is summed in fp32.

        Raises:
            TaskError: the denominator is not known, or the teacher cannot be built.
        """
        loss = self._loss_of(model).for_model(model)
        return loss if self.batch_transform is None else accept_mixed(loss)

    def _loss_of(self, model: nn.Module) -> Loss:
        if isinstance(self.loss, Mapping):
            items = self.items if isinstance(self.items, Mapping) else {}
            reductions = self.reduction if isinstance(self.reduction, Mapping) else {}
            return as_losses(self.loss, items, self.loss_weights, reductions)
        assert not isinstance(self.items, Mapping)
        assert not isinstance(self.reduction, Mapping)
        if self.loss == "model":
            return model_loss(model, self.items, self.reduction)
        if self.loss == IN_TRAINING:
            return training_losses(self.items, self.reduction)
        if self.loss is None:
            return items_only_loss(self.items)
        loss = as_loss(self.loss, self.items, self.reduction)
        teacher = None if self.teacher is None else _built(self.teacher, "teacher")
        return replace(loss, teacher=teacher)

    def split_batch(self, batch: Any) -> tuple[tuple[Any, ...], Mapping[str, Any], Any]:
        """Return the batch as (args, kwargs, targets) of the model.

        Args:
            batch: as `collate_fn` or the data returned it.

        Raises:
            DataError: `inputs` is not set, and it is not clear which part is the targets.
        """
        if self.inputs is None:
            if self.loss is None:
                return batch_as_inputs(batch)
            if isinstance(self.loss, Mapping):
                return split_named(batch, self.loss)
            return batch_as_kwargs(batch) if self.loss == "model" else split_batch(batch)
        inputs, targets = self.inputs(batch)
        if isinstance(inputs, Mapping):
            return (), inputs, targets
        return (inputs if isinstance(inputs, tuple) else (inputs,)), {}, targets

    def loss_names(self) -> list[str]:
        """Return what each of several losses is called in events and evaluations."""
        return [f"loss_{name}" for name in self.loss] if isinstance(self.loss, Mapping) else []

    def counts_targets(self) -> bool:
        """Return whether targets are enough to count items: no function of the batch does it."""
        items = self.items.values() if isinstance(self.items, Mapping) else (self.items,)
        return not any(map(callable, items))

    def val_sets(self) -> dict[str, Any]:
        """Return the validation data by name; the only one is called "val"."""
        if self.val is None:
            return {}
        several = isinstance(self.val, dict) and not all(
            isinstance(part, (torch.Tensor, np.ndarray)) for part in self.val.values()
        )
        return dict(self.val) if several else {"val": self.val}


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and name != "" and "/" not in name


def _needed_arguments(given: Callable[..., Any]) -> list[str]:
    """Return the arguments of a function that have no default."""
    if isinstance(given, type):  # its error names them
        return []
    try:
        parameters = inspect.signature(given).parameters.values()
    except ValueError:  # some builtins have none
        return []
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in kinds]


def _built(given: nn.Module | Callable[[], nn.Module], what: str) -> nn.Module:
    if isinstance(given, nn.Module):
        return given
    if _needed_arguments(given):
        raise TaskError(
            f"{what} must be a function without arguments, and this one takes "
            f"{', '.join(_needed_arguments(given))}. Pass a function that returns an nn.Module, or "
            "the module itself."
        )
    try:
        built = given()
    except Exception as error:
        if isinstance(given, type):
            raise TaskError(
                f"{what}={given.__name__} is a class, and {given.__name__}() failed: {error}. Pass "
                f"an object, {what}={given.__name__}(...), or a function that returns one."
            ) from error
        line = traceback.extract_tb(error.__traceback__)[-1]
        raise TaskError(
            f"The function given as {what} failed at {line.filename}, line {line.lineno}: "
            f"{type(error).__name__}: {error}."
        ) from error
    if not isinstance(built, nn.Module):
        raise TaskError(
            f"The function given as {what} returned a {type(built).__name__}, not an nn.Module."
        )
    return built
