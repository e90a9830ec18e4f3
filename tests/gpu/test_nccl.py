"""Laws 1 and 2 with NCCL: ranks, each on its own GPU, equal one process."""

from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import surestep
from surestep.record.run import Run
from surestep.trainer import prepare as preparing
from surestep.trainer.planning import plan_task
from tests.gpu.ranks import WAYS, alone, made
from tests.multi_rank.cases import opened, trained
from tests.multi_rank.checks import check_copies, check_losses, check_weights, distance
from tests.multi_rank.fsdp import whole_weights
from tests.multi_rank.strategies import plain_weights
from tests.multi_rank.torchrun import check_ended_well, launch

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
TOLERANCE = {"bf16": 5e-3}


def needs(count: int) -> list[pytest.MarkDecorator]:
    return [pytest.mark.gpu, pytest.mark.skipif(count > GPUS, reason=f"needs {count} GPU(s)")]


BACKENDS = [
    pytest.param("gloo", "cpu", id="gloo"),
    pytest.param("nccl", "cuda", id="nccl", marks=needs(1)),
]


@contextmanager
def group_of_one(backend: str):
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(("backend", "device"), BACKENDS)
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_group_of_one_rank_equals_no_group(tmp_path, monkeypatch, kind, backend, device):
    """One GPU is enough: all collectives run, in a group of one."""
    shared = {"parallel_strategy": kind, "parallel_backend": backend, "parallel_shard": "full"}

    def planned(*args: Any, **how: Any) -> Any:
        found = plan_task(*args, **how)
        plan = found.plan.replace(**shared, parallel_wrap_policy=("0", "2"))
        return replace(found, plan=plan)

    options = {"device": device, "precision": "fp32", "micro_batch_size": 3}
    plain = trained(tmp_path / "plain", made(), **options)
    monkeypatch.setattr(preparing, "plan_task", planned)
    weights = whole_weights if kind == "fsdp" else plain_weights
    with group_of_one(backend):
        one = trained(tmp_path / "group", made(), weights=weights, **options)
    check_weights(plain, [one])
    check_losses(plain, [one])


@cache
def launched(out: Path) -> list[dict[str, Any]]:
    check_ended_well(launch("2", "-m", "tests.gpu.ranks", str(out), "cuda"))
    return [torch.load(out / f"rank-{rank}.pt") for rank in range(2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("nccl")


class TestTwoRanks:
    """Two GPUs, with all strategies in one launch."""

    pytestmark = needs(2)

    @pytest.mark.parametrize("way", WAYS)
    def test_two_ranks_end_with_the_weights_of_one_process(self, folder, tmp_path, way):
        one = alone(tmp_path, way, "cuda")
        ranks = [each[way] for each in launched(folder)]
        check_weights(one, ranks, TOLERANCE.get(way, 1e-5))
        check_copies(ranks)

    @pytest.mark.parametrize("way", WAYS)
    def test_checkpoint_of_two_ranks_holds_their_weights(self, folder, way):
        ranks, model = launched(folder), WAYS[way][0]()
        Run(folder / way).load_model(model, which="last")
        assert distance(dict(model.state_dict()), ranks[1][way]["weights"]) == 0

    @pytest.mark.parametrize("way", WAYS)
    def test_each_rank_uses_its_own_gpu(self, folder, way):
        for rank, each in enumerate(launched(folder)):
            own, shown = f"cuda:{rank}", each[way]["shown"]
            assert (shown["plan"], shown["current"], shown["cuda"]) == (own, rank, rank)
            assert shown["lie"] == (["cpu"] if way == "offload" else [own])
            assert each["current after"] == 0


class Large(nn.Module):
    """Has so many weights that their copy takes longer than the next operations."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.last = nn.Linear(6, 4_000_000), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x) + self.wide(x).mean(1, keepdim=True)


@pytest.mark.parametrize("device", [pytest.param("cuda:1", marks=needs(2))])
def test_save_waits_for_a_gpu_that_is_not_the_first(tmp_path, device):
    options = {"device": device, "precision": "fp32", "max_steps": 3, "batch_size": 4}
    task = surestep.Task(Large, nn.CrossEntropyLoss(), train=made().train)
    with opened(tmp_path, task, **options, checkpoint={"async_save": True}) as session:
        list(session.steps())
        session.save()
        there = {name: each.cpu() for name, each in session.model.state_dict().items()}
    model = Large()
    Run(tmp_path).load_model(model, which="last")
    assert all(torch.equal(each, there[name]) for name, each in model.state_dict().items())
