"""The Plan, and what the Task brings to it."""

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

from surestep.base.html import escape_html, make_table
from surestep.config.config import Choice, has_requirements
from surestep.engine.plan.batching import SampleOrder
from surestep.engine.plan.fitting import FoundSize
from surestep.engine.plan.specs import (
    AveragingSpec,
    ExcludedSamples,
    TracedStep,
    WrapUnits,
    no_blocks,
    not_traced,
)
from surestep.engine.schedule.registry import ScheduleSpec

HIDDEN = "options are off, have torch's default or do not apply"
_WIDEST = 30  # of the columns of a printed Plan but the last
Guard = Literal["device", "host", "grad_scaler", "line_search"]


@dataclass(frozen=True)
class TaskInfo:
    """What the Task brings, as far as a Plan depends on it.

    Attributes:
        order: the sampler.
        skips: the samples that are excluded.
        why_read_again: why a stream cannot resume from its own state; "" if it can.
        randomness: how the loading of a sample is seeded, and the reason.
        loader: settings of the DataLoader, if the Task has one.
        tables: metrics that are not a single number.
        objects: metrics that may return a dict: objects with compute, and functions of a whole set.
        floating: no trained parameter is complex.
        half: some trained parameters have 16 bits.
        hidden: names of the matrices between the first and the last layer, which Muon updates.
        sparse: names of the embedding tables whose gradients are sparse.
        dense: some trained parameters have dense gradients.
        scalars: names of trained parameters without a dimension.
        called: the model itself is called with a batch.
        own_step: the Task has a step.
        batched: each element of the data is a batch already.
        collates: a function of the user makes a batch of samples, which it may pad.
        no_data: the Task's step makes its own data.
        not_splitting: what changes if a batch is split into micro-batches.
        fitting: the micro-batch size that micro_batch_size="fit" starts with; None: all of a batch.
        fitting_evaluation: the same of validation.batch_size="fit".
        blocks: the model has a list of blocks.
        is_built: Task(model=) is a module, and not a function that builds it.
        blocks_by: returns the modules that a wrap policy selects.
        no_predictions: returns why evaluations have no predictions to show; "" if they have.
        trace_step: traces the step of a Plan, which takes from milliseconds to seconds.
    """

    train_samples: int | None
    in_memory: bool
    order: SampleOrder | None = None
    skips: ExcludedSamples | None = None
    is_stream: bool = False
    why_read_again: str = ""
    batch_transform: str | None = None
    randomness: tuple[str, str] = ("by position", "the same for any number of workers")
    loader: Mapping[str, Any] | None = None
    val_sets: tuple[str, ...] = ()
    val_batch_sizes: tuple[int, ...] = ()
    metrics: Mapping[str, Literal["min", "max"] | None] = field(default_factory=dict)
    tables: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    own_optimizer: bool = False
    own_schedule: bool = False
    floating: bool = True
    half: bool = False
    hidden: tuple[str, ...] = ()
    sparse: tuple[str, ...] = ()
    dense: bool = True
    scalars: tuple[str, ...] = ()
    called: bool = True
    own_step: bool = False
    batched: bool = False
    collates: bool = False
    no_data: bool = False
    not_splitting: tuple[str, ...] = ()
    fitting: FoundSize | None = None
    fitting_evaluation: FoundSize | None = None
    loss: str = "not known"
    evaluates_loss: bool = True
    loss_reason: str = "what it is divided by is not known"
    blocks: bool = False
    convolutions: bool = False
    batch_norm: bool = False
    adapters: bool = False
    is_built: bool = True
    blocks_by: Callable[[str], WrapUnits] = no_blocks
    no_predictions: Callable[[], str] = str
    trace_step: Callable[["Plan"], TracedStep] = not_traced


class ResolvedOption(NamedTuple):
    """One option with its value and the reason for it."""

    option: str
    value: Any
    reason: str


