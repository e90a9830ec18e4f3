from dataclasses import replace

import pytest
import torch

from surestep.config.duration import Duration
from surestep.engine.data.samplers.basic import sequential, shuffled
from surestep.engine.distributed.launcher_env import LaunchInfo
from tests.tiny import FACTS, GIVEN, GPU, LOADED, OLD_GPU, TWO_GPUS, VALIDATED, decide

GPUS = replace(TWO_GPUS, launched=LaunchInfo(rank=0, size=2, local_size=2))
SECOND = replace(GPUS, launched=LaunchInfo(rank=1, size=2, local_rank=1, local_size=2))
BOUND = replace(SECOND, cuda_devices=("H200",), cuda_memory=(1,), has_own_gpu=True)
SPARSE = replace(GIVEN, sparse=("table",))
HIDDEN = replace(GIVEN, hidden=("a", "b"))
MUON = {"optim.name": "muon", "optim.lr": 0.02}


OFFLOADED = {"parallel.strategy": "fsdp", "parallel.offload": "all"}
TENS = {"batch_size": 10}
SWA = {**TENS, "epochs": 4.0, "average.kind": "swa"}


MLFLOW = {"logging.trackers": ("mlflow",)}
WITH_MLFLOW = replace(FACTS, extras=("mlflow",))


