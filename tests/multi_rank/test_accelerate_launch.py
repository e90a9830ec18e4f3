"""`accelerate launch` with its config trains as torchrun does."""

from pathlib import Path

import pytest
import torch

from surestep.record.run import Run
from tests.multi_rank import killed_recipe
from tests.multi_rank.torchrun import called, check_ended_well, last_weights, launch
from tests.needs import needs
from tests.warm import warm_python

# Without GPUs and MPI it starts one process; with GPUs in its config it starts any number.
CONFIG = """
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
machine_rank: 0
num_machines: 1
num_processes: 2
mixed_precision: 'no'
use_cpu: true
main_process_port: 0
"""
TRAIN = ["-m", "surestep", "train", str(Path(killed_recipe.__file__)), "--run-folder"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    needs("accelerate")
    folder = tmp_path_factory.mktemp("accelerate")
    (folder / "config.yaml").write_text(CONFIG)
    accelerate = [warm_python(), "-m", "accelerate.commands.launch", "--config_file"]
    command = [*accelerate, str(folder / "config.yaml"), *TRAIN, str(folder / "accelerate")]
    check_ended_well(called(command))
    check_ended_well(launch("2", *TRAIN, str(folder / "torchrun")))
    return folder


def test_accelerate_launch_ends_with_the_weights_of_torchrun(folder):
    assert torch.equal(last_weights(folder / "accelerate"), last_weights(folder / "torchrun"))


@pytest.mark.parametrize(("by", "kind"), [("accelerate", "accelerate"), ("torchrun", "ddp")])
def test_each_launcher_runs_its_strategy_on_two_ranks(folder, by, kind):
    decided = Run(folder / by).config["decided"]
    assert (decided["parallel.strategy"], decided["parallel.ranks"]) == (kind, 2)
