import pytest
import torch
from torch import nn

from surestep.base.errors import TaskError
from surestep.engine.model.precision import autocast, grad_scaler, torch_settings
from tests import tiny

SETTINGS = (
    torch.are_deterministic_algorithms_enabled,
    torch.is_deterministic_algorithms_warn_only_enabled,
    lambda: torch.backends.cudnn.deterministic,
    lambda: torch.backends.cudnn.benchmark,
)


def settings():
    return [each() for each in SETTINGS]


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)],
)
def test_autocast_runs_the_forward_in_the_planned_precision(precision, dtype):
    context = autocast(tiny.plan(precision=precision).plan)
    layer = nn.Linear(4, 3)
    for _ in range(2):  # the context can be entered again
        with context:
            assert layer(torch.zeros(2, 4)).dtype is dtype
    assert layer(torch.zeros(2, 4)).dtype is torch.float32


def test_only_fp16_scales_the_loss():
    assert not grad_scaler(tiny.plan(precision="bf16").plan).is_enabled()
    options = {
        "init_scale": 8.0,
        "growth_factor": 3.0,
        "growth_interval": 5,
        "backoff_factor": 0.25,
    }
    state = grad_scaler(tiny.plan(precision="fp16", scaler=options).plan).state_dict()
    assert [state["scale"], *list(state.values())[1:4]] == [8.0, 3.0, 0.25, 5]


def test_deterministic_applies_while_a_session_is_open(tmp_path, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = settings()
    with tiny.prepare(tmp_path, deterministic=True):
        assert settings() == [True, False, True, False]
    assert settings() == before == [False, False, False, False]


def test_deterministic_is_restored_if_the_session_fails_to_open(tmp_path, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = settings()
    with pytest.raises(TaskError, match="fails on the first batch"):
        tiny.prepare(tmp_path, {"model": nn.Linear(9, 9)}, deterministic=True)
    assert settings() == before


def test_torch_settings_of_the_user_are_restored():
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with torch_settings(tiny.plan().plan):
            torch.use_deterministic_algorithms(False)
        assert settings()[:2] == [True, True]
    finally:
        torch.use_deterministic_algorithms(False)


def test_number_of_threads_applies_while_a_session_is_open(tmp_path):
    before = torch.get_num_threads()
    with tiny.prepare(tmp_path / "r", num_threads=before + 1) as session:
        assert torch.get_num_threads() == before + 1
        for _ in session.steps():
            assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_benchmark_of_cudnn_that_the_user_has_set_is_restored(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = True
    try:
        with torch_settings(tiny.plan(deterministic=True).plan):
            assert settings() == [True, False, True, False]
        assert settings() == [False, False, False, True]
    finally:
        torch.backends.cudnn.benchmark = False


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_trains_on_the_cpu(tmp_path, precision):
    run = tiny.fit(
        tmp_path, precision=precision, scaler={"init_scale": 8} if precision == "fp16" else {}
    )
    assert run.status["steps_taken"] == 6
