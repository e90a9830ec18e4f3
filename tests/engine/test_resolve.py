import re
from dataclasses import fields, replace

import pytest
import torch

from surestep.base.config import Config, options
from surestep.base.errors import ConfigError
from surestep.engine.plan import Given, Plan
from surestep.engine.refusals import REFUSALS
from surestep.engine.resolve import resolve, seed_of
from surestep.engine.table import TABLE
from tests.tiny import FACTS

GPU = replace(FACTS, cuda_devices=("H200",), cuda_memory=(1,), bf16_native=True, tf32=True, cpus=8)
OLD_GPU = replace(GPU, bf16_native=False, tf32=False)
GIVEN = Given(train_samples=100, in_memory=False)
LOADER = {
    **{"batch_size": 10, "shuffle": False, "drop_last": True, "num_workers": 3},
    **{"pin_memory": False, "persistent_workers": False, "prefetch_factor": 4},
}
LOADED = replace(GIVEN, loader=LOADER)
VALIDATED = replace(GIVEN, val_sets=("val", "far"), metrics={"accuracy": None, "score": None})
SAID = {
    **{"epochs": 3.0, "batch_size": 7, "micro_batch_size": 2, "seed": 5, "deterministic": True},
    **{"device": "cpu", "precision": "bf16", "clip_value": 0.5, "on_nonfinite": "skip"},
    **{"max_nonfinite": 3, "optim.name": "adamw", "optim.lr": 0.2, "optim.weight_decay": 0.3},
    **{"optim.betas": (0.5, 0.6), "optim.eps": 1e-5, "schedule.name": "cosine"},
    **{"schedule.warmup": "3 steps", "schedule.min_lr_ratio": 0.1, "schedule.floor": "cut"},
    **{"schedule.every": "2 steps", "data.num_workers": 2, "data.pin_memory": True},
    **{"data.persistent_workers": False, "data.prefetch_factor": 3, "data.drop_last": True},
    **{"data.shuffle": False, "validation.every": "2 epochs", "validation.batch_size": 9},
    **{"validation.metric": "far/score", "validation.mode": "max", "early_stop.patience": 4},
    **{"early_stop.min_delta": 0.1, "checkpoint.every": "10 minutes", "checkpoint.keep_last": 5},
    **{"checkpoint.keep_best": 0, "logging.every": "5 items", "logging.progress": "bar"},
}


def plan(said=None, facts=FACTS, given=GIVEN, **more):
    return resolve(Config.from_options({"epochs": 1.0, **(said or {})}), facts, given, **more)


@pytest.mark.parametrize("facts", [FACTS, GPU, OLD_GPU], ids=["cpu", "gpu", "old gpu"])
@pytest.mark.parametrize("given", [GIVEN, LOADED, VALIDATED, replace(GIVEN, own_optimizer=True)])
def test_every_decision_has_a_reason(facts, given):
    found = plan({}, facts, given)
    assert [each.option for each in found.decisions] == list(TABLE)
    assert all(each.reason and "{" not in each.reason for each in found.decisions)


def test_every_option_of_the_config_is_decided():
    apart = {"epochs", "max_steps"}  # together they are total_steps
    assert {name for name, _ in options()} - apart <= set(TABLE)


def test_every_refusal_stands_at_an_option_that_is_decided():
    assert set(REFUSALS) <= set(TABLE)


def test_every_field_of_the_plan_is_decided():
    decided = {option.replace(".", "_") for option in TABLE}
    assert {each.name for each in fields(Plan)} - {"schedule", "decisions"} <= decided


@pytest.mark.parametrize("option", [name for name in SAID if name != "epochs"])
def test_what_is_said_is_what_is_chosen_and_where_it_was_said_is_the_reason(option):
    found = plan(SAID, given=VALIDATED, origins={option: "command line"})
    decision = next(each for each in found.decisions if each.option == option)
    assert str(decision.value) == str(SAID[option])
    assert decision.reason == "said: command line"


