"""Runs that other releases of torch have written are resumed.

`python -m tests.versions` also resumes one run with each of several releases in turn.
"""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.versions.moved import STEPS, prepare

MADE_BY = Path(__file__).parent / "made_by"


@pytest.mark.parametrize("release", ["2.6.0", "2.15.0"])
def test_run_of_another_release_is_resumed_with_its_exact_state(tmp_path, release):
    run = shutil.copytree(MADE_BY / release, tmp_path / "run")
    files = {path.stem: load_file(path) for path in run.glob("checkpoints/*/*.safetensors")}
    assert files.keys() == {"model", "optimizer", "average"}
    with prepare(run) as session:
        assert session.state.progress.step == STEPS
        slots = {
            f"model/{name}/{slot}": tensor
            for name, parameter in session.model.named_parameters()
            for slot, tensor in session.optimizer.state[parameter].items()
        }
        loaded = {
            "model": session.model.state_dict(),
            "optimizer": slots,
            "average": session.state.average.tensors,
        }
        torch.testing.assert_close(loaded, files, rtol=0, atol=0)
        assert next(session.steps()).step == STEPS + 1
