"""What was measured in a run and deserves a line at its end: a number, and what to do.

Each rule is a function of a `Case` that returns a Finding or None. They use what the log points
have read already; those of the data read a few samples once, when the run has finished.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor, nn

from surestep.engine.data.dataset import count_samples
from surestep.engine.data.open_source import dataset_fingerprint
from surestep.engine.data.sources import InMemory
from surestep.engine.data.stream import is_stream
from surestep.engine.losses.multi import named_losses
from surestep.engine.model.param_patterns import plain_name
from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import SystemInfo
from surestep.engine.state.state import trainable_parameters
from surestep.engine.step.log_point import LogPoint
from surestep.engine.step.loop import Loop
from surestep.engine.task.task import Task

WAITS = 0.2  # of the time, above which waiting for data is reported
HANDED_OVER_S = 2e-3  # a batch from a worker costs about 1 ms: loading below this gains nothing
CLIPS = 0.5  # of the steps, above which clipping is reported
FEW = 20  # steps, below which a share says nothing
FLAT_STEPS = 100  # below which a loss may still be about to fall
FLAT = 0.01  # of the first loss: a smaller fall is none
SOLVED = 1e-6  # a first loss below it has nowhere to fall
NOISE = 3.0  # standard errors of a difference of means
_MOST = 6  # names in a message
GROUPS = 64  # of consecutive losses; twice as many are merged in pairs
RATIOS = 4096  # gradient norms over the limit that are kept


@dataclass
class Group:
    """Consecutive losses: how many, their sum, and the sum of their squares."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, other: "Group") -> None:
        """Take in other losses."""
        self.count += other.count
        self.total += other.total
        self.squares += other.squares

    @property
    def mean(self) -> float:
        """The mean loss."""
        return self.total / self.count

    @property
    def variance(self) -> float:
        """The variance of a single loss."""
        return max(self.squares / self.count - self.mean**2, 0.0)


@dataclass
class Observed:
    """What this process has seen at its log points; called with each.

    Attributes:
        model: that is trained.
        plan: of the run.
        steps: in all; timed_steps, seconds and waited_s leave the first log point out, in which
            workers start and kernels are chosen.
        first_step: the first that was seen; 0 before there is one.
        clipped: steps whose norm was above the limit; ratios: of norm to limit, of those.
        losses: in groups of consecutive steps.
        no_gradient: parameters that were trained and had no gradient at any log point.
        items_per_step: of the last log point.
    """

    model: nn.Module
    plan: Plan
    steps: int = 0
    timed_steps: int = 0
    seconds: float = 0.0
    data_wait_s: float = 0.0
    first_step: int = 0
    clipped: int = 0
    ratios: list[float] = field(default_factory=list)
    losses: list[Group] = field(default_factory=list)
    no_gradient: dict[str, nn.Parameter] = field(default_factory=dict)
    items_per_step: float = 0.0

    def __call__(self, point: LogPoint) -> None:
        """Take in a log point."""
        count = len(point.loss)
        if not self.steps:
            self.first_step = point.first_step
            self.no_gradient = trainable_parameters(self.model)
        else:
            self.timed_steps += count
            self.seconds += point.seconds
            self.data_wait_s += point.data_wait_s
        self.steps += count
        self.items_per_step = point.items / count
        self._take_norms(point)
        self._take_losses(point)
        self.no_gradient = {
            name: each
            for name, each in self.no_gradient.items()
            if each.requires_grad and each.grad is None
        }

    def _take_norms(self, point: LogPoint) -> None:
        limit = self.plan.max_grad_norm
        if limit is None:
            return
        ratios = [norm / limit for norm in point.grad_norm if norm is not None]
        above = [each for each in ratios if 1 < each < math.inf]
        self.clipped += len(above)
        self.ratios = (self.ratios + above)[-RATIOS:]

    def _take_losses(self, point: LogPoint) -> None:
        size = 1 if not self.losses else max(each.count for each in self.losses)
        for loss in point.loss:
            if loss is None or not math.isfinite(loss):
                continue
            if not self.losses or self.losses[-1].count >= size:
                self.losses.append(Group())
            self.losses[-1].add(Group(1, loss, loss * loss))
            if len(self.losses) == 2 * GROUPS:
                for first, second in zip(self.losses[::2], self.losses[1::2], strict=True):
                    first.add(second)
                del self.losses[1::2]
                size *= 2


