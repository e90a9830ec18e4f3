"""Findings: what a run measured that is probably not meant, each with a number and a fix.

Each rule is a function of a `Case` that returns a Finding or None.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

import numpy as np
from torch import nn

from surestep.engine.data.dataset import count_samples
from surestep.engine.data.make_source import dataset_fingerprint
from surestep.engine.data.sources import InMemory
from surestep.engine.data.stream import is_stream
from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import SystemInfo
from surestep.engine.state.state import trainable_parameters
from surestep.engine.step.log_point import LogPoint
from surestep.engine.step.loop import Loop
from surestep.engine.task.task import Task

_WAIT_SHARE = 0.2  # of the time, above which waiting for data is reported
_HANDOVER_S = 2e-3  # a batch from a worker costs about 1 ms, so faster loading needs none
_CLIPPED_SHARE = 0.5  # of the steps, above which clipping is reported
_MIN_STEPS = 20  # below which a share is not reported
_FLAT_STEPS = 100  # below which a loss may still start to fall
_FLAT = 0.01  # of the first loss: a smaller fall is none
_SOLVED = 1e-6  # a first loss below it cannot fall
_STANDARD_ERRORS = 3.0  # of a difference of means
_LISTED = 6  # names in a message
_BINS = 40  # of the steps of a run, whose losses are summed


@dataclass
class Observed:
    """What this process read at its log points; called with each."""

    model: nn.Module
    plan: Plan
    steps: int = 0
    timed_steps: int = 0  # without the first log point, in which workers start; nor are the seconds
    seconds: float = 0.0
    data_wait_s: float = 0.0
    first_step: int = 0
    ratios: deque[float] = field(default_factory=lambda: deque(maxlen=4096))  # norm / limit
    losses: Any = field(default_factory=lambda: np.zeros((_BINS, 3)))  # number, sum, squares
    no_gradient: dict[str, nn.Parameter] = field(default_factory=dict)  # at no log point so far

    def __call__(self, point: LogPoint) -> None:
        """Add a log point."""
        count = len(point.loss)
        if not self.steps:
            self.first_step = point.first_step
            self.no_gradient = trainable_parameters(self.model)
        else:
            self.timed_steps += count
            self.seconds += point.seconds
            self.data_wait_s += point.data_wait_s
        self.steps += count
        if (limit := self.plan.max_grad_norm) is not None:
            ratios = [norm / limit for norm in point.grad_norm if norm is not None]
            self.ratios.extend(ratio for ratio in ratios if 1 < ratio < math.inf)
        for step, loss in enumerate(point.loss, start=point.first_step):
            if loss is not None and math.isfinite(loss):
                bin_ = (step - 1) * _BINS // max(self.plan.total_steps, step)
                self.losses[bin_] += 1.0, loss, loss * loss
        self.no_gradient = {
            name: parameter
            for name, parameter in self.no_gradient.items()
            if parameter.requires_grad and parameter.grad is None
        }


@dataclass(frozen=True)
class Finding:
    """Something measured that is probably not meant; a "warning" if the result may be wrong."""

    rule: str
    severity: Literal["warning", "speed", "info"]
    message: str
    evidence: dict[str, Any]
    fix: str

    def __str__(self) -> str:
        return f"{self.message} {self.fix}"


@dataclass(frozen=True)
class Case:
    """A run at its end; data is only read if it is finished."""

    loop: Loop
    task: Task
    observed: Observed
    system: SystemInfo
    is_finished: bool


def find(case: Case) -> list[Finding]:
    """Return what the rules find. Their errors are caught, since the end must be written."""
    findings: list[Finding] = []
    for rule in RULES:
        try:
            finding = rule(case)
        except Exception as error:  # of the user's objects
            name, text = rule.__name__.replace("_", "-"), f"{type(error).__name__}: {error}"
            finding = Finding(name, "info", f"This could not be checked: {text}.", {}, "")
        findings += [] if finding is None else [finding]
    return findings


def waits_for_data(case: Case) -> Finding | None:
    """Report a run that waits for its data, with the number of workers that would keep up."""
    seen, plan = case.observed, case.loop.plan
    is_in_memory = isinstance(case.loop.loader.source, InMemory)
    if seen.timed_steps < _MIN_STEPS or is_in_memory or not seen.seconds:
        return None
    share = seen.data_wait_s / seen.seconds
    if share <= _WAIT_SHARE:
        return None
    wait_s = seen.data_wait_s / seen.timed_steps
    step_s = (seen.seconds - seen.data_wait_s) / seen.timed_steps
    workers = plan.data_num_workers
    load_s = workers * (step_s + wait_s) if workers else wait_s  # they load a batch each
    if load_s < _HANDOVER_S:
        return None
    needed = max(workers + 1, math.ceil(load_s / max(step_s, 1e-9) - 1e-6))
    cores = max(1, case.system.cpus // max(1, case.system.launched.local_size))
    fix = f"Set data.num_workers={needed}, which would load as fast as the step trains."
    if needed > cores:
        fix = (
            f"{needed} workers would keep up, and a process has {cores} cores here: make loading "
            "cheaper (decode and resize once, load data into memory), and set "
            f"data.num_workers={cores}."
        )
    return Finding(
        "waits-for-data",
        "speed",
        f"{share:.0%} of the time was spent waiting for data: loading a batch takes "
        f"{_seconds(load_s)} and its step {_seconds(step_s)}, with data.num_workers={workers}.",
        {
            "share": share,
            "load_s": load_s,
            "step_s": step_s,
            "num_workers": workers,
            "workers_needed": needed,
            "cores": cores,
        },
        fix,
    )


def clips_most_steps(case: Case) -> Finding | None:
    """Report gradients that are clipped in most of the steps that were taken."""
    state, limit, ratios = case.loop.state, case.loop.plan.max_grad_norm, case.observed.ratios
    taken, clipped = state.progress.steps_taken, state.counts.clipped
    if limit is None or taken < _MIN_STEPS or clipped <= _CLIPPED_SHARE * taken or not ratios:
        return None
    ratio = median(ratios)
    enough = float(f"{2 * ratio * limit:.1g}")
    return Finding(
        "clips-most-steps",
        "info",
        f"{clipped} of {taken} steps ({clipped / taken:.0%}) were clipped: "
        f"their gradient norm was {ratio:.3g} times max_grad_norm={limit:g} (median).",
        {"clipped": clipped, "steps": taken, "ratio": ratio, "limit": limit},
        "The gradient norm then has little effect: optim.lr alone sets the size of an update. "
        f"To clip fewer steps, set max_grad_norm={enough:g}; to clip none and only measure the "
        "norm, 'off'.",
    )


def loss_is_flat(case: Case) -> Finding | None:
    """Report a training loss that never fell, measured against its own noise."""
    losses = case.observed.losses[case.observed.losses[:, 0] > 0]
    steps, n_bins = int(losses[:, 0].sum()), len(losses)
    saw_all = case.observed.first_step == 1 and case.task.step is None
    if not saw_all or steps < _FLAT_STEPS or n_bins < 4:
        return None
    quarter, start = np.arange(n_bins) * 4 // n_bins, losses[0, 1] / losses[0, 0]
    sums = np.stack([losses[quarter == number].sum(axis=0) for number in range(4)])
    means, squares = sums[:, 1] / sums[:, 0], sums[:, 2] / sums[:, 0]
    errors = np.maximum(squares - means**2, 0.0) / sums[:, 0]  # squared standard errors
    at = 1 + int(means[1:].argmin())
    first, lowest, noise = float(means[0]), float(means[at]), math.sqrt(errors[0] + errors[at])
    enough = max(_STANDARD_ERRORS * noise, _FLAT * abs(first))
    if abs(start) < _SOLVED or max(first, start) - lowest > enough:
        return None
    lr = case.loop.plan.optim_lr
    return Finding(
        "loss-is-flat",
        "warning",
        f"The training loss did not fall in {steps} steps: {first:.4g} in the first quarter, "
        f"{lowest:.4g} at best after it (noise {noise:.2g}).",
        {"first": first, "lowest": lowest, "noise": noise, "steps": steps},
        "Check that the model can learn 32 samples (`surestep train RECIPE --overfit 32`), and "
        f"check the learning rate{f' ({lr:g})' if lr else ''}, the targets, and whether the loss "
        "reaches every layer.",
    )


def validates_on_training_data(case: Case) -> Finding | None:
    """Report a validation set with the samples of training, by a digest of some of them."""
    task, plan = case.task, case.loop.plan
    if not case.is_finished or is_stream(task.train):
        return None
    count = count_samples(task.train, "train")
    same = [name for name, data in task.val_sets().items() if _same_samples(case, data, name)]
    if not same:
        return None
    digest = dataset_fingerprint(task.train, "train", task=task, plan=plan)
    return Finding(
        "validates-on-training-data",
        "warning",
        f"The validation data {_listed(same)} has the same {count} "
        f"{'batches' if case.loop.loader.is_ready else 'samples'} as the training data.",
        {"parts": same, "samples": count, "digest": digest},
        "Hold samples out, such as torch.utils.data.random_split(data, [0.9, 0.1]): a metric on "
        "training data does not show how the model does on new data.",
    )


def _same_samples(case: Case, data: Any, name: str) -> bool:
    """Compare a set with the training data; a dataset that draws at random is never the same."""
    task, plan = case.task, case.loop.plan
    if data is task.train:
        return True
    if is_stream(data) or count_samples(data, name) != count_samples(task.train, "train"):
        return False
    digest = dataset_fingerprint(data, name, task=task, plan=plan)
    train = dataset_fingerprint(task.train, "train", task=task, plan=plan)
    return digest is not None and digest == train


def trains_without_gradient(case: Case) -> Finding | None:
    """Report parameters that never had a gradient, so that no step updated them."""
    if case.observed.steps < _MIN_STEPS or not case.loop.parts.strategy.has_param_grads:
        return None
    state = case.loop.state
    if case.task.step is not None and not any(
        optimizer.state for optimizer in state.optimizers.values()
    ):
        return None  # a manual step may clear the gradients before the log point
    updated = {id(p) for optimizer in state.optimizers.values() for p in optimizer.state}
    names = [name for name, p in case.observed.no_gradient.items() if id(p) not in updated]
    if not names:
        return None
    layers = list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
    return Finding(
        "trains-without-gradient",
        "warning",
        f"{len(names)} trained parameter{'s' if len(names) > 1 else ''} of {_listed(layers)} never "
        f"had a gradient in {case.observed.steps} steps, so they have their initial values.",
        {"parameters": names, "layers": layers, "steps": case.observed.steps},
        "Use them in the forward pass, check for a detach() or no_grad() before them, or remove or "
        "freeze them.",
    )


def hides_modules(case: Case) -> Finding | None:
    """Report modules in a plain list, tuple or dict, which the model does not register."""
    model = case.loop.state.model
    registered = {id(parameter) for parameter in model.parameters()}
    for optimizer in case.loop.state.optimizers.values():
        registered |= {id(p) for group in optimizer.param_groups for p in group["params"]}
    hidden = [
        f"{name}.{attribute}".lstrip(".")
        for name, module in model.named_modules()
        for attribute, value in vars(module).items()
        if isinstance(value, (list, tuple, dict))
        and any(p.requires_grad and id(p) not in registered for p in _parameters(value))
    ]
    if not hidden:
        return None
    return Finding(
        "hides-modules",
        "warning",
        f"The model holds layers in plain lists or dicts ({_listed(hidden)}), so they are not "
        "registered: not trained, not moved to the device, and not saved.",
        {"attributes": hidden},
        "Use nn.ModuleList or nn.ModuleDict; requires_grad_(False) if nothing should train them.",
    )


def _parameters(
    value: list[Any] | tuple[Any, ...] | dict[Any, Any], depth: int = 4
) -> Iterator[nn.Parameter]:
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, nn.Parameter):
            yield item
        elif isinstance(item, nn.Module):
            yield from item.parameters()
        elif isinstance(item, (list, tuple, dict)) and depth:
            yield from _parameters(item, depth - 1)


RULES: tuple[Callable[[Case], Finding | None], ...] = (
    loss_is_flat,
    trains_without_gradient,
    hides_modules,
    validates_on_training_data,
    clips_most_steps,
    waits_for_data,
)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(map(repr, names[:_LISTED])) + more


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
