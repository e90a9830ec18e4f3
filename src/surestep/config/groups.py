"""Options of loading, loss scaling, evaluation, averages, checkpoints and logging."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from surestep.base.plugins import TRACKERS, plugin_names
from surestep.config.annotations import (
    ClockInterval,
    Flag,
    Interval,
    Number,
    Off,
    Option,
    Several,
    Word,
)
from surestep.config.group import ConfigGroup
from surestep.config.option import (
    BATCHES,
    DISPLAY,
    ENDING,
    INITIAL,
    LOADING,
    ON,
    STREAM,
    VAL_DATA,
    ResumeEffect,
    blocked,
    incompatible,
    not_bitwise,
    option,
    safe,
)
from surestep.config.types import (
    Clock,
    ClockPeriod,
    Count,
    MemoryAmount,
    MirrorAddress,
    NotNegative,
    Period,
    Positive,
    Share,
    StepPeriod,
    Warmup,
    Whole,
)


class Data(ConfigGroup):
    """How data is loaded."""

    prefix: ClassVar[str] = "data."
    num_workers: Number[Whole] = option("Number of processes that load data.", resume=LOADING)
    pin_memory: Flag = option(
        "Load batches into page-locked host memory, to copy them faster.",
        resume=LOADING,
        requires={"device": "cuda"},
    )
    persistent_workers: Flag = option(
        "Keep workers alive between epochs.", resume=LOADING, requires={"data.num_workers": ON}
    )
    prefetch_factor: Number[Count] = option(
        "Micro-batches that each worker loads ahead.",
        resume=LOADING,
        requires={"data.num_workers": ON},
    )
    keep_decoded: Option[MemoryAmount | None, Off] = option(
        "Memory to keep decoded images in: '8GB'.",
        resume=safe("the samples are bitwise the same"),
        default=(None, "not set: each epoch decodes"),
    )
    drop_last: Flag = option("Drop the last batch of an epoch if it is smaller.", resume=BATCHES)
    shuffle: Flag = option("Read the samples in a new random order each epoch.", resume=BATCHES)
    group_by_length: Flag = option(
        "Make batches of samples of similar length, which need less padding.",
        resume=BATCHES,
        excludes=("data.shuffle",),
        default=(False, "not set: a batch has samples of any length"),
    )
    shuffle_buffer: Number[Count] = option(
        "Number of samples in the buffer from which a stream is shuffled.",
        resume=BATCHES,
        requires={STREAM: ON},
    )


class Scaler(ConfigGroup):
    """Loss scaling under fp16, with the option names of torch.amp.GradScaler."""

    prefix: ClassVar[str] = "scaler."
    requires: ClassVar[Mapping[str, Any]] = {"precision": "fp16"}
    resume: ClassVar[ResumeEffect] = blocked("the loss scale would change differently than so far")
    init_scale: Number[Annotated[float, Field(ge=1)]] = option(
        "fp16: initial loss scale.", default=(65536.0, "torch's default"), resume=INITIAL
    )
    growth_factor: Number[Annotated[float, Field(gt=1)]] = option(
        "fp16: factor on the scale after growth_interval steps without overflow.",
        default=(2.0, "torch's default"),
    )
    growth_interval: Number[Count] = option(
        "fp16: steps in a row without overflow before the scale grows.",
        default=(2000, "torch's default"),
    )
    backoff_factor: Number[Annotated[float, Field(gt=0, lt=1)]] = option(
        "fp16: factor on the scale after an overflow.", default=(0.5, "torch's default")
    )


EVALUATION = safe("evaluations change no weight")


class Validation(ConfigGroup):
    """When to evaluate, and which metric decides what is best."""

    prefix: ClassVar[str] = "validation."
    requires: ClassVar[Mapping[str, Any]] = {VAL_DATA: ON}
    every: Interval[Period | None] = option(
        "How often to evaluate: '1 epoch', '500 steps'.",
        resume=EVALUATION,
        default=("1 epoch", "once for each pass over the training data"),
    )
    on_start: Flag = option(
        "Also evaluate before the first step.",
        resume=EVALUATION,
        default=(False, "the first evaluation is after validation.every"),
    )
    batch_size: Number[Count | Literal["fit"]] = option(
        "Samples per forward pass of an evaluation, or fit.",
        resume=not_bitwise("metrics are summed in different batches"),
    )
    weights: Word[Literal["average", "raw", "both"]] = option(
        "Which weights to evaluate if average.kind is set; both reports the "
        "average as 'val/...' and the raw weights as 'val_raw/...'.",
        resume=blocked("the best metric so far was measured on other weights"),
    )
    metric: Word[str] = option(
        "Metric that decides which checkpoint is best: 'loss', a metric's name, or 'set/metric'.",
        resume=blocked("the best checkpoint so far was chosen by another metric"),
    )
    mode: Word[Literal["min", "max"]] = option(
        "Whether a smaller or a larger metric is better.",
        resume=blocked("the best checkpoint so far was chosen in the other direction"),
    )


class EarlyStop(ConfigGroup):
    """When to stop because the metric no longer improves."""

    prefix: ClassVar[str] = "early_stop."
    resume: ClassVar[ResumeEffect] = ENDING
    patience: Number[Count | None] = option(
        "Stop after this many evaluations in a row without improvement.",
        requires={VAL_DATA: ON, "validation.every": ON},
        default=(None, "not set: no early stopping"),
    )
    start: Interval[StepPeriod | None] = option(
        "Ignore evaluations before this point: '5 epochs', '1000 steps'.",
        requires={"early_stop.patience": ON},
        default=(None, "every evaluation counts"),
    )
    min_delta: Number[NotNegative] = option(
        "Smallest change that counts as an improvement.",
        requires={"early_stop.patience": ON},
        default=(0.0, "any improvement counts"),
    )


class Average(ConfigGroup):
    """An average of the weights, which is evaluated instead of the weights."""

    prefix: ClassVar[str] = "average."
    requires: ClassVar[Mapping[str, Any]] = {"average.kind": ("ema", "swa")}
    resume: ClassVar[ResumeEffect] = blocked("the average so far was computed differently")
    kind: Option[Literal["none", "ema", "swa"], Off] = option(
        "ema: exponential moving average; swa: stochastic weight averaging; none.",
        default=("none", "not set: the last weights are the model"),
    )
    decay: Number[Share] = option(
        "EMA: share of the average that remains at each update.",
        requires={"average.kind": "ema"},
        default=(0.999, "averages about 1,000 updates"),
    )
    warmup: Flag = option(
        "EMA: start with a smaller decay, so that the initial weights fade quickly.",
        requires={"average.kind": "ema"},
        default=(True, "the initial weights fade quickly from the average"),
    )
    start: Interval[Warmup] = option("When averaging starts: '1000 steps', '2 epochs' or '75%'.")
    every: Interval[StepPeriod] = option("How often the average is updated: '1 step', '1 epoch'.")
    buffers: Word[Literal["copy", "average", "recompute"]] = option(
        "Buffers of the averaged model: copy those of the model, average them, or "
        "recompute BatchNorm statistics from the training data.",
        resume=incompatible("the average so far holds other buffers"),
    )
    lr: Number[Positive] = option(
        "SWA: constant learning rate from average.start on.",
        requires={"average.kind": "swa"},
        default=(None, "not set: the schedule's learning rate"),
    )
    anneal: Interval[Warmup] = option(
        "SWA: how long the learning rate takes to reach average.lr, along a cosine.",
        requires={"average.kind": "swa", "average.lr": ON},
        default=("5%", "the learning rate reaches average.lr without a jump"),
    )


class Checkpoint(ConfigGroup):
    """When to save, and which checkpoints to keep."""

    prefix: ClassVar[str] = "checkpoint."
    resume: ClassVar[ResumeEffect] = DISPLAY
    every: ClockInterval[ClockPeriod | None] = option(
        "How often to save: '1 epoch', '500 steps', '10 minutes'.",
        default=("1 epoch", "a crash loses at most one epoch, or 10 s"),
    )
    keep_last: Number[Count] = option(
        "Number of newest checkpoints to keep.", default=(2, "the newest, and one before it")
    )
    keep_best: Number[Whole] = option(
        "Number of best checkpoints to keep, by validation.metric.",
        default=(1, "the best by validation.metric"),
    )
    keep_every: Interval[StepPeriod | None] = option(
        "Interval of milestone checkpoints that are never deleted: '10 epochs', '1000 steps'.",
        default=(None, "not set: no milestones are kept"),
    )
    mirror: Option[MirrorAddress | None, Path | Off] = option(
        "Also copy the checkpoints and records to this address: 's3://bucket/run', '/backup/run'.",
        default=(None, "not set: the run folder is the only copy"),
    )
    async_save: Flag = option("Write checkpoints in a background thread while training continues.")
    weights: Word[Literal["all", "trained"]] = option(
        "all: save all weights; trained: leave out frozen parameters."
    )


class Report(ConfigGroup):
    """What the run folder keeps for a report of the run."""

    prefix: ClassVar[str] = "report."
    resume: ClassVar[ResumeEffect] = DISPLAY
    samples: Number[Annotated[int, Field(ge=1, le=64)] | None] = option(
        "Number of the worst predictions to keep for a report, up to 64.",
        default=(None, "not set: evaluations keep metrics alone"),
    )


def tracker_names() -> tuple[str, ...]:
    """Return the names of the trackers: those of surestep, and of plug-ins."""
    own = ("tensorboard", "mlflow", "wandb")
    return (*own, *plugin_names(TRACKERS, own))


if TYPE_CHECKING:
    TrackerName = str
else:
    TrackerName = Literal[tracker_names()]


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


class Logging(ConfigGroup):
    """When to log, and what to show."""

    prefix: ClassVar[str] = "logging."
    resume: ClassVar[ResumeEffect] = DISPLAY
    every: ClockInterval[ClockPeriod | None] = option(
        "How often the host reads losses from the device and writes events.",
        default=("50 steps", "a read waits for the device: once in 50 steps costs little"),
    )
    progress: Option[Literal["auto", "bar", "plain", "quiet"], bool] = option(
        "How to show progress: a bar, plain lines, or nothing."
    )
    trackers: Several[Annotated[tuple[TrackerName, ...], BeforeValidator(_as_tuple)]] = option(
        "Trackers that get what a run records, besides the run folder.",
        default=((), "not set: the run folder alone has the records"),
    )
    tracker_wait: ClockInterval[Clock | None] = option(
        "Longest time that the end of a run waits for its trackers.",
        default=("10 minutes", "a tracker that fails or hangs is given up earlier"),
    )
    per_layer: Flag = option(
        "Log norms of gradients, weights and updates by layer, of the step before each log point.",
        default=(False, "not set: the norm of all gradients is logged"),
    )
    histograms: Interval[StepPeriod | None] = option(
        "Interval of histograms of weights and gradients by layer, at log points: '1 epoch'.",
        default=(None, "not set: no histograms"),
    )
    graph: Flag = option(
        "Write the graph of the model for TensorBoard, before the first step.",
        default=(False, "not set: no graph"),
    )
    mlflow_model: Word[Literal["program", "weights", "off"]] = option(
        "What MLflow gets as the model of a finished run: its exported program, or only weights."
    )
    mlflow_registered_model: Word[str | None] = option(
        "Name in MLflow's model registry: a finished run adds a version of it.",
        default=(None, "not set: no version is registered"),
    )
