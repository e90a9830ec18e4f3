"""What was decided, and the words it is decided in: Given, Known, Row, Decision, Plan."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch

from surestep.config.config import Config
from surestep.config.duration import Duration, parse_duration
from surestep.config.not_set import NOT_SET
from surestep.engine.generators import LoadingSeedInfo
from surestep.engine.plan.batching import BatchLayout, SampleOrder
from surestep.engine.plan.specs import (
    AveragingSpec,
    ExcludedSamples,
    WrapUnits,
    no_blocks,
    raw_name,
)
from surestep.engine.plan.system import SystemInfo
from surestep.engine.schedule.registry import ScheduleSpec

LARGER_IS_BETTER = frozenset(
    ("accuracy", "auroc", "auc", "f1", "precision", "recall", "iou", "dice", "map", "bleu", "r2")
)
SMALLER_IS_BETTER = frozenset(("loss", "error", "mse", "mae", "rmse", "perplexity", "wer", "cer"))
Guard = Literal["sticky", "reading", "scaled", "searching"]


@dataclass(frozen=True)
class TaskInfo:
    """What the Task brings, as far as a Plan depends on it.

    Attributes:
        draws: how the randomness of loading is seeded.
        why_read_again: what keeps a stream from going on by its own state.
        tables: metrics that are no single number; floating: no trained parameter is complex.
        hidden: names of the matrices between the first and the last layer, which Muon moves.
        sparse: names of the tables whose gradients are sparse.
        dense: some trained parameter is not one of those. scalars: names of those of no dimension.
        called: the model is called with a batch, and not only its parts by a step of the user's.
        own_step: the Task brings the step.
        batched: each element of the data is a batch already.
        no_data: the Task's step makes its own data.
        is_built: the model was a module before there was a Task.
        blocks_by: which modules are gathered one at a time, by what was said of them.
    """

    train_samples: int | None
    in_memory: bool
    order: SampleOrder | None = None
    skips: ExcludedSamples | None = None
    is_stream: bool = False
    why_read_again: str = ""
    batch_transform: str | None = None
    draws: LoadingSeedInfo = field(default_factory=LoadingSeedInfo)
    loader: Mapping[str, Any] | None = None
    val_sets: tuple[str, ...] = ()
    val_batch_sizes: tuple[int, ...] = ()
    metrics: Mapping[str, Literal["min", "max"] | None] = field(default_factory=dict)
    tables: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()  # metrics with update and compute, which may return a dict
    own_optimizer: bool = False
    own_schedule: bool = False
    floating: bool = True
    hidden: tuple[str, ...] = ()
    sparse: tuple[str, ...] = ()
    dense: bool = True
    scalars: tuple[str, ...] = ()
    called: bool = True
    own_step: bool = False
    batched: bool = False
    no_data: bool = False
    not_splitting: tuple[str, ...] = ()
    loss: str = "not known"
    evaluates_loss: bool = True
    loss_reason: str = "what it is divided by is not known"
    blocks: bool = False
    convolutions: bool = False
    batch_norm: bool = False
    adapters: bool = False
    is_built: bool = True
    blocks_by: Callable[[str], WrapUnits] = no_blocks


class ResolvedOption(NamedTuple):
    """One option with what was chosen for it and why."""

    option: str
    value: Any
    reason: str


@dataclass(frozen=True)
class Plan:
    """Every option decided. Field names are the options' with `_` for the dot."""

    device: torch.device
    parallel_strategy: str
    parallel_shard: Literal["full", "grad_op", "hybrid"] | None
    parallel_shard_size: int
    parallel_wrap_policy: tuple[str, ...]
    parallel_meta_init: bool
    parallel_offload: Literal["off", "optimizer", "all"]
    parallel_ranks: int
    parallel_rank: int
    parallel_backend: Literal["none", "gloo", "nccl"]
    parallel_find_unused_parameters: bool
    parallel_static_graph: bool
    parallel_sync_batchnorm: bool
    parallel_nccl_debug: bool
    parallel_replica_check_every: Duration | None
    parallel_timeout_s: float
    parallel_start_timeout_s: float
    parallel_zero_stage: int | None
    parallel_deepspeed: Mapping[str, Any]
    precision: Literal["fp32", "tf32", "bf16", "fp16"]
    deterministic: bool
    seed: int
    loss: str
    batch_size: int
    micro_batch_size: int
    batch_layout: str
    data_shuffle: bool
    data_shuffle_buffer: int | None
    data_sampler: str
    batch_transform: str | None
    data_randomness: str
    data_resume: str
    data_drop_last: bool
    exclude_samples: ExcludedSamples | None
    data_num_workers: int
    data_pin_memory: bool
    data_persistent_workers: bool
    data_prefetch_factor: int | None
    steps_per_epoch: int | None
    total_steps: int
    max_time: Duration | None
    limit_train_batches: int | None
    limit_val_batches: int | None
    optim_name: str
    optim_implementation: Literal["fused", "foreach", "for_loop", "own", "deepspeed"]
    optim_lr: float | None
    optim_weight_decay: float | None
    optim_options: Mapping[str, Any]
    optim_groups: tuple[str, ...]
    optim_layerwise_lr_decay: float | None
    schedule: ScheduleSpec
    max_grad_norm: float | None
    clip_value: float | None
    on_nonfinite: Literal["raise", "skip"]
    max_nonfinite_steps: int
    on_spike: Literal["warn", "rollback", "off"]
    max_rollbacks: int
    guard: Guard
    activation_checkpointing: str
    compile: Literal["off", "default", "reduce-overhead", "max-autotune"]
    compile_blocks: bool
    channels_last: bool
    matmul_precision: Literal["highest", "high", "medium"]
    cudnn_benchmark: bool
    sdpa_backend: Literal["auto", "flash", "efficient", "cudnn", "math"]
    cpu_allocator: Literal["huge_pages", "retain", "default"]
    scaler_init_scale: float
    scaler_growth_factor: float
    scaler_growth_interval: int
    scaler_backoff_factor: float
    validation_every: Duration | None
    validation_on_start: bool
    validation_batch_size: int
    validation_weights: Literal["average", "raw", "both"]
    validation_metric: str | None
    validation_mode: Literal["min", "max"]
    early_stop_patience: int | None
    early_stop_start: Duration | None
    early_stop_min_delta: float
    average: AveragingSpec
    checkpoint_every: Duration | None
    checkpoint_keep_last: int
    checkpoint_keep_best: int
    checkpoint_keep_every: Duration | None
    checkpoint_async_save: bool
    checkpoint_weights: Literal["all", "trained"]
    profile: str | None
    logging_every: Duration | None
    logging_progress: Literal["bar", "plain", "quiet"]
    logging_ranks: Literal["first", "all"]
    decisions: tuple[ResolvedOption, ...] = ()
    optimizers: Mapping[str, "Plan"] = field(default_factory=dict)  # of a Task that names several

    def single_process(self) -> "Plan":
        """Return the Plan of a process that reads all of the data by itself."""
        return replace(self, parallel_ranks=1, parallel_rank=0, limit_val_batches=None)

    def reason(self, option: str) -> str:
        """Return why `option` ("optim.lr") was decided as it was."""
        return next(each.reason for each in self.decisions if each.option == option)