@dataclass(frozen=True)
class Finding:
    """Something measured that is probably not meant.

    Attributes:
        rule: its name, such as "waits-for-data".
        severity: "warning" if the result may be wrong, "speed" or "info" otherwise.
        message: what was measured, with the number, in one sentence.
        evidence: the numbers, as JSON can hold them.
        fix: what to do.
    """

    rule: str
    severity: Literal["warning", "speed", "info"]
    message: str
    evidence: dict[str, Any]
    fix: str

    def __str__(self) -> str:
        return f"{self.message} {self.fix}"


@dataclass(frozen=True)
class Case:
    """A run at its end.

    Attributes:
        loop: its feed, plan and state.
        task: what was trained.
        observed: what its log points showed.
        facts: of the machine.
        is_finished: all is done, so that data may be read.
    """

    loop: Loop
    task: Task
    observed: Observed
    facts: SystemInfo
    is_finished: bool


def find(case: Case) -> list[Finding]:
    """Return what the rules find, in their order.

    They look at the user's objects, which may raise anything; the run's end must be written.
    """
    every: list[Finding] = []
    for rule in RULES:
        try:
            found = rule(case)
        except Exception as error:
            name, text = rule.__name__.replace("_", "-"), f"{type(error).__name__}: {error}"
            found = Finding(name, "info", f"This could not be checked: {text}.", {}, "")
        every += [] if found is None else [found]
    return every


