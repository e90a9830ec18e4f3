from types import SimpleNamespace

import pytest

from surestep.trainer.start_report import describe_ranks
from tests.trainer.test_prepare import PLAIN, prepare, spoken, unfinished


@pytest.mark.parametrize(
    ("kind", "shard", "zero", "way"),
    [
        ("ddp", None, None, "ddp"),
        ("fsdp", "full", None, "fsdp full"),
        ("deepspeed", None, 2, "deepspeed ZeRO 2"),
    ],
)
def test_start_message_shows_ranks_and_strategy(kind, shard, zero, way):
    own = {"parallel_strategy": kind, "parallel_shard": shard, "parallel_zero_stage": zero}
    device = SimpleNamespace(type="cpu")
    plan = SimpleNamespace(**own, parallel_backend="gloo", device=device)
    assert describe_ranks(plan, 2) == f"2 ranks (gloo, cpu), {way}."


def test_restart_message_names_attempt_and_step(tmp_path, monkeypatch, capsys):
    unfinished(tmp_path)
    for name, value in {
        **{"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
        **{"TORCHELASTIC_RESTART_COUNT": "1", "TORCHELASTIC_MAX_RESTARTS": "3"},
    }.items():
        monkeypatch.setenv(name, value)
    with prepare(tmp_path, **PLAIN):
        pass
    assert f"Restart 1 of 3: Resuming {tmp_path} from step 2" in spoken(capsys)
