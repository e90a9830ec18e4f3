"""What would help a run that ran out of memory: what applies to it, in order, with its peak."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from surestep.engine.distributed.launcher_env import LaunchInfo
from surestep.engine.profile.memory_use import MemoryUse
from surestep.trainer import memory_advice
from surestep.trainer.memory import estimate_evaluation, estimate_memory_per_rank, estimate_step
from surestep.trainer.memory_advice import (
    Advice,
    Remedy,
    advise,
    advise_for_room,
    describe_advice,
)
from surestep.trainer.planning import PreparedTask, plan_task
from tests import tiny

WITH_8BIT = ("bitsandbytes",)  # importing it takes seconds, so nothing is predicted with it
GPU = replace(tiny.GPU, extras=WITH_8BIT)


def blocks(norm: type[nn.Module] = nn.LayerNorm) -> nn.Module:
    layers = [nn.Sequential(norm(64), nn.Linear(64, 64), nn.Tanh()) for _ in range(3)]
    return nn.Sequential(nn.Linear(tiny.FEATURES, 64), *layers, nn.Linear(64, tiny.CLASSES))


def plan(system=tiny.FACTS, *, model: nn.Module | None = None, **options) -> PreparedTask:
    task = tiny.task(model=model or blocks(), train=tiny.data(512), val=tiny.data(64))
    return plan_task(task, tiny.config(**{"batch_size": 256, **options}), system=system)


def settings_of(planned: PreparedTask, room: int | None = None, size: int | None = None, **of_use):
    device = planned.plan.device
    cuda = SimpleNamespace(limit=room, **{"is_fragmented": False, "is_expandable": False, **of_use})
    use = MemoryUse(device, None, cuda=None if room is None else cuda)
    return {remedy.setting: remedy for remedy in advise(planned, use, size).remedies}


@pytest.fixture
def without_peaks(monkeypatch):
    """Nothing is predicted, so that each remedy that applies is listed."""
    monkeypatch.setattr(memory_advice._Predictor, "predict", lambda *_: (None, ""))


def test_remedies_of_a_run_on_the_cpu_have_the_peaks_of_the_estimate():
    planned = plan()
    found = settings_of(planned)
    assert list(found) == ["micro_batch_size=128", "activation_checkpointing='on'"]
    assert found["micro_batch_size=128"].effect.startswith("changes no update")
    assert found["micro_batch_size=128"].peak == estimate_step(plan(micro_batch_size=128)).peak
    checkpointed = estimate_step(plan(activation_checkpointing="on")).peak
    assert found["activation_checkpointing='on'"].peak == checkpointed


def test_remedies_of_a_run_on_two_gpus_are_in_order(without_peaks):
    found = settings_of(plan(replace(tiny.TWO_GPUS, extras=WITH_8BIT), precision="fp32"))
    over = "over 2 GPUs (--nproc 2)"
    assert list(found) == [
        "micro_batch_size=128",
        "activation_checkpointing='on'",
        "precision='bf16'",
        "optim.name='adamw8bit'",
        f"parallel.strategy='fsdp', parallel.shard='grad_op' {over}",
        f"parallel.strategy='fsdp', parallel.shard='full' {over}",
    ]


@pytest.fixture
def tiny_savings(monkeypatch):
    """List what saves a byte: the workspace of CUDA is larger than these models."""
    monkeypatch.setattr(memory_advice, "_SAVES", 1.0)


def test_sharded_run_takes_less_than_one_process(tiny_savings):
    found = settings_of(plan(tiny.TWO_GPUS))
    grad_op, full = (one.peak for name, one in found.items() if name.startswith("parallel"))
    alone = estimate_step(plan(tiny.GPU, micro_batch_size=128)).peak  # a rank has half of a batch
    assert full < grad_op < alone


@pytest.mark.parametrize(
    ("system", "options", "missing"),
    [
        (GPU, {"precision": "fp32"}, "parallel.strategy"),
        (GPU, {"precision": "bf16"}, "precision"),
        (replace(GPU, bf16_native=False), {}, "precision"),
        (replace(GPU, extras=()), {}, "optim.name"),
        (GPU, {"optim": {"name": "sgd"}}, "optim.name"),
        (GPU, {"batch_size": 1}, "micro_batch_size"),
        (GPU, {"activation_checkpointing": "on"}, "activation_checkpointing"),
    ],
)
def test_remedy_that_does_not_apply_is_left_out(without_peaks, system, options, missing):
    assert not [one for one in settings_of(plan(system, **options)) if one.startswith(missing)]


def test_smaller_micro_batch_that_changes_the_update_says_so(without_peaks):
    found = settings_of(plan(model=blocks(nn.BatchNorm1d)))
    assert found["micro_batch_size=128"].effect == (
        "changes the update: batch statistics are the micro-batch's"
    )


@pytest.mark.slow("traces a dozen steps")
def test_size_is_the_largest_half_that_fits(tiny_savings):
    peak = estimate_step(plan(tiny.GPU, micro_batch_size=32)).peak
    found = settings_of(plan(tiny.GPU), room=peak)
    assert next(iter(found)) == "micro_batch_size=32"
    assert next(iter(settings_of(plan(tiny.GPU), room=1))) == "micro_batch_size=1"


def test_most_ranks_that_are_needed_are_advised_for_a_device_that_is_not_there():
    planned = plan(model=blocks())
    launched = LaunchInfo(size=4, local_size=4, launcher="--ranks", is_simulated=True)
    of_four = plan(
        replace(tiny.FACTS, launched=launched),
        micro_batch_size=1,
        parallel={"strategy": "fsdp", "shard": "full"},
    )
    (room,) = (
        rank.total
        for rank in estimate_memory_per_rank(of_four, estimate_step(of_four))
        if rank.strategy == "fsdp full"
    )
    setting = "parallel.strategy='fsdp', parallel.shard='full' over {n} ranks (--ranks {n})"
    for limit, ranks in ((room, 4), (room - 1, 8), (room + 1, 4)):
        remedy = advise_for_room(planned, limit).remedies[-1]
        assert remedy.setting == setting.format(n=ranks)
        assert (remedy.peak == room) is (ranks == 4)
    assert advise_for_room(planned, 1).remedies[-1].setting == setting.format(n=64)


def test_evaluation_needs_smaller_batches_of_its_own():
    planned = plan()
    found = settings_of(planned, size=64)
    assert list(found) == ["validation.batch_size=32"]
    assert found["validation.batch_size=32"].peak == estimate_evaluation(planned, 32).peak


def test_remedies_that_are_not_enough_are_marked():
    remedies = Remedy("a=1", "", 7), Remedy("b=1", "", 7, is_enough=False), Remedy("c=1", "", 5)
    first, *lines = describe_advice(Advice(9, "", remedies))
    assert first == "What would help, in this order, with the predicted peak (now 9 B):"
    assert lines == ["  1. a=1: 7 B", "  2. b=1: 7 B, which is not enough", "  3. c=1: 5 B"]


def test_no_remedy_is_said():
    assert list(describe_advice(Advice(9, "", ()))) == [
        "No option lowers the predicted peak of 9 B: use a smaller model, or more memory."
    ]
    assert list(describe_advice(Advice(None, "the host ran out of memory", ()))) == []


def test_fragmentation_is_named_first(without_peaks):
    variable = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    planned = plan(GPU)
    assert next(iter(settings_of(planned, room=2**40, is_fragmented=True))) == variable
    assert variable not in settings_of(planned, room=2**40)
    found = settings_of(planned, room=2**40, is_fragmented=True, is_expandable=True)
    assert variable not in found


def test_host_that_ran_out_needs_fewer_workers():
    planned = plan(GPU, data={"num_workers": 4})
    use = MemoryUse(torch.device("cpu"), None)
    (remedy,) = advise(planned, use).remedies
    assert remedy.setting == "data.num_workers=2"
    assert advise(plan(GPU), use).remedies == ()


@pytest.mark.parametrize("strategy", ["fsdp", "ddp"])
def test_step_that_all_ranks_take_together_is_not_traced(strategy):
    """One rank alone would wait for the others."""
    two = replace(tiny.FACTS, launched=LaunchInfo(size=2, local_size=2, launcher="torchrun"))
    norm = nn.SyncBatchNorm if strategy == "ddp" else nn.LayerNorm
    planned = plan(two, model=blocks(norm), parallel={"strategy": strategy})
    (first, *_) = settings_of(planned).values()
    assert first.why_not == "all ranks would have to take a step together"


def test_prediction_that_fails_leaves_the_line_without_a_number(monkeypatch):
    def fail(planned):
        raise MemoryError("none left")

    monkeypatch.setattr(memory_advice, "estimate_step", fail)
    (first, *_) = settings_of(plan()).values()
    assert (first.peak, first.why_not) == (None, "MemoryError: none left")


def test_predictions_end_after_a_while(monkeypatch):
    monkeypatch.setattr(memory_advice, "_LIMIT_S", -1.0)
    (first, *_) = settings_of(plan()).values()
    assert first.peak is None
    assert first.why_not == "the other predictions took too long"


def test_reason_of_a_step_that_cannot_be_traced_is_shown():
    class Reads(nn.Linear):
        def forward(self, x):
            raise ValueError("no forward")

    (first,) = settings_of(plan(model=Reads(tiny.FEATURES, tiny.CLASSES))).values()
    assert "ValueError: no forward" in first.why_not