@pytest.mark.parametrize(
    ("option", "said", "facts", "given", "value", "reason"),
    [
        ("device", {}, GPU, GIVEN, torch.device("cuda"), "this machine has H200"),
        ("device", {}, FACTS, GIVEN, torch.device("cpu"), "no CUDA device here"),
        ("precision", {}, GPU, GIVEN, "bf16", "auto: this GPU has bf16 natively"),
        ("precision", {}, OLD_GPU, GIVEN, "fp32", "auto: bf16 only where"),
        ("precision", {"device": "cpu"}, GPU, GIVEN, "fp32", "auto: bf16 only where"),
        ("precision", {"precision": "auto"}, FACTS, GIVEN, "fp32", "auto: "),
        ("batch_size", {}, FACTS, LOADED, 10, "the DataLoader's own"),
        ("batch_size", {}, FACTS, GIVEN, 64, "nothing said"),
        ("micro_batch_size", {}, FACTS, LOADED, 10, "the whole batch at once"),
        ("cutting", {}, FACTS, LOADED, "10 = 1 micro-batch", "not cut"),
        (
            "cutting",
            {"micro_batch_size": 24},
            FACTS,
            GIVEN,
            "64 = 2 micro-batches x 24 + 16",
            "the",
        ),
        (
            *("cutting", {"micro_batch_size": 32}, FACTS),
            *(replace(GIVEN, not_splitting=("dropout draws",)), "64 = 2 micro-batches x 32"),
            "cutting changes the numbers here: dropout draws",
        ),
        ("data.shuffle", {}, FACTS, LOADED, False, "the DataLoader's own"),
        ("data.drop_last", {}, FACTS, LOADED, True, "the DataLoader's own"),
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
        ("steps_per_epoch", {}, FACTS, GIVEN, 2, "100 samples in batches of 64"),
        ("steps_per_epoch", {"data.drop_last": True}, FACTS, GIVEN, 1, "100 samples in whole"),
        ("total_steps", {"epochs": 2.5}, FACTS, GIVEN, 5, "2.5 epochs of 2 steps"),
        ("total_steps", {"epochs": None, "max_steps": 9}, FACTS, GIVEN, 9, "max_steps, said"),
        ("optim.name", {}, FACTS, replace(GIVEN, own_optimizer=True), "own", "the Task brings"),
        ("optim.implementation", {}, FACTS, GIVEN, "fused", "torch has it for cpu"),
        (
            "optim.implementation",
            {},
            FACTS,
            replace(GIVEN, floating=False),
            "foreach",
            "fused takes",
        ),
        ("optim.betas", {"optim.name": "sgd"}, FACTS, GIVEN, None, "not an option of sgd"),
        ("optim.weight_decay", {"optim.name": "sgd"}, FACTS, GIVEN, 0.0, "torch's default for SGD"),
        ("max_grad_norm", {}, FACTS, GIVEN, 1.0, "one bad batch"),
        ("max_grad_norm", {"max_grad_norm": "off"}, FACTS, GIVEN, None, "off, said: Python"),
        ("max_grad_norm", {"clip_value": 1.0}, FACTS, GIVEN, None, "clip_value clips instead"),
        ("guard", {}, FACTS, GIVEN, "sticky", "kept on the device"),
        ("guard", {"precision": "bf16"}, FACTS, GIVEN, "sticky", "kept on the device"),
        ("guard", {"precision": "fp16"}, FACTS, GIVEN, "scaled", "fp16 may overflow"),
        ("guard", {"on_nonfinite": "skip"}, FACTS, GIVEN, "reading", "skipping for good"),
        (
            "guard",
            {},
            FACTS,
            replace(GIVEN, own_optimizer=True),
            "reading",
            "this optimizer cannot",
        ),
        ("guard", {}, FACTS, replace(GIVEN, floating=False), "reading", "this optimizer cannot"),
        ("max_nonfinite", {"on_nonfinite": "skip"}, FACTS, GIVEN, 100, "more is not bad luck"),
        ("validation.metric", {}, FACTS, VALIDATED, "val/loss", "what is trained on"),
        ("validation.metric", {}, FACTS, GIVEN, None, "no validation data"),
        (
            *("validation.metric", {"validation.metric": "accuracy"}, FACTS, VALIDATED),
            *("val/accuracy", "said: Python"),
        ),
        (
            *("validation.mode", {"validation.metric": "far/accuracy"}, FACTS, VALIDATED),
            *("max", "a larger far/accuracy is better"),
        ),
        (
            *("validation.mode", {"validation.metric": "score"}, FACTS),
            *(replace(VALIDATED, metrics={"score": "max"}), "max", "a larger val/score is better"),
        ),
        ("logging.progress", {}, replace(FACTS, display="terminal"), GIVEN, "bar", "a terminal is"),
        ("logging.progress", {}, FACTS, GIVEN, "plain", "no terminal here"),
    ],
)
def test_what_is_not_said_is_decided_by_its_row(option, said, facts, given, value, reason):
    found = plan(said, facts, given)
    decision = next(each for each in found.decisions if each.option == option)
    assert decision.value == value
    assert found.reason(option).startswith(reason)


