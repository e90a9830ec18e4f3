"""The `deepspeed` launcher starts ranks, on a CPU too, and they train what one process trains."""

import os
import socket
import subprocess
import sys

import pytest
import torch

import surestep
from surestep.record.run import Run

RECIPE = """
import torch
import surestep

config = surestep.Config(epochs=2, batch_size=20, logging={"progress": "quiet"})


def task():
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
    train = x, (x[:, 0] > 0).long()
    return surestep.Task(lambda: torch.nn.Linear(4, 2), torch.nn.CrossEntropyLoss(), train=train)
"""


def free_port() -> int:
    with socket.socket() as open_socket:
        open_socket.bind(("127.0.0.1", 0))
        return int(open_socket.getsockname()[1])


def last(run: Run) -> torch.Tensor:
    net = torch.nn.Linear(4, 2)
    run.load_model(net, which="last")
    return torch.cat([net.weight.detach().flatten(), net.bias.detach()])


def test_ranks_of_the_launcher_train_what_one_process_trains(tmp_path):
    pytest.importorskip("deepspeed")
    recipe = tmp_path / "recipe.py"
    recipe.write_text(RECIPE)
    started = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", "2"]
    started += ["--master_port", str(free_port()), "--module", "surestep", "train", str(recipe)]
    done = subprocess.run(
        [*started, "--run", str(tmp_path / "many")],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    made: dict[str, object] = {}
    exec(RECIPE, made)
    one = surestep.Trainer(made["task"](), made["config"], run=tmp_path / "one").fit()
    many = Run(tmp_path / "many")
    assert many.config["decided"]["parallel.ranks"] == 2
    assert torch.allclose(last(Run(one.path)), last(many), rtol=1e-5, atol=1e-7)
