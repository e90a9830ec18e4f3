"""A value other than the default for every option of the Config, and its value in the Plan."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

import surestep
from surestep.config.duration import Duration
from surestep.engine.distributed.launcher_env import LaunchInfo
from surestep.engine.plan.specs import ExcludedSamples
from surestep.engine.plan.system import read_system
from tests.laws.support.tasks import mlp, rows

SAMPLES = 50


def accuracy(outputs, targets):
    return (outputs.argmax(1) == targets).float().mean()


def task_of(**parts: Any) -> surestep.Task:
    usual = {"train": rows(SAMPLES), "val": rows(20), "metrics": {"accuracy": accuracy}}
    return surestep.Task(loss=nn.CrossEntropyLoss(), **{"model": mlp(), **usual, **parts})


def blocks() -> nn.Module:
    """A model that has the same thing twice."""
    return nn.Sequential(nn.Linear(10, 4), nn.Sequential(mlp_of(4), mlp_of(4)), nn.Linear(4, 3))


def mlp_of(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU())


class Stream(IterableDataset):
    def __len__(self):
        return SAMPLES

    def __iter__(self):
        return zip(*rows(SAMPLES), strict=True)


class Rows(Dataset):
    """Samples that are loaded one by one."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        x, y = rows(SAMPLES)
        return x[index], y[index]


SAME_VALUE = object()


@dataclass(frozen=True)
class OptionValue:
    """A value of an option, its path and value in the Plan, and what it requires.

    A path that ends with a dot is completed by the name of the option. `otherwise` is set instead
    of the option if the option cannot be left out.
    """

    value: Any
    at: str = ""
    planned: Any = SAME_VALUE
    along: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)
    otherwise: dict[str, Any] = field(default_factory=dict)


def of_optimizer(name: str, value: Any, **along: Any) -> OptionValue:
    """Return the case of an optimizer option, which the Plan stores unchanged."""
    others = {"optim.name": name, **{f"optim.{option}": along[option] for option in along}}
    return OptionValue(value, "optim_options.", along=others)


def of_schedule(
    name: str, value: Any, at: str, planned: Any = SAME_VALUE, otherwise: Any = None, **along: Any
) -> OptionValue:
    """Return the case of a schedule option with a custom path in the Plan."""
    others = {"schedule.name": name, **{f"schedule.{option}": along[option] for option in along}}
    return OptionValue(value, f"schedule.{at}", planned, others, otherwise=otherwise or {})


def of_curve(
    name: str, value: Any, planned: Any = SAME_VALUE, otherwise: Any = None, **along: Any
) -> OptionValue:
    """Return the case of a curve option; the Plan has lengths in steps, and the run has four."""
    return of_schedule(name, value, "curve_options.", planned, otherwise, **along)


