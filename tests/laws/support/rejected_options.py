"""Rejected options: a case for every error of the rules, with the words of its hint."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchmetrics.classification import MulticlassConfusionMatrix

import surestep
from surestep.config.option import (
    BLOCKS,
    CONVOLUTIONS,
    INDICES,
    MODEL_FUNCTION,
    OUR_STEP,
    PROCESSES,
    STREAM,
    VAL_DATA,
    is_met,
)
from surestep.engine.allocator import Allocator
from surestep.engine.distributed.launcher_env import AccelerateConfig, LaunchInfo
from surestep.engine.optim.registry import BUILT_IN as OPTIMIZERS
from surestep.engine.plan.system import SystemInfo, read_system
from surestep.engine.resolve.requirements import requirements_of
from surestep.engine.schedule.registry import BUILT_IN as SCHEDULES
from tests.laws.support.detector import Detector, Images, Recall, collate
from tests.laws.support.option_values import (
    EIGHT,
    FSDP,
    MANY,
    MLFLOW,
    OPTION_VALUES,
    WITH_MLFLOW,
    Rows,
)
from tests.laws.support.rejected_deepspeed_options import DEEPSPEED
from tests.laws.support.tasks import rows
from tests.tiny import GPU, TWO_GPUS

Options = dict[str, Any]
Case = tuple[Options, dict[str, Any], str]


def loader(**options: Any) -> DataLoader:
    return DataLoader(TensorDataset(*rows(50)), **{"batch_size": 10, **options})


def odd(outputs, targets):
    return outputs.mean()


class Endless(IterableDataset):
    """A stream without a length."""

    def __iter__(self):
        return zip(*rows(50), strict=True)


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, dtype=torch.complex64))


class Table(nn.Module):
    """An embedding table with sparse gradients, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 4, sparse=True), nn.Linear(4, 3)


def without(**lacking: Any) -> Callable[[], SystemInfo]:
    """Describe this machine with some features replaced."""
    return lambda: replace(read_system(), **lacking)


VAL = {"val": rows(20)}
MPS = {"system": without(mps=True)}
OWN = {"optimizer": lambda groups: torch.optim.RMSprop(groups, lr=1e-3)}
OWN_STEP = {"model": nn.BatchNorm1d(10), "loss": None, "step": lambda manual_step: None}
LOADER = {"train": loader()}
BATCHED = {"train": list(loader()), "batched": True}
NO_DATA = {"loss": None, "train": None, "step": lambda manual_step: None}
DETECTOR = {
    **{"model": Detector(), "loss": "model in training", "collate_fn": collate},
    **{"train": Images(), "val": Images(5, seed=1), "metrics": {"recall": Recall()}},
}
FLAT = {"model": nn.Linear(10, 3)}
ENDLESS = {"train": Endless()}
COMPLEX = {"model": Complex()}
SPARSE = {"model": Table()}
ALL_SPARSE = {"model": nn.Embedding(9, 3, sparse=True)}
SGD = {"optim.name": "sgd"}
RPROP = {"optim.name": "rprop"}
LBFGS = {"optim.name": "lbfgs"}
SWA = {"average.kind": "swa"}
RESTARTS = {"schedule.name": "cosine_restarts"}
CYCLIC = {"schedule.name": "cyclic"}
ONE_CYCLE = {"schedule.name": "one_cycle"}
COSINE = {"schedule.name": "cosine"}
GROUP = {"data.group_by_length": True}
KEEP = {"data.keep_decoded": "2MB"}
STEPS = {"epochs": None, "max_steps": 9}


def foreign_to(option: str) -> str:
    """Return an optimizer or a schedule that does not take an option."""
    group, _, name = option.partition(".")
    if group == "optim":
        return next(kind for kind in ("sgd", "adamw") if name not in OPTIMIZERS[kind].options)
    kinds = ("constant", "one_cycle", "reduce_on_plateau")
    return next(kind for kind in kinds if name not in SCHEDULES[kind].takes)