@pytest.mark.parametrize(
    ("said", "given", "sentence"),
    [
        ({"device": "cuda"}, GIVEN, "device='cuda' is not here. This machine has: cpu."),
        ({"device": "meta"}, GIVEN, "device='meta' is not here"),
        ({"device": "tpu"}, GIVEN, "device='tpu' is not here"),
        ({"precision": "tf32"}, GIVEN, "needs an NVIDIA GPU .* Use precision='fp32' or 'bf16'"),
        ({"micro_batch_size": 65}, GIVEN, "micro_batch_size=65 is larger .* Use at most 64"),
        ({"batch_size": 5}, LOADED, "batch_size=5, but the DataLoader .* batch_size=10"),
        ({"data.shuffle": True}, LOADED, "shuffle=False. Say it in one place"),
        ({"data.drop_last": False}, LOADED, "drop_last=True"),
        ({"data.num_workers": 0}, LOADED, "num_workers=3"),
        ({"data.pin_memory": True}, LOADED, "pin_memory=False"),
        ({"data.persistent_workers": True}, LOADED, "persistent_workers=False"),
        ({"data.prefetch_factor": 9}, LOADED, "prefetch_factor=4"),
        ({"data.persistent_workers": True}, GIVEN, "needs workers: say data.num_workers=2"),
        ({"data.prefetch_factor": 3}, GIVEN, "needs workers: say data.num_workers=2"),
        ({"data.drop_last": True, "batch_size": 101}, GIVEN, "drops every batch: 100 samples"),
        ({"epochs": None}, GIVEN, "Nothing says how long .* Say epochs=10 or max_steps=1000"),
        ({"optim.lr": 0.1}, replace(GIVEN, own_optimizer=True), "optim.lr is said, but the Task"),
        ({"optim.momentum": 0.1}, GIVEN, "optim.momentum=0.1 is an option of sgd"),
        ({"optim.name": "sgd", "optim.eps": 0.1}, GIVEN, "optim.eps=0.1 is an option of adamw"),
        ({"optim.name": "sgd", "optim.nesterov": True}, GIVEN, "say optim.momentum=0.9"),
        ({"clip_value": 1.0, "max_grad_norm": 1.0}, GIVEN, "two ways to clip. Say one"),
        ({"schedule.warmup": "3 steps"}, GIVEN, "is 3 steps, longer than the run of 2 steps"),
        ({"max_nonfinite": 3}, GIVEN, "say on_nonfinite='skip' with it"),
        ({"scaler.init_scale": 3}, GIVEN, "scaler.init_scale is said, but only fp16"),
        ({"scaler.growth_interval": 3}, GIVEN, "scaler.growth_interval is said"),
        (
            {"validation.metric": "f1"},
            VALIDATED,
            "Measured: val/loss, val/accuracy, val/score, far",
        ),
        ({"validation.metric": "loss"}, GIVEN, "Measured: nothing, there is no val data"),
        ({"validation.metric": "score"}, VALIDATED, "Say validation.mode='max' or 'min'"),
        ({"early_stop.patience": 3}, GIVEN, "needs evaluations: give the Task val data"),
        ({"early_stop.min_delta": 3}, VALIDATED, "say early_stop.patience=5"),
    ],
)
def test_a_wish_that_cannot_be_kept_is_refused_with_what_to_type(said, given, sentence):
    with pytest.raises(ConfigError) as caught:
        plan(said, given=given)
    assert re.search(sentence, str(caught.value)), caught.value


@pytest.mark.parametrize(
    "said", [{"batch_size": 10}, {"data.shuffle": False}, {"data.num_workers": 3}]
)
def test_what_a_loader_says_too_may_be_said(said):
    assert plan(said, given=LOADED).batch_size == 10


@pytest.mark.parametrize("said", ["validation.every", "validation.batch_size", "validation.mode"])
def test_validation_without_data_is_refused(said):
    value = {"validation.every": "1 epoch", "validation.batch_size": 3, "validation.mode": "max"}
    with pytest.raises(ConfigError, match="val"):
        plan({said: value[said]})


def test_a_device_by_number_must_be_here():
    assert plan({"device": "cuda:0"}, GPU).device.index == 0
    with pytest.raises(ConfigError, match="This machine has: cpu, cuda:0"):
        plan({"device": "cuda:1"}, GPU)


def test_a_schedule_is_in_steps():
    said = {"epochs": 5.0, "schedule.warmup": "20%", "schedule.every": "0.5 epochs"}
    shape = plan({**said, "batch_size": 10}).schedule
    assert (shape.total, shape.warmup, shape.every) == (50, 10, 5)
    assert plan({**said, "schedule.warmup": "1.5 epochs", "batch_size": 10}).schedule.warmup == 15


def test_the_seed_is_known_before_the_plan_and_is_its():
    assert seed_of(Config()) == plan().seed
    assert seed_of(Config(seed=9)) == plan({"seed": 9}).seed == 9