class Plan:
    """Every option decided.

    The value of each option is an attribute, with `_` for the dot: `plan.batch_size`,
    `plan.validation_every`. The same holds for values that follow from options, such as
    `steps_per_epoch`. Options of the schedule, of the average and of single optimizers are
    together in `schedule`, `average` and `optim_options`. A Plan cannot be changed; `replace`
    returns another one.

    Args:
        decisions: each option with its value and reason.
        optim_options: options of the chosen optimizer alone, as its class takes them.
        schedule: the learning rate over the run, lengths in optimizer steps.
        average: the average of the weights, lengths in optimizer steps.
        task_info: what the Task brings.
        optimizers: the Plan of each optimizer of a Task that names several.
    """

    decisions: tuple[ResolvedOption, ...]
    optim_options: Mapping[str, Any]
    schedule: ScheduleSpec
    average: AveragingSpec
    task_info: TaskInfo
    optimizers: Mapping[str, "Plan"]

    def __init__(
        self,
        decisions: tuple[ResolvedOption, ...],
        *,
        optim_options: Mapping[str, Any],
        schedule: ScheduleSpec,
        average: AveragingSpec,
        task_info: TaskInfo,
        optimizers: Mapping[str, "Plan"] | None = None,
    ) -> None:
        values = {option.replace(".", "_"): value for option, value, _ in decisions}
        self.__dict__.update(
            values,
            decisions=decisions,
            optim_options=optim_options,
            schedule=schedule,
            average=average,
            task_info=task_info,
            optimizers=optimizers or {},
        )

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"A Plan cannot be changed. Use plan.replace({name}=...).")

    def replace(self, **values: Any) -> "Plan":
        """Return a Plan with other values of some attributes; reasons stay as they are.

        Args:
            values: the new values by attribute.
        """
        changed = copy(self)
        assert values.keys() <= changed.__dict__.keys(), values
        changed.__dict__.update(values)
        return changed

    def single_process(self) -> "Plan":
        """Return the Plan of a process that reads all of the data by itself."""
        return self.replace(parallel_ranks=1, parallel_rank=0, limit_val_batches=None)

    def without_workers(self) -> "Plan":
        """Return the Plan of a process that loads its data itself."""
        return self.replace(
            data_num_workers=0,
            data_persistent_workers=False,
            data_prefetch_factor=None,
            data_pin_memory=False,
        )

    def list_not_checked(self, notes: Mapping[str, str]) -> "Plan":
        """Return the Plan with a row for what could not be checked.

        Args:
            notes: why, by what was not checked.
        """
        if not notes:
            return self
        reason = "; ".join(f"{what}: {why}" for what, why in notes.items())
        row = ResolvedOption("not_checked", list(notes), reason)
        return self.replace(decisions=(*self.decisions, row))

    def reason(self, option: str) -> str:
        """Return why an option was decided as it was.

        Args:
            option: its full name, such as "optim.lr".
        """
        return next(found.reason for found in self.decisions if found.option == option)

    def relevant(self) -> tuple[ResolvedOption, ...]:
        """Return the options that were set, or decided by surestep, in the order of `decisions`.

        The others belong to what was not chosen, are off, or have torch's default.
        """
        chosen = {option: value for option, value, _ in self.decisions}.get
        return tuple(entry for entry in self.decisions if _is_relevant(entry, chosen))

    def __str__(self) -> str:
        rows = self._list_rows()
        names, values, _ = zip(*rows, strict=True)
        first, second = (min(_WIDEST, max(map(len, cells))) for cells in (names, values))
        lines = [
            f"{option:<{first}}  {value:<{second}}  {reason}" for option, value, reason in rows
        ]
        return "\n".join([*lines, self._count_hidden()])

    def _repr_html_(self) -> str:
        """Return the same table for notebooks."""
        table = make_table(("option", "value", "reason"), self._list_rows())
        return f"{table}<p>{escape_html(self._count_hidden())}</p>"

    def _list_rows(self) -> list[tuple[str, str, str]]:
        return [(option, str(value), reason) for option, value, reason in self.relevant()]

    def _count_hidden(self) -> str:
        hidden = len(self.decisions) - len(self.relevant())
        return f"{hidden} {HIDDEN}: they are in plan.decisions."


def _is_relevant(decision: ResolvedOption, chosen: Choice) -> bool:
    option, value, reason = decision
    if reason.startswith("set ") or ", set " in reason or option == "steps_per_epoch":
        return True
    if value is None or value is False or value in ("off", "none", "auto", (), {}):
        return False
    if option.endswith(("optim.lr", "optim.weight_decay")):
        return True
    return not reason.startswith("torch's default") and has_requirements(option, chosen)