MLFLOW = {"logging.trackers": "mlflow"}
WITH_MLFLOW = {"system": lambda: replace(read_system(), extras=("mlflow",))}
MANY = {"system": lambda: replace(read_system(), launched=LaunchInfo(rank=1, size=2, local_size=2))}
EIGHT = {
    "system": lambda: replace(read_system(), launched=LaunchInfo(rank=1, size=8, local_size=4))
}
FSDP = {"parallel.strategy": "fsdp"}
ONLY_VALUE = (
    "device",
    "data.pin_memory",
    "cuda_graph",
    "cudnn_benchmark",
    "parallel.strategy",
    "parallel.sync_batchnorm",
)  # a CPU allows only one value
ZERO = {"parallel.strategy": "deepspeed"}
OTHER_KEY = {"parallel.deepspeed": '{"steps_per_print": 8}'}
SKIP = {"on_nonfinite": "skip"}
FP16 = {"precision": "fp16"}
COMPILE = {"compile": "default"}
EMA = {"average.kind": "ema"}
SWA = {"average.kind": "swa"}
WORKERS = {"data.num_workers": 2}
RESTARTS, PLATEAU = "cosine_restarts", "reduce_on_plateau"
PARTS = ("0.* lr=0.5x", "1.bias freeze")
OPTION_VALUES: dict[str, OptionValue] = {
    "epochs": OptionValue(2.5, "total_steps", 10),
    "max_steps": OptionValue(7, "total_steps"),
    "limit_train_batches": OptionValue(1),
    "limit_val_batches": OptionValue(1),
    "max_time": OptionValue("90 minutes", planned=Duration(90, "minutes")),
    "batch_size": OptionValue(10),
    "micro_batch_size": OptionValue(3),
    "seed": OptionValue(12345),
    "deterministic": OptionValue(True),
    "device": OptionValue("cpu", planned=torch.device("cpu")),
    "precision": OptionValue("bf16"),
    "max_grad_norm": OptionValue(0.25),
    "clip_value": OptionValue(0.125),
    "on_nonfinite": OptionValue("skip"),
    "max_nonfinite_steps": OptionValue(3, along=SKIP),
    "on_spike": OptionValue("rollback"),
    "max_rollbacks": OptionValue(2, along={"on_spike": "rollback"}),
    "exclude_samples": OptionValue((3, 17), planned=ExcludedSamples((3, 17), SAMPLES)),
    "activation_checkpointing": OptionValue("every 2", parts={"model": blocks()}),
    "compile": OptionValue("default"),
    "compile_blocks": OptionValue(True, along=COMPILE, parts={"model": blocks()}),
    "cuda_graph": OptionValue(False),
    "channels_last": OptionValue(True, parts={"model": nn.Conv2d(1, 3, 1)}),
    "matmul_precision": OptionValue("high"),
    "cudnn_benchmark": OptionValue(False),
    "sdpa_backend": OptionValue("math"),
    "cpu_allocator": OptionValue("default"),
    "num_threads": OptionValue(2),
    "profile": OptionValue("1:2"),
    "optim.name": OptionValue("sgd"),
    "optim.lr": OptionValue(0.5),
    "optim.weight_decay": OptionValue(0.25),
    "optim.implementation": OptionValue("foreach"),
    "optim.betas": of_optimizer("adamw", (0.5, 0.75)),
    "optim.eps": of_optimizer("adamw", 1e-3),
    "optim.momentum": of_optimizer("sgd", 0.5),
    "optim.dampening": of_optimizer("sgd", 0.5, momentum=0.5),
    "optim.nesterov": of_optimizer("sgd", True, momentum=0.5),
    "optim.amsgrad": of_optimizer("adam", True),
    "optim.decoupled_weight_decay": of_optimizer("nadam", True),
    "optim.momentum_decay": of_optimizer("nadam", 0.5),
    "optim.alpha": of_optimizer("rmsprop", 0.5),
    "optim.centered": of_optimizer("rmsprop", True),
    "optim.rho": of_optimizer("adadelta", 0.5),
    "optim.lr_decay": of_optimizer("adagrad", 0.5),
    "optim.initial_accumulator_value": of_optimizer("adagrad", 0.5),
    "optim.lambd": of_optimizer("asgd", 0.5),
    "optim.t0": of_optimizer("asgd", 5.0),
    "optim.etas": of_optimizer("rprop", (0.25, 1.5)),
    "optim.step_sizes": of_optimizer("rprop", (1e-5, 4.0)),
    "optim.beta2_decay": of_optimizer("adafactor", -0.5),
    "optim.d": of_optimizer("adafactor", 2.0),
    "optim.max_iter": of_optimizer("lbfgs", 3),
    "optim.max_eval": of_optimizer("lbfgs", 4),
    "optim.tolerance_grad": of_optimizer("lbfgs", 0.5),
    "optim.tolerance_change": of_optimizer("lbfgs", 0.25),
    "optim.history_size": of_optimizer("lbfgs", 3),
    "optim.line_search_fn": of_optimizer("lbfgs", "strong_wolfe"),
    "optim.ns_coefficients": of_optimizer("muon", (1.0, -2.0, 3.0)),
    "optim.ns_steps": of_optimizer("muon", 2),
    "optim.adjust_lr_fn": of_optimizer("muon", "match_rms_adamw"),
    "optim.adamw_lr": of_optimizer("muon", 0.25),
    "optim.min_8bit_size": of_optimizer("adamw8bit", 64),
    "optim.groups": OptionValue(PARTS),
    "optim.layerwise_lr_decay": OptionValue(0.5),
    "schedule.name": OptionValue("cosine", "schedule.name"),
    "schedule.warmup": OptionValue("3 steps", "schedule.warmup", 3),
    "schedule.warmup_start": of_schedule("linear", 0.5, "warmup_start", warmup="50%"),
    "schedule.interval": of_schedule("cosine", "2 steps", "interval", 2),
    "schedule.min_lr": of_schedule("cosine", 0.00025, "min_lr_ratio", 0.25),
    "schedule.min_lr_ratio": of_schedule("cosine", 0.25, "min_lr_ratio"),
    "schedule.min_lr_mode": of_schedule("cosine", "cut", "min_lr_mode"),
    "schedule.cycles": of_curve(RESTARTS, 2, otherwise={"schedule.T_0": "2 steps"}),
    "schedule.T_0": of_curve(RESTARTS, "2 steps", 2, otherwise={"schedule.cycles": 2}),
    "schedule.T_mult": of_curve(RESTARTS, 3, T_0="1 step"),
    "schedule.save_cycles": of_schedule(RESTARTS, True, "save_cycles", cycles=2),
    "schedule.step_size": of_curve("step", "50%", 2, otherwise={"schedule.step_size": "1 step"}),
    "schedule.milestones": of_curve(
        "multi_step", ("1 step", "50%"), (1, 2), otherwise={"schedule.milestones": ("3 steps",)}
    ),
    "schedule.gamma": of_curve("step", 0.5, step_size="1 step"),
    "schedule.power": of_curve("polynomial", 2.0),
    "schedule.timescale": of_curve("inverse_sqrt", "3 steps", 3),
    "schedule.decay": of_curve("warmup_stable_decay", "50%", 2),
    "schedule.decay_shape": of_curve("warmup_stable_decay", "linear"),
    "schedule.pct_start": of_curve("one_cycle", 0.5),
    "schedule.anneal_strategy": of_curve("one_cycle", "linear"),
    "schedule.div_factor": of_curve("one_cycle", 5.0),
    "schedule.final_div_factor": of_schedule("one_cycle", 4.0, "min_lr_ratio", 0.01),
    "schedule.three_phase": of_curve("one_cycle", True),
    "schedule.cycle_momentum": of_schedule("one_cycle", False, "momentum", None),
    "schedule.base_momentum": of_schedule("one_cycle", 0.5, "momentum", (0.5, 0.95)),
    "schedule.max_momentum": of_schedule("one_cycle", 0.9, "momentum", (0.85, 0.9)),
    "schedule.step_size_up": of_curve("cyclic", "2 steps", 2),
    "schedule.step_size_down": of_curve("cyclic", "2 steps", 2, step_size_up="1 step"),
    "schedule.mode": of_curve("cyclic", "triangular2"),
    "schedule.factor": of_curve(PLATEAU, 0.5),
    "schedule.patience": of_curve(PLATEAU, 1),
    "schedule.threshold": of_curve(PLATEAU, 0.5),
    "schedule.threshold_mode": of_curve(PLATEAU, "abs"),
    "schedule.cooldown": of_curve(PLATEAU, 2),
    "scaler.init_scale": OptionValue(8.0, along=FP16),
    "scaler.growth_factor": OptionValue(3.0, along=FP16),
    "scaler.growth_interval": OptionValue(5, along=FP16),
    "scaler.backoff_factor": OptionValue(0.25, along=FP16),
    "data.num_workers": OptionValue(1),
    "data.pin_memory": OptionValue(False),
    "data.persistent_workers": OptionValue(False, along=WORKERS),
    "data.prefetch_factor": OptionValue(5, along=WORKERS),
    "data.keep_decoded": OptionValue("2MB", parts={"train": Rows()}),
    "data.drop_last": OptionValue(True),
    "data.shuffle": OptionValue(False),
    "data.group_by_length": OptionValue(True, parts={"train": Rows()}),
    "data.shuffle_buffer": OptionValue(10, parts={"train": Stream()}),
    "validation.every": OptionValue("3 steps", planned=Duration(3, "steps")),
    "validation.on_start": OptionValue(True),
    "validation.batch_size": OptionValue(9),
    "validation.weights": OptionValue("both", along=EMA),
    "validation.metric": OptionValue("accuracy", planned="val/accuracy"),
    "validation.mode": OptionValue("max"),
    "early_stop.patience": OptionValue(4),
    "early_stop.start": OptionValue(
        "2 epochs", planned=Duration(2, "epochs"), along={"early_stop.patience": 4}
    ),
    "early_stop.min_delta": OptionValue(0.5, along={"early_stop.patience": 4}),
    "average.kind": OptionValue("ema", "average.kind"),
    "average.decay": OptionValue(0.5, "average.decay", along=EMA),
    "average.warmup": OptionValue(False, "average.warmup", along=EMA),
    "average.start": OptionValue("50%", "average.start", 2, along=EMA),
    "average.every": OptionValue("2 steps", "average.interval", 2, along=EMA),
    "average.buffers": OptionValue("copy", "average.buffers", along=EMA),
    "average.lr": OptionValue(0.5, "average.lr", along=SWA),
    "average.anneal": OptionValue("1 step", "average.anneal", 1, along={**SWA, "average.lr": 0.5}),
    "checkpoint.every": OptionValue("4 steps", planned=Duration(4, "steps")),
    "checkpoint.keep_last": OptionValue(5),
    "checkpoint.keep_best": OptionValue(6),
    "checkpoint.keep_every": OptionValue("2 epochs", planned=Duration(2, "epochs")),
    "checkpoint.mirror": OptionValue("/backup/run"),
    "checkpoint.async_save": OptionValue(False),
    "checkpoint.weights": OptionValue("trained"),
    "parallel.strategy": OptionValue("ddp", parts=MANY),
    "parallel.shard": OptionValue("grad_op", parts=MANY),
    "parallel.shard_size": OptionValue(2, along={"parallel.shard": "hybrid"}, parts=EIGHT),
    "parallel.wrap_policy": OptionValue(
        "class Linear", planned=("0.0", "1"), along=FSDP, parts=MANY
    ),
    "parallel.meta_init": OptionValue(True, along=FSDP, parts={**MANY, "model": mlp}),
    "parallel.offload": OptionValue("all", along=FSDP, parts=MANY),
    "parallel.find_unused_parameters": OptionValue(True, parts=MANY),
    "parallel.static_graph": OptionValue(True, parts=MANY),
    "parallel.sync_batchnorm": OptionValue(False, parts=MANY),
    "parallel.zero_stage": OptionValue(3, along=ZERO, parts=MANY),
    "parallel.deepspeed": OptionValue(
        '{"steps_per_print": 7}', "parallel_deepspeed.steps_per_print", 7, ZERO, MANY, OTHER_KEY
    ),
    "parallel.replica_check_every": OptionValue(
        "2 epochs", planned=Duration(2, "epochs"), parts=MANY
    ),
    "parallel.timeout_s": OptionValue(30.0),
    "parallel.start_timeout_s": OptionValue(900.0),
    "logging.every": OptionValue("5 steps", planned=Duration(5, "steps")),
    "logging.progress": OptionValue("quiet"),
    "logging.trackers": OptionValue(("tensorboard",)),
    "logging.tracker_wait": OptionValue("5 minutes", planned=Duration(5, "minutes")),
    "logging.per_layer": OptionValue(True),
    "logging.histograms": OptionValue("2 epochs", planned=Duration(2, "epochs")),
    "logging.graph": OptionValue(True),
    "logging.mlflow_model": OptionValue("program", along=MLFLOW, parts=WITH_MLFLOW),
    "logging.mlflow_registered_model": OptionValue("churn", along=MLFLOW, parts=WITH_MLFLOW),
    "doctor.ignore": OptionValue(("SS117=we clip on purpose",), planned=("SS117",)),
    "doctor.fail_on": OptionValue("error"),
    "doctor.check_data": OptionValue("off"),
    "report.samples": OptionValue(16),
}
