from types import SimpleNamespace

import pytest

from surestep.trainer.prepare import describe_ranks
from tests.trainer.test_prepare import PLAIN, prepare, spoken, unfinished


@pytest.mark.parametrize(
    ("kind", "shard", "zero", "way"),
    [
        ("ddp", None, None, "ddp"),
        ("fsdp", "full", None, "fsdp full"),
        ("deepspeed", None, 2, "deepspeed ZeRO 2"),
    ],
)
def test_it_is_said_how_many_ranks_there_are_and_in_which_way(kind, shard, zero, way):
    own = {"parallel_strategy": kind, "parallel_shard": shard, "parallel_zero_stage": zero}
    device = SimpleNamespace(type="cpu")
    plan = SimpleNamespace(**own, parallel_backend="gloo", device=device)
    assert describe_ranks(plan, 2) == f"2 ranks (gloo, cpu), {way}."


def test_a_restart_says_that_it_is_one_and_where_it_goes_on(tmp_path, monkeypatch, capsys):
    unfinished(tmp_path)
    for name, value in {
        **{"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
        **{"TORCHELASTIC_RESTART_COUNT": "1", "TORCHELASTIC_MAX_RESTARTS": "3"},
    }.items():
        monkeypatch.setenv(name, value)
    with prepare(tmp_path, **PLAIN):
        pass
    assert f"Restart 1 of 3: Resuming {tmp_path} from step 2" in spoken(capsys)
