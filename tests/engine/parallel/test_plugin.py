"""A plug-in strategy: one file and one entry point, with no other change."""

import json
import os
import subprocess

import pytest

from tests.test_docs import ROOT, blocks
from tests.warm import warm_python
from tests.warm.server import IMPORT_AGAIN

SCRIPT = """
import json, sys, torch, surestep
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(64, 4), torch.randint(3, (64,))
task = surestep.Task(lambda: nn.Linear(4, 3), nn.CrossEntropyLoss(), (x, y))
config = surestep.Config(
    max_steps=5, batch_size=16, optim={"name": "sgd", "lr": 0.1}, precision="fp32",
    parallel={"strategy": sys.argv[1], **json.loads(sys.argv[3])},
    logging={"progress": "quiet"}, device="cpu",
)
with surestep.prepare(task, config, run=sys.argv[2]) as session:
    for _ in session.steps():
        pass
    weights = {name: each.tolist() for name, each in session.state.model.named_parameters()}
    if session.loop.world.is_first:
        print(json.dumps([session.plan.parallel_strategy, weights]))
"""


CHECKED_HOOK = """

def hook(state, bucket):
    assert bucket.buffer().numel() == 15, "not only the gradients of 15 parameters"
    return default_hooks.fp16_compress_hook(state, bucket)
"""


@pytest.fixture
def plugin(tmp_path):
    """Install the examples of docs/extending.md as pip would."""
    for file, kind in (("flat_all_reduce", "FlatAllReduce"), ("compressed_ddp", "CompressedDDP")):
        (code,) = (
            each.code
            for each in blocks((ROOT / "docs/extending.md").read_text())
            if each.language == "python" and f"class {kind}" in each.code
        )
        (tmp_path / f"{file}.py").write_text(code)
    info = tmp_path / "examples-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: examples\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[surestep.strategies]\nflat = flat_all_reduce:FlatAllReduce\n"
        "compressed = compressed_ddp:CompressedDDP\n"
    )
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


LAUNCHER = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def train(folder, strategy, *launcher, **options):
    paths = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    words = [str(folder / "train.py"), strategy, f"run-{strategy}", json.dumps(options)]
    return subprocess.run(
        [warm_python(), *launcher, *words],
        env=os.environ | {"PYTHONPATH": paths, IMPORT_AGAIN: "1"},
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
    name, weights = result(train(plugin, "flat", *LAUNCHER))
    assert name == "flat"
    for key, expected in result(train(plugin, "single"))[1].items():
        for row, wanted in zip(weights[key], expected, strict=True):
            assert row == pytest.approx(wanted, rel=1e-5, abs=1e-7)


def test_plugin_derived_from_ddp_takes_the_options_of_ddp(plugin):
    done = train(plugin, "compressed", *LAUNCHER, find_unused_parameters=True)
    assert result(done)[0] == "compressed"


def test_option_that_a_plugin_strategy_does_not_take_is_rejected(plugin):
    done = train(plugin, "flat", find_unused_parameters=True)
    assert "requires parallel.strategy='ddp' or 'accelerate', but" in done.stderr


def test_misspelled_plugin_strategy_gets_a_suggestion(plugin):
    assert "Did you mean 'flat'?" in train(plugin, "flatt").stderr


def test_plugin_strategy_on_two_ranks_compresses_only_the_gradients(plugin):
    file = plugin / "compressed_ddp.py"
    code = file.read_text().replace("default_hooks.fp16_compress_hook", "hook")
    file.write_text(code + CHECKED_HOOK)
    _, weights = result(train(plugin, "compressed", *LAUNCHER))
    for key, expected in result(train(plugin, "single"))[1].items():
        for row, wanted in zip(weights[key], expected, strict=True):
            assert row == pytest.approx(wanted, rel=1e-3, abs=1e-3)
