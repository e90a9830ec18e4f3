"""The program whose laws are proved, and what is known of it before it is trained."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from surestep.base.errors import ConfigError, TaskError
from surestep.base.text import describe_value
from surestep.config.config import Config
from surestep.config.not_set import NOT_SET
from surestep.config.optim import FIND
from surestep.engine.plan.fitting import DROPOUT
from surestep.engine.step.callback import Callback
from surestep.engine.task.task import Task
from surestep.laws.files import protect_files
from surestep.trainer.planning import plan_task

_calls: list[int] = []  # of make_task in this process
_BATCHES = 4  # of an epoch: its middle and its end are different, and 10 steps have two ends


@dataclass(frozen=True)
class Program:
    """A task that can be made again and again, and how it is trained.

    Attributes:
        make_task: makes it from scratch.
        config: the options of the real run.
        callbacks: of the real run.
        steps: how many are compared.
        samples: of an epoch at most; None is four batches.
        began: when the proof began, in seconds of `time.time()`.
    """

    make_task: Callable[[], Task]
    config: Config
    callbacks: Sequence[Callback] = ()
    steps: int = 10
    samples: int | None = None
    began: float = field(default_factory=time.time)

    def build(self) -> Task:
        """Make the task.

        Raises:
            TaskError: the function returned something else, or cannot be called twice.
        """
        try:
            task = self.make_task()
        except Exception as error:
            if not _calls:
                raise
            raise TaskError(
                "make_task() can be called once alone: the second call in a process raised "
                f"{type(error).__name__}: {error}. Make everything in it again, and register "
                "nothing twice."
            ) from error
        _calls.append(1)
        if not isinstance(task, Task):
            raise TaskError(
                f"make_task() returned {describe_value(task)}, not a surestep.Task. Is a return "
                "missing?"
            )
        return task


@dataclass(frozen=True)
class Facts:
    """What a program is, as far as checks depend on it.

    Attributes:
        options: bound its epochs, and switch off what leaves the process.
        total_steps: of the real run.
        steps_per_epoch: of the runs that are compared.
        batch_size: samples of a step.
        precision: of the real run.
        device: that it trains on.
        has_validation: whether there is validation data.
        is_stream: whether the training data is a stream.
        is_in_memory: whether it is tensors in memory.
        loads_in_workers: whether the number of data workers may change.
        has_loader: the batches are those of a DataLoader of the program.
        order: the name of the sampler; "" for the default.
        not_splitting: why micro-batches change the numbers by design, without dropout.
        on_plateau: evaluations decide the learning rate.
        own_step: the task has a manual step.
        has_no_data: this step makes its own data.
        optimizes_alone: the optimizer evaluates the batch by itself.
    """

    options: Mapping[str, Any]
    total_steps: int
    steps_per_epoch: int
    batch_size: int
    precision: str
    device: str
    has_validation: bool
    is_stream: bool
    is_in_memory: bool
    loads_in_workers: bool
    has_loader: bool
    order: str
    not_splitting: tuple[str, ...]
    on_plateau: bool
    own_step: bool
    has_no_data: bool
    optimizes_alone: bool


def describe_program(program: Program) -> Facts:
    """Plan the real run, and return what is known of it; the model is built for that.

    Raises:
        ConfigError, TaskError, DataError: it cannot be planned, or has too little data.
    """
    protect_files(program.began)
    planned = plan_task(program.build(), program.config)
    plan, info = planned.plan, planned.info
    batches = _count_batches(program, plan.batch_size, plan.steps_per_epoch)
    options: dict[str, Any] = {
        "max_steps": plan.total_steps,
        "limit_train_batches": batches,
        "logging.progress": "quiet",
        "logging.trackers": (),
        "checkpoint.mirror": None,
    }
    has_validation = bool(info.val_sets)
    if has_validation and not planned.fits_evaluation:
        options["limit_val_batches"] = min(plan.limit_val_batches or 2, 2)
    if program.config.early_stop.patience not in (None, NOT_SET):
        options["early_stop.patience"] = None  # it counts evaluations, which runs have more of
    if program.config.optim.lr == FIND:
        options["optim.lr"] = 1e-3  # each run would measure it again
    schedules = [own.schedule.name for own in (plan, *plan.optimizers.values())]
    return Facts(
        options=options,
        total_steps=plan.total_steps,
        steps_per_epoch=batches,
        batch_size=plan.batch_size,
        precision=plan.precision,
        device=str(plan.device),
        has_validation=has_validation,
        is_stream=info.is_stream,
        is_in_memory=info.in_memory,
        loads_in_workers=not (info.in_memory or info.is_stream or info.no_data or info.loader),
        has_loader=bool(info.loader),
        order="" if info.order is None else type(info.order).__name__,
        not_splitting=tuple(why for why in info.not_splitting if why != DROPOUT),
        on_plateau="reduce_on_plateau" in schedules,
        own_step=info.own_step,
        has_no_data=info.no_data,
        optimizes_alone=plan.guard == "line_search",
    )


def _count_batches(program: Program, batch_size: int, steps_per_epoch: int | None) -> int:
    """Return the batches of an epoch in the runs that are compared.

    Raises:
        ConfigError: there are fewer than two.
    """
    batches = _BATCHES if program.samples is None else program.samples // batch_size
    if steps_per_epoch is not None:
        batches = min(batches, steps_per_epoch)
    if batches < 2:
        has = f"an epoch has {steps_per_epoch}" if steps_per_epoch == 1 else "samples has fewer"
        raise ConfigError(
            f"Laws are proved over at least two batches of an epoch, and {has}: batch_size is "
            f"{batch_size}. Set a smaller batch_size, or samples={2 * batch_size} or more "
            f"(--samples {2 * batch_size})."
        )
    return batches