class PlanContext:
    """What a row may look at: what was said, the machine, the task, and earlier choices."""

    def __init__(self, config: Config, facts: SystemInfo, given: TaskInfo) -> None:
        self.config = config
        self.system = facts
        self.task_info = given
        self.set_options = config.set_options()
        self.chosen: dict[str, Any] = {}

    def __getitem__(self, option: str) -> Any:
        return self.chosen[option]

    def is_off(self, option: str) -> bool:
        """Return whether the option was set to None: switched off."""
        return self.set_options.get(option, NOT_SET) is None

    def is_on(self, option: str) -> bool:
        """Return whether the option was set, and not switched off."""
        return self.set_options.get(option) is not None

    @property
    def device(self) -> str:
        """Return the type of the device that was chosen: "cpu", "cuda" or "mps"."""
        return str(self.chosen["device"].type)

    @property
    def on_gpu(self) -> bool:
        """Return whether the device is a CUDA GPU."""
        return self.device == "cuda"

    def metric_names(self) -> list[str]:
        """List what evaluations measure, as "set/metric"."""
        names = (*(["loss"] if self.task_info.evaluates_loss else []), *self.task_info.metrics)
        parts = list(self.task_info.val_sets)
        if self.chosen.get("validation.weights") == "both":
            parts += [raw_name(part) for part in self.task_info.val_sets]
        return [f"{part}/{name}" for part in parts for name in names]

    def metric(self) -> str:
        """Return the metric that was said, completed: "accuracy" is "val/accuracy"."""
        said = str(self.set_options["validation.metric"])
        return said if "/" in said else f"{self.task_info.val_sets[0]}/{said}"

    def is_measured(self) -> bool:
        """Return whether evaluations measure `metric()`, as far as is known before the first."""
        part, _, name = self.metric().partition("/")
        is_value = part in self.task_info.val_sets and self.object_of(name) is not None
        return is_value or self.metric() in self.metric_names()

    def object_of(self, name: str) -> str | None:
        """Return the metric whose compute returns a dict, if "name_key" can be a value of it."""
        known = self.task_info.metrics
        prefixes = (each for each in self.task_info.objects if name.startswith(f"{each}_"))
        return None if name in known else max(prefixes, key=len, default=None)

    def metric_mode(self) -> Literal["min", "max"] | None:
        """Return whether a smaller or larger metric is better, where that is known."""
        name = (self["validation.metric"] or "loss").split("/")[-1]
        declared = self.task_info.metrics.get(self.object_of(name) or name)
        if declared is not None:
            return declared
        return "max" if name in LARGER_IS_BETTER else "min" if name in SMALLER_IS_BETTER else None

    def dataloader_setting(self, name: str) -> Any:
        """Return a setting of the DataLoader that was given, or None."""
        return None if self.task_info.loader is None else self.task_info.loader[name]

    @property
    def blocks(self) -> WrapUnits:
        """Return which modules would be gathered one at a time."""
        return self.task_info.blocks_by(str(self.set_options.get("parallel.wrap_policy", "auto")))

    @property
    def cut(self) -> BatchLayout:
        """Return how an epoch is cut."""
        sizes = self["batch_size"], self["micro_batch_size"]
        return BatchLayout(self.task_info.train_samples, *sizes, self["data.drop_last"])

    @property
    def order_name(self) -> str:
        """Return what the order that was given is called."""
        return "" if self.task_info.order is None else self.task_info.order.name

    @property
    def order_text(self) -> str:
        """Return what comes of the order that was given."""
        return (
            ""
            if self.task_info.order is None
            else self.task_info.order.explain(self.cut, self["seed"])
        )

    @property
    def skips_source(self) -> str:
        """Return which file names the samples that are left out, where one does."""
        skips = self.task_info.skips
        return f", {skips.source}" if skips is not None and skips.source else ""

    def period(self, text: str) -> Duration:
        """Return how often something happens; "25%" is a share of the run."""
        if text.endswith("%"):
            return Duration(float(max(1, round(self.length_in_steps(text)))), "steps")
        return parse_duration(text)

    def steps(self, duration: str) -> float:
        """Return a length in optimizer steps; not whole where "2.5 epochs" are not.

        Raises:
            ConfigError: it is in epochs, and how many steps those have is not known.
        """
        return parse_duration(duration).steps(self["steps_per_epoch"])

    def length_in_steps(self, text: str) -> float:
        """Return a length in optimizer steps, or a share of the run, in optimizer steps."""
        if text.endswith("%"):
            return float(text[:-1]) / 100 * float(self["total_steps"])
        return self.steps(text)

    def averaging_spec(self) -> AveragingSpec:
        """Return the average that was chosen."""
        return AveragingSpec(
            kind=self["average.kind"],
            decay=self["average.decay"],
            warmup=self["average.warmup"],
            start=int(self.length_in_steps(self["average.start"])),
            interval=max(1, round(self.steps(self["average.every"]))),
            buffers=self["average.buffers"],
            lr=self["average.lr"],
            anneal=round(self.length_in_steps(self["average.anneal"])),
        )


class Rule(NamedTuple):
    """Where `when` holds, `choice` is chosen, because of `reason`.

    The reason is a format string over `k`, what is known, `origin`, where it was said, and
    `origins`, where another option was.
    """

    condition: Callable[[PlanContext], bool]
    value: Callable[[PlanContext], Any]
    reason: str


class Constraint(NamedTuple):
    """Where `when` holds, the wish cannot be kept; `message` says what to type instead."""

    condition: Callable[[PlanContext], bool]
    message: Callable[[PlanContext], str]
