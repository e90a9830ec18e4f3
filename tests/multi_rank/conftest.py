"""Fixtures: one launch per number of ranks runs all cases for all tests."""

import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.multi_rank import deepspeed_engine
from tests.multi_rank.cases import CASES, POISONED, half, own_batches, task, trained
from tests.multi_rank.shard_options import ON_PARTS, run
from tests.multi_rank.sharded_kinds import SHARDS
from tests.multi_rank.starter import start
from tests.multi_rank.strategies import CUTS, OPTIMIZERS, Cell, resume_cells
from tests.multi_rank.torchrun import check_ended_well, results_of
from tests.multi_rank.training_kinds import KINDS, half_of_a_stream


@pytest.fixture(scope="session")
def one(tmp_path_factory) -> dict[str, Any]:
    """Return the results of one process."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("one")
    found = {name: case(folder / name) for name, case in {**CASES, **KINDS, **POISONED}.items()}
    for cut in CUTS:
        for optimizer in OPTIMIZERS:
            cell = Cell("one process", cut, optimizer)
            found[cut, optimizer] = cell.run(folder / f"{cut}-{optimizer}", None)
    for name, each in ON_PARTS.items():
        found["on parts", name] = run(folder / f"on parts {name}", each, many=False)
    for name, kind in SHARDS.items():
        found["sharded", name] = kind(folder / f"sharded {name}")
    steps = {"max_steps": deepspeed_engine.STEPS}
    found["for DeepSpeed"] = trained(folder / "for DeepSpeed", task(), **steps)
    found["own batches"] = own_batches(folder / "own batches")
    torch.set_num_threads(threads)
    return found


@pytest.fixture(scope="session")
def launch(tmp_path_factory) -> Callable[[int], Path]:
    """Run all cases on a number of ranks, once; return the folder of the results."""

    @cache
    def run_cases(count: int) -> tuple[Path, subprocess.CompletedProcess[str]]:
        folder = tmp_path_factory.mktemp(f"ranks-{count}-")
        half(folder / "begun by one")
        half_of_a_stream(folder / "stream begun by one")
        if count == 4:
            shutil.copytree(launched(2) / "half", folder / "begun by two")
        for way, cell in resume_cells(count).items():
            cell.half(folder / f"one goes on as {way}", None)
            if count == 4 and way in resume_cells(2):
                for two in dict.fromkeys(["ddp", way]):
                    to = folder / f"two as {two} goes on as {way}"
                    shutil.copytree(launched(2) / f"half of {two}", to)
        return folder, start("launcher", folder, str(count), "child")

    def launched(count: int) -> Path:
        folder, process = run_cases(count)  # a launch that fails is not repeated for each test
        check_ended_well(process)
        return folder

    return launched


@pytest.fixture(scope="session", params=[2, 4])
def ranks(request, launch) -> list[dict[str, Any]]:
    """Return the results of each rank."""
    return results_of(launch(request.param), request.param)


@pytest.fixture(scope="session")
def two(launch) -> list[dict[str, Any]]:
    """Return the results of two ranks, for cases that do not depend on the number of ranks."""
    return results_of(launch(2), 2)
