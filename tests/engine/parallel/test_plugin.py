"""A plug-in strategy: one file and one entry point, with no other change."""

import json
import os
import subprocess
import sys

import pytest

from tests.test_docs import ROOT, blocks

SCRIPT = """
import json, sys, torch, surestep
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(64, 4), torch.randint(3, (64,))
task = surestep.Task(lambda: nn.Linear(4, 3), nn.CrossEntropyLoss(), (x, y))
config = surestep.Config(
    max_steps=5, batch_size=16, optim={"name": "sgd", "lr": 0.1}, precision="fp32",
    parallel={"strategy": sys.argv[1]}, logging={"progress": "quiet"}, device="cpu",
)
with surestep.prepare(task, config, run=sys.argv[2]) as session:
    for _ in session.steps():
        pass
    weights = {name: each.tolist() for name, each in session.state.model.named_parameters()}
    if session.loop.world.is_first:
        print(json.dumps([session.plan.parallel_strategy, weights]))
"""


@pytest.fixture
def plugin(tmp_path):
    """Install the example of docs/extending.md as pip would."""
    (code,) = (
        each.code
        for each in blocks((ROOT / "docs/extending.md").read_text())
        if each.language == "python" and "class FlatAllReduce" in each.code
    )
    (tmp_path / "flat_all_reduce.py").write_text(code)
    info = tmp_path / "flat_all_reduce-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flat-all-reduce\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[surestep.strategies]\nflat = flat_all_reduce:FlatAllReduce\n"
    )
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def train(folder, strategy, *launcher):
    paths = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *launcher, str(folder / "train.py"), strategy, f"run-{strategy}"],
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
    )


def result(done):
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith('["')]
    return json.loads(lines[-1])


def test_plugin_strategy_trains_as_the_built_in_one(plugin):
    name, weights = result(train(plugin, "flat"))
    assert name == "flat"
    assert weights == result(train(plugin, "single"))[1]


def test_plugin_strategy_on_two_ranks_computes_the_single_process_update(plugin):
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    name, weights = result(train(plugin, "flat", *launcher))
    assert name == "flat"
    for key, expected in result(train(plugin, "single"))[1].items():
        for row, wanted in zip(weights[key], expected, strict=True):
            assert row == pytest.approx(wanted, rel=1e-5, abs=1e-7)


def test_misspelled_plugin_strategy_gets_a_suggestion(plugin):
    assert "Did you mean 'flat'?" in train(plugin, "flatt").stderr