RUN: list[Case] = [
    ({"logging.trackers": "mlflow"}, {"system": without(extras=())}, "pip install mlflow"),
    ({"logging.graph": True}, {"system": without(extras=())}, "pip install tensorboard"),
    ({**STEPS, "logging.histograms": "1 epoch"}, ENDLESS, "Set it in steps"),
    ({"logging.mlflow_model": "weights"}, {}, "logging.trackers='mlflow'"),
    ({"logging.mlflow_registered_model": "churn"}, {}, "logging.trackers='mlflow'"),
    ({**MLFLOW, "logging.mlflow_registered_model": "a/b"}, WITH_MLFLOW, "must not"),
    (
        {**MLFLOW, "logging.mlflow_registered_model": "churn", "logging.mlflow_model": "off"},
        WITH_MLFLOW,
        "logging.mlflow_model='weights'",
    ),
    ({"device": "cuda:99"}, {}, "This machine has: cpu"),
    ({"device": "gpu"}, {}, "This machine has: cpu"),
    ({"device": "meta"}, {}, "This machine has: cpu"),
    ({"precision": "tf32", "device": "cpu"}, {}, "precision='fp32'"),
    ({"precision": "fp16", "device": "mps"}, MPS, "Use precision='bf16' or 'fp32'"),
    ({"epochs": None}, {}, "epochs=10 or max_steps=1000"),
    ({"epochs": 3}, ENDLESS, "Set max_steps=1000"),
    ({"epochs": 3}, NO_DATA, "Set max_steps=1000 instead"),
    ({"profile": "3:99"}, {}, "Use earlier steps"),
    ({**STEPS, "checkpoint.keep_every": "2 epochs"}, ENDLESS, "Set it in steps"),
    ({**STEPS, "checkpoint.every": "0.5 epochs"}, ENDLESS, "Use whole epochs, or '500 steps'"),
    ({**STEPS, "logging.every": "0.5 epochs"}, ENDLESS, "Use whole epochs, or '500 steps'"),
]
DATA: list[Case] = [
    ({"batch_size": 16}, LOADER, "leave batch_size out"),
    ({"data.shuffle": True}, LOADER, "leave data.shuffle out"),
    ({"data.shuffle": True}, {"sampler": surestep.samplers.sequential()}, "Leave data.shuffle out"),
    ({**STEPS, "data.shuffle": True}, ENDLESS, "data.shuffle_buffer=1000"),
    ({"data.shuffle_buffer": 9}, {}, "Use data.shuffle=True"),
    ({**STEPS, "exclude_samples": [3]}, ENDLESS, "Exclude the samples in the stream itself"),
    (
        {"on_spike": "rollback", "checkpoint.keep_last": 1},
        {},
        "Set checkpoint.keep_last=2",
    ),
    (
        {"on_spike": "rollback", "checkpoint.every": "off"},
        {},
        "Set checkpoint.every='1 epoch'",
    ),
    ({"data.drop_last": True}, LOADER, "leave data.drop_last out"),
    ({"data.num_workers": 2}, LOADER, "leave data.num_workers out"),
    ({"data.pin_memory": False}, {"train": loader(pin_memory=True)}, "leave data.pin_memory out"),
    (
        {"data.persistent_workers": True},
        {"train": loader(num_workers=1)},
        "leave data.persistent_workers out",
    ),
    ({"data.prefetch_factor": 4}, {"train": loader(num_workers=1)}, "leave data.prefetch_factor"),
    ({"validation.batch_size": 4}, {"val": loader()}, "Set it in one place"),
    ({"validation.batch_size": 4}, BATCHED | {"val": list(loader())}, "Leave it out"),
    ({"micro_batch_size": 4}, BATCHED, "Leave it out"),
    ({"micro_batch_size": "fit"}, OWN_STEP, "micro_batch_size=16"),
    (
        {"validation.batch_size": "fit", "limit_val_batches": 2},
        VAL,
        "validation.batch_size=64",
    ),
    ({"batch_size": 8, "micro_batch_size": 9}, {}, "at most 8"),
    ({"batch_size": 64, "data.drop_last": True}, {}, "drop_last=False"),
    (GROUP, {"sampler": surestep.samplers.sequential()}, "Leave one of them out"),
    (GROUP, LOADER, "Pass its dataset"),
    ({**GROUP, **STEPS}, ENDLESS, "samples with positions"),
    (GROUP, {}, "tensors in memory"),
    (KEEP, {"train": Rows(), "system": without(extras=())}, "pip install pillow"),
    (KEEP, {}, "no dataset that opens files"),
    ({**KEEP, **STEPS}, ENDLESS, "the training data is a stream"),
    (KEEP, {"train": Rows(), "system": without(memory=1e6)}, "Use data.keep_decoded='0MB'"),
]
OPTIM: list[Case] = [
    ({"optim.name": "rprop", "optim.lr": "find"}, {}, "optim.lr='find' measures a rate, and "),
    ({"optim.lr": 0.1}, OWN, "leave Task(optimizer=...) out"),
    ({"optim.name": "sgd"}, OWN, "leave Task(optimizer=...) out"),
    (
        {"optim.name": "adamw8bit"},
        {"system": without(extras=())},
        "Install it: pip install bitsandbytes.",
    ),
    ({"optim.name": "adafactor"}, COMPLEX, "Use optim.name='adamw'"),
    ({"optim.name": "adamw"}, SPARSE, "optim.name='sparse_adam'; or build the table with"),
    ({"optim.name": "sparse_adam"}, {}, "optim.name='adamw'"),
    ({"optim.name": "muon"}, FLAT, "Use optim.name='adamw'"),
    (
        {"optim.name": "muon"},
        {"system": without(torch_version="2.8.1+cu126")},
        "needs torch 2.9, and this is torch 2.8.1+cu126. Install it: pip install 'torch>=2.9'",
    ),
    ({"precision": "fp16"}, COMPLEX, "Use precision='bf16' or 'fp32'"),
    ({"clip_value": 0.1}, COMPLEX, "Use max_grad_norm=1.0"),
    ({**LBFGS, "precision": "fp16"}, {}, "Use precision='bf16' or 'fp32'"),
    ({**RPROP, "optim.weight_decay": 0.1}, {}, "use optim.name='adamw'"),
    ({"optim.eps": (1e-3, 1e-3)}, {}, "every other optimizer takes one"),
    ({"optim.nesterov": True, **SGD}, {}, "optim.momentum=0.9"),
    (
        {**SGD, "optim.nesterov": True, "optim.momentum": 0.9, "optim.dampening": 0.5},
        *({}, "needs optim.dampening=0"),
    ),
    ({**SGD, "optim.momentum": 0.9, "optim.dampening": 0.5}, SPARSE, "sparse=False"),
    ({"optim.adamw_lr": 0.1}, ALL_SPARSE, "Leave it out"),
    ({**RPROP, "optim.etas": (0.5, 0.9)}, {}, "it must be greater than 1"),
    ({"optim.name": "radam", "optim.implementation": "fused"}, {}, "Use 'foreach' or 'for_loop'"),
    ({**RPROP, "optim.groups": ("0.* decay=0.1",)}, {}, "use optim.name='adamw'"),
    ({"optim.groups": ("0.* freeze='9 epochs'",)}, {}, "freeze alone, for good"),
]
SCHEDULE: list[Case] = [
    ({"schedule.name": "cosine"}, {"schedule": lambda n, _: 1.0}, "leave Task(schedule=...) out"),
    ({"schedule.name": "reduce_on_plateau"}, {}, "use schedule.name='cosine'"),
    ({"schedule.name": "step"}, {}, "set schedule.step_size='30 epochs'"),
    ({"schedule.name": "multi_step"}, {}, "set schedule.milestones=('50%', '75%')"),
    ({"schedule.name": "exponential"}, {}, "set schedule.gamma=0.95"),
    ({"schedule.warmup": "50 steps"}, {}, "a shorter warm-up or a longer run"),
    ({"schedule.warmup": "2 epochs"}, {}, "a shorter warm-up or a longer run"),
    ({"schedule.warmup_start": 0.5}, {}, "Set schedule.warmup='5%'"),
    ({"schedule.min_lr_ratio": 0.1}, {}, "schedule.name='cosine'"),
    ({"schedule.min_lr_mode": "cut"}, {}, "schedule.name='cosine'"),
    ({**COSINE, "schedule.min_lr": 1e-4}, OWN, "Set schedule.min_lr_ratio"),
    ({**COSINE, "schedule.min_lr": 0.1}, {}, "Use a lower minimum or a higher peak"),
    ({**COSINE, "schedule.min_lr": 1e-4, "schedule.min_lr_ratio": 0.1}, {}, "Set one of them"),
    (RESTARTS, {}, "set schedule.cycles=5 or schedule.T_0='10 epochs'"),
    ({**RESTARTS, "schedule.cycles": 2, "schedule.T_0": "1 step"}, {}, "Set one of them"),
    ({**RESTARTS, "schedule.cycles": 2, "schedule.T_mult": 2}, {}, "exclude each other"),
    ({**RESTARTS, "schedule.T_0": "9 steps", "schedule.save_cycles": True}, {}, "shorter cycles"),
    ({"schedule.name": "multi_step", "schedule.milestones": ("75%", "50%")}, {}, "('50%', '75%')"),
    ({**CYCLIC, "schedule.gamma": 0.5}, {}, "set schedule.mode='exp_range'"),
    ({**CYCLIC, "schedule.base_momentum": 0.5}, {}, "Set schedule.cycle_momentum=True"),
    (
        {**ONE_CYCLE, "schedule.base_momentum": 0.9, "schedule.max_momentum": 0.5},
        *({}, "Use a lower base_momentum"),
    ),
    ({**ONE_CYCLE, **RPROP}, {}, "Use optim.momentum=0.9"),
    (
        {**ONE_CYCLE, "schedule.three_phase": True, "schedule.pct_start": 0.6},
        {},
        "leaves no time",
    ),
    (
        {**ONE_CYCLE, "schedule.final_div_factor": 9.0, "schedule.min_lr_ratio": 0.1},
        *({}, "Set one of them"),
    ),
    (
        {"schedule.name": "warmup_stable_decay", "schedule.warmup": "60%", "schedule.decay": "60%"},
        *({}, "Use a shorter warm-up or a longer run"),
    ),
]
STEP: list[Case] = [
    ({"max_grad_norm": 1.0, "clip_value": 1.0}, {}, "Set one of them"),
    ({**LBFGS, "max_grad_norm": 1.0}, {}, "use another optim.name"),
    ({**LBFGS, "clip_value": 1.0}, {}, "use another optim.name"),
]
SPEED: list[Case] = [
    ({"compile": "default"}, {"system": without(compiler=False)}, "Install g++"),
    ({"compile_blocks": True, "compile": "default"}, FLAT, "Remove compile_blocks"),
    ({"channels_last": True}, {}, "Remove channels_last"),
    (
        {"precision": "fp32", "matmul_precision": "high"},
        {"system": lambda: GPU},
        "precision='tf32'",
    ),
    ({"cudnn_benchmark": True, "deterministic": True}, {"system": lambda: GPU}, "Set one of them"),
    *(
        ({"cuda_graph": True, **options}, {"system": lambda: GPU, **parts}, remedy)
        for options, parts, remedy in (
            ({"compile": "default"}, {}, "Set one of them"),
            ({"precision": "fp16"}, {}, "the host reads the loss scale"),
            ({"on_nonfinite": "skip"}, {}, "the host counts the skipped steps"),
            ({}, {"step": lambda manual_step, batch: None, "loss": None}, "is code of the host"),
            ({"activation_checkpointing": "on"}, {}, "Leave out one of them"),
            ({"micro_batch_size": "fit"}, {}, "Set a number"),
        )
    ),
    ({"sdpa_backend": "cudnn"}, {}, "flash, math"),
    (
        {"cpu_allocator": "retain"},
        {"system": without(allocator=Allocator("libjemalloc.so.2"))},
        "Leave it out",
    ),
    (
        {"cpu_allocator": "retain"},
        {"system": without(allocator=Allocator(settings=("MALLOC_TRIM_THRESHOLD_",)))},
        "Leave it out",
    ),
    (
        {"cpu_allocator": "huge_pages"},
        {"system": without(allocator=Allocator())},
        "cpu_allocator='retain'",
    ),
]
EVALUATION: list[Case] = [
    ({"validation.metric": "accuracy"}, VAL, "Measured: val/loss"),
    (
        {"validation.metric": "val_accuracy"},
        {**VAL, "metrics": {"accuracy": odd}},
        "Did you mean 'accuracy'?",
    ),
    (
        {"validation.metric": "confused"},
        {**VAL, "metrics": {"confused": MulticlassConfusionMatrix(3)}},
        "Metrics that are numbers: val/loss.",
    ),
    (
        {"validation.metric": "odd"},
        {**VAL, "metrics": {"odd": odd}},
        "validation.mode='max' or 'min'",
    ),
    ({**STEPS, "validation.every": "0.5 epochs"}, {**ENDLESS, **VAL}, "Use whole epochs, or"),
    (
        {"early_stop.patience": 3, "validation.every": "off"},
        *(VAL, "Set validation.every='1 epoch'"),
    ),
    ({}, DETECTOR, "Set validation.metric to one of val/recall"),
    (
        {**STEPS, "early_stop.patience": 2, "early_stop.start": "0.5 epochs"},
        {**ENDLESS, **VAL},
        "Use whole epochs, or",
    ),
    ({"validation.weights": "both"}, VAL, "needs an average. Set average.kind"),
    (
        {"validation.weights": "both", **SWA},
        {"val": {"a": rows(20), "a_raw": rows(20)}},
        "Rename that set",
    ),
    (
        {**SWA, "average.lr": 0.1, "schedule.name": "reduce_on_plateau"},
        *(VAL, "use schedule.name='cosine'"),
    ),
    ({"average.start": "2 epochs", **SWA}, {}, "an earlier start"),
    ({"average.buffers": "recompute", **SWA}, {}, "Leave it out"),
    ({"average.buffers": "recompute", **SWA}, OWN_STEP, "Use 'average', or Task(loss=...)"),
]
LAUNCHED = {"system": MANY["system"]}
# The strategy is checked before the options, so its package has to be there.
WITH_DEEPSPEED = {"system": lambda: replace(MANY["system"](), extras=("deepspeed",))}


