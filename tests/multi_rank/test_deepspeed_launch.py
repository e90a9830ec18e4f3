"""The `deepspeed` launcher starts ranks, on a CPU too, which train as one process."""

import torch

import surestep
from surestep.record.run import Run
from tests.multi_rank.torchrun import called, check_ended_well, free_port
from tests.needs import needs
from tests.warm import warm_python

RECIPE = """
import torch
import surestep

config = surestep.Config(epochs=2, batch_size=20, logging={"progress": "quiet"})


def task():
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
    train = x, (x[:, 0] > 0).long()
    return surestep.Task(lambda: torch.nn.Linear(4, 2), torch.nn.CrossEntropyLoss(), train=train)
"""


def last(run: Run) -> torch.Tensor:
    net = torch.nn.Linear(4, 2)
    run.load_model(net, which="last")
    return torch.cat([net.weight.detach().flatten(), net.bias.detach()])


def test_ranks_of_the_launcher_train_as_one_process(tmp_path):
    needs("deepspeed")
    recipe = tmp_path / "recipe.py"
    recipe.write_text(RECIPE)
    started = [warm_python(), "-m", "deepspeed.launcher.runner", "--num_gpus", "2"]
    started += ["--master_port", str(free_port()), "--module", "surestep", "train", str(recipe)]
    check_ended_well(called([*started, "--run", str(tmp_path / "many")], DS_ACCELERATOR="cpu"))
    made: dict[str, object] = {}
    exec(RECIPE, made)
    one = surestep.Trainer(made["task"](), made["config"], run=tmp_path / "one").fit()
    many = Run(tmp_path / "many")
    assert many.config["decided"]["parallel.ranks"] == 2
    assert torch.allclose(last(Run(one.path)), last(many), rtol=1e-5, atol=1e-7)
