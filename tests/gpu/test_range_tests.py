"""A range test on a GPU: it changes nothing, and returns the model to the memory of the host."""

import pytest
import torch

import surestep
from tests.laws.test_law_4_range_tests import check_nothing_changed, config_of, make_task

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_range_test_on_a_gpu_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_nothing_changed(tmp_path)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_training_after_find_lr_is_bitwise_that_without_on_a_gpu(tmp_path, precision):
    config, weights = config_of(precision=precision, deterministic=True), []
    for is_measured in (False, True):
        task = make_task()
        before = torch.cuda.get_rng_state()
        if is_measured:
            found = surestep.find_lr(task, config, seeds=1, steps=20)
            assert len(found.curves[0].losses) > 5
            assert torch.equal(torch.cuda.get_rng_state(), before)
            assert {p.device.type for p in task.model.parameters()} == {"cpu"}
        surestep.Trainer(task, config, run=tmp_path / str(is_measured)).fit()
        weights.append([p.tolist() for p in task.model.parameters()])
    assert weights[0] == weights[1]