def by_accelerate(**config: Any) -> dict[str, Any]:
    """Describe two processes that `accelerate launch` started with a config."""
    launched = LaunchInfo(size=2, local_size=2, launcher="accelerate launch")
    accelerate_config = AccelerateConfig(**config)
    return {
        "system": lambda: replace(read_system(), launched=launched, accelerate=accelerate_config)
    }


def on_gpu(parts: dict[str, Any]) -> dict[str, Any]:
    """Describe the same launch on a machine with a GPU."""
    return {"system": lambda: replace(parts["system"](), cuda_devices=("H200",), cuda_memory=(1,))}


def cards(count: int, *, of: int) -> dict[str, Any]:
    """Describe a machine with `count` GPUs for `of` processes."""
    seen = {"cuda_devices": ("H200",) * count, "cuda_memory": (1,) * count}
    launched = LaunchInfo(rank=1, size=of, local_rank=1, local_size=of, launcher="torchrun")
    return {"system": lambda: replace(GPU, launched=launched, **seen)}


DYNAMO = {"dynamo": "inductor", "dynamo_mode": "reduce-overhead"}
BARE = {"system": lambda: replace(read_system(), extras=())}
ACCELERATE: list[Case] = [
    ({"parallel.strategy": "accelerate"}, BARE, "pip install accelerate"),
    ({"parallel.strategy": "accelerate"}, by_accelerate(engine="FSDP"), "Choose multi-GPU"),
    ({"parallel.strategy": "accelerate"}, by_accelerate(engine="Megatron-LM"), "Choose multi-GPU"),
    ({"precision": "fp16"}, by_accelerate(mixed_precision="bf16"), "has mixed_precision bf16"),
    ({"precision": "bf16"}, by_accelerate(mixed_precision="fp8"), "--mixed_precision bf16"),
    ({"device": "cuda"}, on_gpu(by_accelerate(use_cpu=True)), "Set only one of them"),
    ({"compile": "default"}, by_accelerate(**DYNAMO), "Set only one of them"),
    ({"compile": "default"}, by_accelerate(dynamo="ipex"), "--dynamo_backend no"),
]
PARALLEL: list[Case] = [
    *ACCELERATE,
    ({"parallel.strategy": "ddp"}, {}, "torchrun --nproc-per-node 2"),
    ({**FSDP, "logging.graph": True}, LAUNCHED, "leave logging.graph out here"),
    ({"parallel.strategy": "fsdp"}, {}, "torchrun --nproc-per-node 2"),
    ({"parallel.strategy": "single"}, LAUNCHED, "2 processes were started"),
    (
        {"parallel.start_timeout_s": 10, "parallel.timeout_s": 60},
        {},
        "start_timeout_s=10 is shorter than parallel.timeout_s=60",
    ),
    ({"parallel.find_unused_parameters": True}, LAUNCHED | OWN_STEP, "manual_step.step sums"),
    ({"parallel.static_graph": True}, LAUNCHED | OWN_STEP, "manual_step.step sums"),
    (
        {"parallel.static_graph": True, "parallel.find_unused_parameters": True},
        LAUNCHED,
        "Set one of them",
    ),
    (
        {"epochs": 9, "parallel.static_graph": True, "optim.groups": ("0.* freeze='4 steps'",)},
        LAUNCHED,
        "promises that every step uses the same parameters",
    ),
    (
        {
            "epochs": 9,
            "parallel.find_unused_parameters": False,
            "optim.groups": ("0.* freeze='4 steps'",),
        },
        LAUNCHED,
        "waits for a gradient of each parameter in each step",
    ),
    (
        {"device": "mps"},
        {"system": lambda: replace(MANY["system"](), mps=True)},
        "Start one process",
    ),
    ({"cuda_graph": True}, cards(2, of=2), "parallel.strategy='ddp' exchanges gradients"),
    ({"device": "cuda:0"}, cards(2, of=2), "choose the GPUs with CUDA_VISIBLE_DEVICES=0,1"),
    ({"device": "cuda"}, cards(1, of=2), "1 GPU(s): on device='cuda' each needs its own"),
    ({"device": "cuda"}, cards(2, of=4), "Use --nproc 2 (torchrun --nproc-per-node 2), or device="),
    (FSDP, LAUNCHED | OWN_STEP, "The Task brings its own step"),
    ({**FSDP, **LBFGS}, LAUNCHED, "takes steps by itself"),
    ({**FSDP, "optim.name": "muon"}, LAUNCHED, "Set optim.name='adamw'"),
    ({**FSDP, "optim.name": "adafactor"}, LAUNCHED, "Set optim.name='adamw'"),
    ({**FSDP, "optim.name": "adamw8bit"}, LAUNCHED, "Set optim.name='adamw'"),
    ({**FSDP, "optim.name": "sgd"}, LAUNCHED | SPARSE, "with sparse=False"),
    ({**FSDP, "compile": "reduce-overhead"}, LAUNCHED, "Use compile='default'"),
    ({**FSDP, "compile": "default", "compile_blocks": False}, LAUNCHED, "Leave it out"),
    (
        {**FSDP, "channels_last": True},
        LAUNCHED | {"model": nn.Conv2d(1, 3, 1)},
        "use parallel.strategy='ddp'",
    ),
    ({**FSDP, "parallel.replica_check_every": "1 epoch"}, LAUNCHED, "use parallel.shard='hybrid'"),
    ({"parallel.shard": "hybrid"}, LAUNCHED, "Set parallel.shard='full'"),
    ({"parallel.shard": "hybrid", "parallel.shard_size": 3}, EIGHT, "parallel.shard_size=2"),
    ({**FSDP, "parallel.wrap_policy": "class Linea"}, LAUNCHED, "Linear (2)"),
    ({**FSDP, "parallel.meta_init": True}, LAUNCHED, "model=lambda: Net()"),
    ({**FSDP, "parallel.offload": "optimizer"}, LAUNCHED, "Use parallel.offload='all'"),
    (
        {**FSDP, "parallel.offload": "all", "precision": "fp16"},
        {"system": lambda: replace(TWO_GPUS, launched=MANY["system"]().launched)},
        "Use precision='bf16'",
    ),
]
# For every required option: the options and the machine that do not satisfy the requirement.
NOT_CHOSEN: dict[str, Callable[[str], list[tuple[Options, dict[str, Any]]]]] = {
    VAL_DATA: lambda _: [({}, {})],
    PROCESSES: lambda _: [({}, {})],
    STREAM: lambda _: [({}, {})],
    INDICES: lambda _: [(STEPS, ENDLESS)],
    CONVOLUTIONS: lambda _: [({}, {})],
    BLOCKS: lambda _: [({"compile": "default"}, FLAT)],
    MODEL_FUNCTION: lambda _: [(FSDP, LAUNCHED)],
    OUR_STEP: lambda _: [({}, LAUNCHED | OWN_STEP)],
    "device": lambda _: [({"device": "cpu"}, LAUNCHED)],
    "validation.every": lambda _: [({"validation.every": "off"}, VAL)],
    "schedule.warmup": lambda _: [({"schedule.name": "linear"}, {})],
    "schedule.cycle_momentum": lambda _: [({"schedule.name": "cyclic"}, {})],
    "precision": lambda _: [({}, {}), ({"precision": "bf16"}, {})],
    "compile": lambda _: [({}, {})],
    "on_nonfinite": lambda _: [({}, {})],
    "on_spike": lambda _: [({}, {})],
    "data.num_workers": lambda _: [({}, {})],
    "early_stop.patience": lambda _: [({}, VAL)],
    "optim.name": lambda option: [({"optim.name": foreign_to(option)}, VAL)],
    "schedule.name": lambda option: [({"schedule.name": foreign_to(option)}, VAL)],
    "average.kind": lambda _: [({}, {}), (SWA, {}), ({"average.kind": "ema"}, {})],
    "average.lr": lambda _: [(SWA, {})],
    "parallel.strategy": lambda _: [
        *(({"parallel.strategy": name}, WITH_DEEPSPEED) for name in ("ddp", "fsdp", "deepspeed")),
    ],
    "parallel.shard": lambda _: [(FSDP, LAUNCHED)],
    "parallel.backend": lambda _: [({}, LAUNCHED)],
}


def requested(option: str) -> Any:
    """Return a value of an option that enables it; False does not."""
    return True if OPTION_VALUES[option].value is False else OPTION_VALUES[option].value


def unmet(option: str) -> list[Case]:
    """Return a case for every unmet requirement in the declaration of an option."""
    return [
        ({**chosen, option: requested(option)}, parts, f"requires {name}")
        for name, allowed in requirements_of(option).items()
        for chosen, parts in NOT_CHOSEN[name](option)
        if not is_met(allowed, chosen.get(name))
    ]


UNMET = {option: unmet(option) for option in OPTION_VALUES if requirements_of(option)}
CANNOT: list[Case] = [
    *(*PARALLEL, *DEEPSPEED),
    *(*RUN, *DATA, *OPTIM, *SCHEDULE, *STEP, *SPEED, *EVALUATION),
]