def waits_for_data(case: Case) -> Finding | None:
    """Report a run that waits for its data, with the number of workers that would keep up.

    Without workers the wait is the loading itself; n workers load n batches at a time, and what
    remains visible is the wait. So loading takes `workers * (step + wait)` a batch, or the wait.
    """
    seen, plan = case.observed, case.loop.plan
    sliced = isinstance(case.loop.loader.source, InMemory)
    if seen.timed_steps < FEW or sliced or not seen.seconds:
        return None
    share = seen.data_wait_s / seen.seconds
    if share <= WAITS:
        return None
    wait_s = seen.data_wait_s / seen.timed_steps
    step_s = (seen.seconds - seen.data_wait_s) / seen.timed_steps
    workers = plan.data_num_workers
    load_s = workers * (step_s + wait_s) if workers else wait_s
    if load_s < HANDED_OVER_S:
        return None
    needed = max(workers + 1, math.ceil(load_s / max(step_s, 1e-9) - 1e-6))
    cores = max(1, case.facts.cpus // max(1, case.facts.launched.local_size))
    fix = f"Set data.num_workers={needed}, which would load as fast as the step trains."
    if needed > cores:
        fix = (
            f"{needed} workers would keep up and a process has {cores} "
            f"core{'s' if cores > 1 else ''} here: make loading cheaper (decode and resize once, "
            f"keep data in memory), and set data.num_workers={cores}."
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
    """Report gradients that are clipped in most steps."""
    seen, limit = case.observed, case.loop.plan.max_grad_norm
    if limit is None or seen.steps < FEW or seen.clipped <= CLIPS * seen.steps:
        return None
    ratio = median(seen.ratios)
    return Finding(
        "clips-most-steps",
        "info",
        f"{seen.clipped} of {seen.steps} steps ({seen.clipped / seen.steps:.0%}) were clipped: "
        f"their gradient norm was {ratio:.3g} times max_grad_norm={limit:g} (median).",
        {"clipped": seen.clipped, "steps": seen.steps, "ratio": ratio, "limit": limit},
        "The length of the gradient then hardly counts, and optim.lr alone sets how far a step "
        f"goes. If that is not meant, set max_grad_norm={_rounded_up(2 * ratio * limit):g}, or "
        "'off' to only measure it.",
    )


def loss_is_flat(case: Case) -> Finding | None:
    """Report a training loss that never fell, measured against its own noise."""
    groups, plan = case.observed.losses, case.loop.plan
    steps = sum(each.count for each in groups)
    whole_run = case.observed.first_step == 1 and case.task.step is None
    if not whole_run or steps < FLAT_STEPS or len(groups) < 4 or abs(groups[0].mean) < SOLVED:
        return None
    quarters = [
        _merged(groups[len(groups) * i // 4 : len(groups) * (i + 1) // 4]) for i in range(4)
    ]
    first = quarters[0]
    lowest = min(quarters[1:], key=lambda each: each.mean)
    noise = math.sqrt(first.variance / first.count + lowest.variance / lowest.count)
    start = groups[0].mean
    fell = max(first.mean, start) - lowest.mean
    if fell > max(NOISE * noise, FLAT * abs(first.mean)):
        return None
    return Finding(
        "loss-is-flat",
        "warning",
        f"The training loss did not fall in {steps} steps: {first.mean:.4g} in the first quarter, "
        f"{lowest.mean:.4g} at best after it (noise {noise:.2g}).",
        {"first": first.mean, "lowest": lowest.mean, "noise": noise, "steps": steps},
        "Check that the model can learn 32 samples (`surestep train RECIPE --overfit 32`), and "
        f"look at the learning rate{f' ({plan.optim_lr:g})' if plan.optim_lr else ''}, the "
        "targets, and whether the loss reaches every layer.",
    )


def validates_on_training_data(case: Case) -> Finding | None:
    """Report a validation set whose samples are those of training, by a digest of some of them."""
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
    """Compare a part with the training data; a dataset that draws at random is never the same."""
    task, plan = case.task, case.loop.plan
    if data is task.train:
        return True
    if is_stream(data) or count_samples(data, name) != count_samples(task.train, "train"):
        return False
    here = dataset_fingerprint(data, name, task=task, plan=plan)
    return here is not None and here == dataset_fingerprint(
        task.train, "train", task=task, plan=plan
    )


def classes_come_sorted(case: Case) -> Finding | None:
    """Report classes that come one after the other, since nothing shuffles them."""
    plan, feed = case.loop.plan, case.loop.loader
    if plan.data_shuffle or feed.order is not None or not case.is_finished:
        return None
    targets = _classes(case)
    if targets is None or len(targets) <= 2 * plan.batch_size:
        return None
    classes = int((targets[1:] != targets[:-1]).sum()) + 1
    if classes < 2 or bool((targets[1:] < targets[:-1]).any()):
        return None
    return Finding(
        "classes-come-sorted",
        "warning",
        f"The {classes} classes of the training data come in sorted order, and data.shuffle is "
        f"off: most batches of {plan.batch_size} have one class.",
        {"classes": classes, "samples": len(targets), "batch_size": plan.batch_size},
        "Set data.shuffle=True.",
    )


def _classes(case: Case) -> Tensor | None:
    """Return the class of each training sample, if tensors in memory or `targets` have it."""
    source, loss = case.loop.loader.source, case.loop.parts.loss
    if isinstance(source, InMemory) and source.index is None:
        if loss.kind != "classes":
            return None
        found = case.loop.loader.split(source.tensors)[2]
    else:
        dataset = getattr(case.task.train, "dataset", case.task.train)
        found = getattr(dataset, "targets", None)
        found = torch.tensor(found) if _are_integers(found) else found
    is_one_class_each = isinstance(found, Tensor) and found.dim() == 1
    return found if is_one_class_each and not found.is_floating_point() else None


def _are_integers(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is int for each in value)


def trains_without_gradient(case: Case) -> Finding | None:
    """Report parameters that never had a gradient: no step has moved them."""
    if case.observed.steps < FEW or not case.loop.parts.strategy.has_param_grads:
        return None
    state = case.loop.state
    if case.task.step is not None and not any(each.state for each in state.optimizers.values()):
        return None  # an own step may clear gradients, and nothing else tells of them
    moved = {id(each) for optimizer in state.optimizers.values() for each in optimizer.state}
    names = [name for name, each in case.observed.no_gradient.items() if id(each) not in moved]
    if not names:
        return None
    layers = list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
    return Finding(
        "trains-without-gradient",
        "warning",
        f"{len(names)} trained parameter{'s' if len(names) > 1 else ''} of {_listed(layers)} never "
        f"had a gradient in {case.observed.steps} steps, so they are as they were at the start.",
        {"parameters": names, "layers": layers, "steps": case.observed.steps},
        "Use them in the forward pass, look for a detach() or no_grad() before them, or remove or "
        "freeze them.",
    )


def hides_modules(case: Case) -> Finding | None:
    """Report modules in a plain list, tuple or dict, which the model does not register."""
    model = case.loop.state.model
    registered = {id(each) for each in model.parameters()}
    for optimizer in case.loop.state.optimizers.values():
        registered |= {id(each) for group in optimizer.param_groups for each in group["params"]}
    hidden = [
        f"{plain_name(name)}.{attribute}".lstrip(".")
        for name, module in model.named_modules()
        for attribute, value in vars(module).items()
        if isinstance(value, (list, tuple, dict))
        and any(each.requires_grad and id(each) not in registered for each in _parameters(value))
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
    for each in value.values() if isinstance(value, dict) else value:
        if isinstance(each, nn.Parameter):
            yield each
        elif isinstance(each, nn.Module):
            yield from each.parameters()
        elif isinstance(each, (list, tuple, dict)) and depth:
            yield from _parameters(each, depth - 1)


def loss_is_a_sum(case: Case) -> Finding | None:
    """Report a loss that is a sum, so that its gradient grows with the batch."""
    plan = case.loop.plan
    names = [
        name or plan.loss
        for name, loss in named_losses(case.loop.parts.loss)
        if loss.is_sum and not loss.divides and loss.kind != "none"
    ]
    items = case.observed.items_per_step
    if not names or items <= 1:
        return None
    return Finding(
        "loss-is-a-sum",
        "info",
        f"The loss {_listed(names)} is a sum: its gradient is {items:g} times that of the mean, so "
        f"a batch_size other than {plan.batch_size} changes the effective learning rate.",
        {"losses": names, "items_per_step": items, "batch_size": plan.batch_size},
        "If that is not meant, use the mean (reduction='mean'); else set optim.lr for this batch "
        "size, and look at max_grad_norm, which clips the sum's gradient.",
    )


def threads_fight(case: Case) -> Finding | None:
    """Report more threads that compute at once than there are cores."""
    facts, plan = case.facts, case.loop.plan
    ranks, workers = max(1, facts.launched.local_size), plan.data_num_workers
    threads = torch.get_num_threads() if plan.device.type == "cpu" else 1
    computing, loading = ranks * threads, ranks * workers  # a worker of torch's has one thread
    cores = f"{facts.cpus} core{'s' if facts.cpus > 1 else ''}"
    each = f"{ranks} rank{'s' if ranks > 1 else ''} x "
    if computing > max(facts.cpus, ranks):
        said = f"{computing} threads compute at once on {cores}: {each}{threads} threads."
        fix = f"Set OMP_NUM_THREADS={max(1, facts.cpus // ranks)}."
    elif loading > facts.cpus:
        said = f"{loading} data workers load at once on {cores}: {each}{workers} workers."
        fix = f"Set data.num_workers={facts.cpus // ranks}."
    else:
        return None
    evidence = {"ranks": ranks, "threads": threads, "workers": workers, "cores": facts.cpus}
    return Finding("threads-fight", "speed", said, evidence, fix)


RULES: tuple[Callable[[Case], Finding | None], ...] = (
    loss_is_flat,
    trains_without_gradient,
    hides_modules,
    validates_on_training_data,
    classes_come_sorted,
    clips_most_steps,
    loss_is_a_sum,
    waits_for_data,
    threads_fight,
)


def _merged(groups: list[Group]) -> Group:
    found = Group()
    for each in groups:
        found.add(each)
    return found


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(map(repr, names[:_MOST])) + more


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _rounded_up(value: float) -> float:
    """Round up to one digit."""
    scale = 10.0 ** math.floor(math.log10(value))
    return math.ceil(value / scale) * scale
