"""DeepSpeed's Adam on two ranks equals torch's within law 1's tolerance, and resumes.

Its compilation at the first use on a machine takes minutes, so it is tested in CI only, and only
one of the two there.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.cpp_extension import get_default_build_root

from tests.multi_rank.cases import task, trained
from tests.multi_rank.checks import distance, same
from tests.multi_rank.own_adam import SAID, STAGES
from tests.multi_rank.torchrun import launch

BUILDERS = {"cpu_adam": "CPUAdamBuilder", "fused_adam": "FusedAdamBuilder"}
IN_CI = "cpu_adam"


def compiled(op: str) -> None:
    """Compile an op in CI; skip the test elsewhere, or if it cannot be compiled."""
    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR", get_default_build_root()))
    if any(root.glob(f"**/{op}.so")):
        return
    if "CI" not in os.environ and not (shutil.which("g++") and shutil.which("ninja")):
        pytest.skip(f"no g++ or no ninja to compile DeepSpeed's {op} with")
    words = f"from deepspeed.ops.op_builder import {BUILDERS[op]} as B; B().load()"
    if op != IN_CI or "CI" not in os.environ:
        pytest.skip(f"{op} takes minutes to compile; once: DS_ACCELERATOR=cpu python -c '{words}'")
    said = {**os.environ, "DS_ACCELERATOR": "cpu"}
    subprocess.run([sys.executable, "-c", words], env=said, timeout=900, check=True)


def check(folder: Path, kind: str, *, device: str = "cpu", offload: str = "off") -> None:
    one = trained(folder / "one", task(), **SAID)
    done = launch("2", "-m", "tests.multi_rank.own_adam", str(folder), device, offload)
    assert done.returncode == 0, done.stderr[-4000:]
    for stage in STAGES:
        to_one = trained(folder / f"to one {stage}", task(), **SAID)
        assert distance(one["weights"], to_one["weights"]) <= 1e-6
    for found in [torch.load(folder / f"rank-{rank}.pt") for rank in range(2)]:
        for stage in STAGES:
            at_once, gone_on = found[stage, "at once"], found[stage, "gone on"]
            assert at_once["shown"] == {"kind": kind}
            assert distance(one["weights"], at_once["weights"]) <= 1e-6
            assert same(at_once["weights"], gone_on["weights"])
            assert gone_on["losses"] == at_once["losses"][7:]


def test_offload_uses_deepspeeds_cpu_adam(tmp_path):
    compiled("cpu_adam")
    check(tmp_path, "DeepSpeedCPUAdam", offload="optimizer")


def test_fused_adam_is_used_without_offload(tmp_path):
    compiled("fused_adam")
    check(tmp_path, "FusedAdam")


@pytest.mark.gpu
def test_fused_adam_is_used_on_gpus(tmp_path):
    if torch.cuda.device_count() < 2:
        pytest.skip("two ranks want two GPUs")
    check(tmp_path, "FusedAdam", device="cuda")
