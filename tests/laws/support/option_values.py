"""A wish for every option of the Config: a value that is not its default, and what is planned."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.utils.data import IterableDataset

import surestep
from surestep.config.duration import Duration
from surestep.engine.distributed.launcher_env import LaunchInfo
from surestep.engine.plan.specs import ExcludedSamples
from surestep.engine.plan.system import read_facts
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


AS_SAID = object()


@dataclass(frozen=True)
class Wish:
    """A value that is said, where the Plan holds it, as what, and what must go with it.

    A place that ends with a dot is completed by the option's own name. `otherwise` is said in the
    option's place where it cannot be left out.
    """

    said: Any
    at: str = ""
    planned: Any = AS_SAID
    along: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)
    otherwise: dict[str, Any] = field(default_factory=dict)


def of_optimizer(name: str, said: Any, **along: Any) -> Wish:
    """An own option of an optimizer: the Plan holds it as it is said."""
    others = {"optim.name": name, **{f"optim.{option}": along[option] for option in along}}
    return Wish(said, "optim_options.", along=others)


def of_schedule(
    name: str, said: Any, at: str, planned: Any = AS_SAID, otherwise: Any = None, **along: Any
) -> Wish:
    """An option that the shape of a schedule holds at a place of its own."""
    others = {"schedule.name": name, **{f"schedule.{option}": along[option] for option in along}}
    return Wish(said, f"schedule.{at}", planned, others, otherwise=otherwise or {})


def of_curve(
    name: str, said: Any, planned: Any = AS_SAID, otherwise: Any = None, **along: Any
) -> Wish:
    """An option of the curve alone; a length is held in steps, of which the run has four."""
    return of_schedule(name, said, "curve_options.", planned, otherwise, **along)


MANY = {"facts": lambda: replace(read_facts(), launched=LaunchInfo(rank=1, size=2, local_size=2))}
EIGHT = {"facts": lambda: replace(read_facts(), launched=LaunchInfo(rank=1, size=8, local_size=4))}
FSDP = {"parallel.strategy": "fsdp"}
ONLY_VALUE = (
    "device",
    "data.pin_memory",
    "cudnn_benchmark",
    "parallel.strategy",
    "parallel.sync_batchnorm",
)  # no other is possible on a CPU
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
WISHES: dict[str, Wish] = {
    "epochs": Wish(2.5, "total_steps", 10),
    "max_steps": Wish(7, "total_steps"),
    "limit_train_batches": Wish(1),
    "limit_val_batches": Wish(1),
    "max_time": Wish("90 minutes", planned=Duration(90, "minutes")),
    "batch_size": Wish(10),
    "micro_batch_size": Wish(3),
    "seed": Wish(12345),
    "deterministic": Wish(True),
    "device": Wish("cpu", planned=torch.device("cpu")),
    "precision": Wish("bf16"),
    "max_grad_norm": Wish(0.25),
    "clip_value": Wish(0.125),
    "on_nonfinite": Wish("skip"),
    "max_nonfinite_steps": Wish(3, along=SKIP),
    "on_spike": Wish("rollback"),
    "max_rollbacks": Wish(2, along={"on_spike": "rollback"}),
    "exclude_samples": Wish((3, 17), planned=ExcludedSamples((3, 17), SAMPLES)),
    "activation_checkpointing": Wish("every 2", parts={"model": blocks()}),
    "compile": Wish("default"),
    "compile_blocks": Wish(True, along=COMPILE, parts={"model": blocks()}),
    "channels_last": Wish(True, parts={"model": nn.Conv2d(1, 3, 1)}),
    "matmul_precision": Wish("high"),
    "cudnn_benchmark": Wish(False),
    "sdpa_backend": Wish("math"),
    "cpu_allocator": Wish("default"),
    "profile": Wish("1:2"),
    "optim.name": Wish("sgd"),
    "optim.lr": Wish(0.5),
    "optim.weight_decay": Wish(0.25),
    "optim.implementation": Wish("foreach"),
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
    "optim.groups": Wish(PARTS),
    "optim.layerwise_lr_decay": Wish(0.5),
    "schedule.name": Wish("cosine", "schedule.name"),
    "schedule.warmup": Wish("3 steps", "schedule.warmup", 3),
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
    "scaler.init_scale": Wish(8.0, along=FP16),
    "scaler.growth_factor": Wish(3.0, along=FP16),
    "scaler.growth_interval": Wish(5, along=FP16),
    "scaler.backoff_factor": Wish(0.25, along=FP16),
    "data.num_workers": Wish(1),
    "data.pin_memory": Wish(False),
    "data.persistent_workers": Wish(False, along=WORKERS),
    "data.prefetch_factor": Wish(5, along=WORKERS),
    "data.drop_last": Wish(True),
    "data.shuffle": Wish(False),
    "data.shuffle_buffer": Wish(10, parts={"train": Stream()}),
    "validation.every": Wish("3 steps", planned=Duration(3, "steps")),
    "validation.on_start": Wish(True),
    "validation.batch_size": Wish(9),
    "validation.weights": Wish("both", along=EMA),
    "validation.metric": Wish("accuracy", planned="val/accuracy"),
    "validation.mode": Wish("max"),
    "early_stop.patience": Wish(4),
    "early_stop.start": Wish(
        "2 epochs", planned=Duration(2, "epochs"), along={"early_stop.patience": 4}
    ),
    "early_stop.min_delta": Wish(0.5, along={"early_stop.patience": 4}),
    "average.kind": Wish("ema", "average.kind"),
    "average.decay": Wish(0.5, "average.decay", along=EMA),
    "average.warmup": Wish(False, "average.warmup", along=EMA),
    "average.start": Wish("50%", "average.start", 2, along=EMA),
    "average.every": Wish("2 steps", "average.interval", 2, along=EMA),
    "average.buffers": Wish("copy", "average.buffers", along=EMA),
    "average.lr": Wish(0.5, "average.lr", along=SWA),
    "average.anneal": Wish("1 step", "average.anneal", 1, along={**SWA, "average.lr": 0.5}),
    "checkpoint.every": Wish("4 steps", planned=Duration(4, "steps")),
    "checkpoint.keep_last": Wish(5),
    "checkpoint.keep_best": Wish(6),
    "checkpoint.keep_every": Wish("2 epochs", planned=Duration(2, "epochs")),
    "checkpoint.async_save": Wish(False),
    "checkpoint.weights": Wish("trained"),
    "parallel.strategy": Wish("ddp", parts=MANY),
    "parallel.shard": Wish("grad_op", parts=MANY),
    "parallel.shard_size": Wish(2, along={"parallel.shard": "hybrid"}, parts=EIGHT),
    "parallel.wrap_policy": Wish("class Linear", planned=("0.0", "1"), along=FSDP, parts=MANY),
    "parallel.meta_init": Wish(True, along=FSDP, parts={**MANY, "model": mlp}),
    "parallel.offload": Wish("all", along=FSDP, parts=MANY),
    "parallel.find_unused_parameters": Wish(True, parts=MANY),
    "parallel.static_graph": Wish(True, parts=MANY),
    "parallel.sync_batchnorm": Wish(False, parts=MANY),
    "parallel.zero_stage": Wish(3, along=ZERO, parts=MANY),
    "parallel.deepspeed": Wish(
        '{"steps_per_print": 7}', "parallel_deepspeed.steps_per_print", 7, ZERO, MANY, OTHER_KEY
    ),
    "parallel.replica_check_every": Wish("2 epochs", planned=Duration(2, "epochs"), parts=MANY),
    "parallel.timeout_s": Wish(30.0),
    "parallel.start_timeout_s": Wish(900.0),
    "logging.every": Wish("5 steps", planned=Duration(5, "steps")),
    "logging.progress": Wish("quiet"),
}