@pytest.mark.parametrize(
    ("option", "options", "system", "given", "value", "reason"),
    [
        ("device", {}, GPU, GIVEN, torch.device("cuda"), "this machine has H200"),
        ("device", {}, FACTS, GIVEN, torch.device("cpu"), "no CUDA device here"),
        ("device", {}, SECOND, GIVEN, torch.device("cuda:1"), "each of 2 processes of"),
        (
            "device",
            {"device": "cuda"},
            SECOND,
            GIVEN,
            torch.device("cuda:1"),
            "set in Python; ea",
        ),
        ("device", {}, BOUND, GIVEN, torch.device("cuda:0"), "each of 2 processes of"),
        ("device", {"device": "cuda"}, BOUND, GIVEN, torch.device("cuda:0"), "set in Python; ea"),
        ("device", {"device": "cuda:0"}, BOUND, GIVEN, torch.device("cuda:0"), "set in Python"),
        ("device", {"device": "cpu"}, SECOND, GIVEN, torch.device("cpu"), "set in Python"),
        ("precision", {}, GPU, GIVEN, "bf16", "auto: this GPU supports bf16"),
        ("precision", {}, OLD_GPU, GIVEN, "fp32", "auto: bf16 only if"),
        ("precision", {"device": "cpu"}, GPU, GIVEN, "fp32", "auto: bf16 only if"),
        ("precision", {"precision": "auto"}, FACTS, GIVEN, "fp32", "auto: "),
        (
            "logging.mlflow_model",
            MLFLOW,
            WITH_MLFLOW,
            GIVEN,
            "weights",
            "exporting a program takes",
        ),
        (
            "logging.mlflow_model",
            {**MLFLOW, "logging.mlflow_registered_model": "churn"},
            *(WITH_MLFLOW, GIVEN, "program", "the registered model runs without its code"),
        ),
        ("batch_size", {}, FACTS, LOADED, 10, "the DataLoader's own"),
        ("batch_size", {}, FACTS, GIVEN, 64, "not set"),
        ("micro_batch_size", {}, FACTS, LOADED, 10, "not set: the full batch at once"),
        ("batch_layout", {}, FACTS, LOADED, "10 = 1 micro-batch", "not split"),
        (
            "batch_layout",
            {"micro_batch_size": 24},
            FACTS,
            GIVEN,
            "64 = 2 micro-batches x 24 + 16",
            "the",
        ),
        (
            *("batch_layout", {"micro_batch_size": 32}, FACTS),
            *(replace(GIVEN, not_splitting=("dropout draws",)), "64 = 2 micro-batches x 32"),
            "splitting changes the numbers here: dropout draws",
        ),
        (
            *("batch_layout", {"batch_size": 1}, GPUS, GIVEN),
            "1 = 2 ranks x at most 1 micro-batch x 1",
            "ranks past the first 1 get no data: set batch_size=2",
        ),
        ("data.shuffle", {}, FACTS, LOADED, False, "the DataLoader's own"),
        ("data.drop_last", {}, FACTS, LOADED, True, "the DataLoader's own"),
        ("on_spike", {}, FACTS, GIVEN, "warn", "a loss that jumps"),
        ("on_spike", {}, FACTS, replace(GIVEN, own_step=True), "off", "the Task's own step"),
        ("data.num_workers", {}, GPU, LOADED, 3, "the DataLoader's own"),
        ("data.prefetch_factor", {}, GPU, LOADED, 4, "the DataLoader's own"),
        ("data.num_workers", {}, GPU, GIVEN, 4, "loading beside the GPU; 8 cores here"),
        ("data.num_workers", {}, replace(GPU, cpus=1), GIVEN, 1, "loading beside the GPU"),
        ("data.num_workers", {}, GPU, replace(GIVEN, in_memory=True), 0, "the data is in memory"),
        ("data.num_workers", {}, FACTS, GIVEN, 0, "on a CPU the step itself"),
        (
            "data.persistent_workers",
            {"data.num_workers": 2},
            FACTS,
            GIVEN,
            True,
            "starting workers",
        ),
        ("data.pin_memory", {}, GPU, GIVEN, True, "copies to the GPU"),
        ("data.prefetch_factor", {}, FACTS, GIVEN, None, "no workers"),
        (
            *("activation_checkpointing", {"activation_checkpointing": "on"}, FACTS),
            *(GIVEN, "on", "set in Python"),
        ),
        ("checkpoint.weights", {}, FACTS, GIVEN, "all", "a checkpoint is complete by itself"),
        (
            *("checkpoint.weights", {}, FACTS, replace(GIVEN, adapters=True)),
            *("trained", "adapters on a frozen base"),
        ),
        (
            *("checkpoint.weights", {"checkpoint.weights": "all"}, FACTS),
            *(replace(GIVEN, adapters=True), "all", "set in Python"),
        ),
        ("activation_checkpointing", {}, FACTS, GIVEN, "off", "activations stay in memory"),
        ("steps_per_epoch", {}, FACTS, GIVEN, 2, "100 samples in batches of 64"),
        ("steps_per_epoch", {"data.drop_last": True}, FACTS, GIVEN, 1, "100 samples in"),
        ("total_steps", {"epochs": 2.5}, FACTS, GIVEN, 5, "2.5 epochs of 2 steps"),
        ("total_steps", {"epochs": 1}, FACTS, GIVEN, 2, "1 epoch of 2 steps"),
        ("validation.mode", {}, FACTS, GIVEN, "min", "no validation data"),
        ("total_steps", {"epochs": None, "max_steps": 9}, FACTS, GIVEN, 9, "set "),
        ("optim.name", {}, FACTS, replace(GIVEN, own_optimizer=True), "own", "the Task brings"),
        ("optim.implementation", {}, FACTS, GIVEN, "fused", "one kernel updates everything on cpu"),
        (
            "optim.implementation",
            {},
            FACTS,
            replace(GIVEN, floating=False),
            "foreach",
            "fused takes",
        ),
        *(
            ("optim.implementation", options, FACTS, replace(GIVEN, half=True), kind, reason)
            for options, kind, reason in (
                ({}, "fused", "one kernel"),
                ({"optim.name": "sgd"}, "foreach", "torch's fused SGD computes wrong updates"),
                (
                    {"optim.name": "sgd", "optim.implementation": "fused"},
                    "foreach",
                    "torch's fused SGD computes wrong updates",
                ),
            )
        ),
        (
            *("optim.implementation", {"optim.name": "sgd"}, GPU, replace(GIVEN, half=True)),
            *("fused", "one kernel"),
        ),
        ("optim.name", {}, FACTS, SPARSE, "sparse_adam", "the gradient of table is sparse"),
        (
            "optim.split",
            {},
            FACTS,
            SPARSE,
            "1 by SparseAdam, the rest by AdamW",
            "SparseAdam takes",
        ),
        ("optim.split", MUON, FACTS, HIDDEN, "2 by Muon, the rest by AdamW", "Muon is for hidden"),
        ("optim.adamw_lr", MUON, FACTS, HIDDEN, 1e-3, "torch's default for AdamW"),
        (
            *("optim.adamw_lr", {**MUON, "optim.adjust_lr_fn": "match_rms_adamw"}, FACTS, HIDDEN),
            *(0.02, "optim.lr: both change"),
        ),
        ("optim.weight_decay", {}, FACTS, SPARSE, 0.01, "torch's default"),
        ("optim.weight_decay", {"optim.name": "lbfgs"}, FACTS, GIVEN, None, "lbfgs has none"),
        (
            *("optim.weight_decay", {"optim.name": "lbfgs", "optim.weight_decay": 0.0}),
            *(FACTS, GIVEN, None, "lbfgs has none"),
        ),
        ("optim.lr", {"optim.name": "adadelta"}, FACTS, GIVEN, 1.0, "torch's default"),
        ("optim.implementation", MUON, FACTS, HIDDEN, "for_loop", "the only one of muon"),
        ("optim.implementation", {"optim.name": "sgd"}, GPU, SPARSE, "for_loop", "the gradient of"),
        (
            "optim.implementation",
            {"optim.name": "radam"},
            GPU,
            GIVEN,
            "foreach",
            "torch has no fused",
        ),
        ("guard", {"optim.name": "radam"}, FACTS, GIVEN, "host", "this optimizer cannot"),
        ("guard", {"optim.name": "lbfgs"}, FACTS, GIVEN, "line_search", "the host reads each"),
        (
            *("guard", {"optim.name": "sgd", "optim.momentum": 0.9, "optim.dampening": 0.1}),
            *(FACTS, GIVEN, "host", "with dampening"),
        ),
        ("max_grad_norm", {"optim.name": "lbfgs"}, FACTS, GIVEN, None, "L-BFGS learns from"),
        ("optim.weight_decay", {"optim.name": "sgd"}, FACTS, GIVEN, 0.0, "torch's default"),
        ("max_grad_norm", {}, FACTS, GIVEN, 1.0, "limits the effect of one bad batch"),
        ("max_grad_norm", {"max_grad_norm": "off"}, FACTS, GIVEN, None, "off, set in Python"),
        ("max_grad_norm", {"clip_value": 1.0}, FACTS, GIVEN, None, "clip_value clips instead"),
        ("guard", {}, FACTS, GIVEN, "device", "the device skips a step that"),
        ("guard", {"precision": "bf16"}, FACTS, GIVEN, "device", "the device skips a step that"),
        ("guard", {"precision": "fp16"}, FACTS, GIVEN, "grad_scaler", "fp16 may overflow"),
        (
            *("guard", {"parallel.strategy": "fsdp", "parallel.offload": "all"}, GPUS, GIVEN),
            *("host", "parallel.offload keeps gradients and optimizer on the host"),
        ),
        ("guard", {"on_nonfinite": "skip"}, FACTS, GIVEN, "host", "the host counts"),
        (
            "guard",
            {},
            FACTS,
            replace(GIVEN, own_optimizer=True),
            "host",
            "this optimizer cannot",
        ),
        ("guard", {}, FACTS, replace(GIVEN, floating=False), "host", "this optimizer cannot"),
        (
            "max_nonfinite_steps",
            {"on_nonfinite": "skip"},
            FACTS,
            GIVEN,
            100,
            "after 100 skipped steps",
        ),
        ("validation.metric", {}, FACTS, VALIDATED, "val/loss", "the loss that is trained on"),
        ("validation.metric", {}, FACTS, GIVEN, None, "no validation data"),
        (
            *("validation.metric", {"validation.metric": "accuracy"}, FACTS, VALIDATED),
            *("val/accuracy", "set in Python"),
        ),
        (
            *("validation.mode", {"validation.metric": "far/accuracy"}, FACTS, VALIDATED),
            *("max", "a larger far/accuracy is better"),
        ),
        (
            *("validation.mode", {"validation.metric": "score"}, FACTS),
            *(replace(VALIDATED, metrics={"score": "max"}), "max", "a larger val/score is better"),
        ),
        (
            *("validation.mode", {"validation.metric": "score_macro"}, FACTS),
            *(replace(VALIDATED, metrics={"score": "max"}, objects=("score",)), "max", "a larger"),
        ),
        (
            *("validation.batch_size", {}, FACTS, replace(VALIDATED, val_batch_sizes=(5, 9))),
            *(5, "the val DataLoader's own"),
        ),
        ("batch_size", {}, SECOND, LOADED, 20, "the DataLoader's own, on each of 2 ranks"),
        *(
            ("data.num_workers", {}, replace(GPU, cpus=cpus), GIVEN, workers, "loading beside")
            for cpus, workers in ((1, 1), (2, 1), (3, 2), (5, 4), (9, 4))
        ),
        *(
            ("validation.weights", average, FACTS, VALIDATED, *found)
            for average, found in (
                ({}, ("raw", "there is no average")),
                ({"average.kind": "ema"}, ("average", "the purpose of average.kind")),
                ({"average.kind": "swa", "validation.weights": "raw"}, ("raw", "set in Python")),
            )
        ),
        ("data.shuffle", {}, FACTS, replace(GIVEN, order=sequential()), False, "the Task's"),
        ("data.shuffle", {}, FACTS, replace(GIVEN, order=shuffled()), True, "the Task's"),
        (
            *("data.resume", {"data.shuffle_buffer": 9}, FACTS, replace(GIVEN, is_stream=True)),
            *("by reading again", "the samples in data.shuffle_buffer"),
        ),
        *(
            ("total_steps", {"epochs": epochs, **TENS}, FACTS, GIVEN, steps, f"{epochs:g} epoch")
            for epochs, steps in ((1.0, 10), (0.36, 4), (0.34, 3), (0.01, 1), (2.0, 20))
        ),
        *(
            ("average.every", {**SWA, "average.start": start}, FACTS, GIVEN, every, reason)
            for start, every, reason in (
                ("30 steps", Duration(1, "epochs"), "as in the paper"),
                ("31 steps", Duration(1, "steps"), "less than an epoch is averaged"),
            )
        ),
        *(
            ("checkpoint.every", {"checkpoint.every": share, **TENS}, FACTS, GIVEN, *found)
            for share, found in (
                ("1%", (Duration(1, "steps"), "set in Python")),
                ("36%", (Duration(4, "steps"), "set in Python")),
            )
        ),
        *(
            ("checkpoint.min_seconds", kept, FACTS, GIVEN, *found)
            for kept, found in (
                ({"checkpoint.keep_every": "2 steps"}, (None, "checkpoint.keep_every keeps")),
                ({"checkpoint.keep_last": 3}, (10.0, "an epoch may take less")),
                ({"checkpoint.every": "1 epoch"}, (None, "checkpoint.every is set")),
            )
        ),
        *(
            ("optim.adamw_lr", {**MUON, **adjusted}, FACTS, HIDDEN, *found)
            for adjusted, found in (
                ({}, (1e-3, "torch's default for AdamW")),
                ({"optim.adjust_lr_fn": "match_rms_adamw"}, (0.02, "optim.lr: both")),
            )
        ),
        (
            *("optim.implementation", {"optim.name": "sgd", **OFFLOADED}, GPUS),
            *(replace(GIVEN, half=True), "foreach", "torch's fused SGD computes wrong"),
        ),
        ("logging.progress", {}, replace(FACTS, display="terminal"), GIVEN, "bar", "a terminal is"),
        ("logging.progress", {}, FACTS, GIVEN, "plain", "no terminal here"),
    ],
)
def test_unset_option_is_decided_by_its_rule(option, options, system, given, value, reason):
    found = decide(options, system, given)
    decision = next(each for each in found.decisions if each.option == option)
    assert decision.value == value
    assert found.reason(option).startswith(reason)
