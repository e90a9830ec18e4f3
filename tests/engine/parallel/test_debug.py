"""The variables of NCCL are set while the group is open, and the user's own stay."""

import os
from mmap import ACCESS_READ, mmap
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from surestep.engine.distributed.nccl_debug import (
    DUMP_TO,
    VARIABLES,
    flight_recorder,
    nccl_debug_env,
)


@pytest.fixture
def nothing_said(monkeypatch):
    for name in (*VARIABLES, *DUMP_TO):
        monkeypatch.delenv(name, raising=False)


def test_what_nccl_and_torch_read_is_set_meanwhile_and_gone_after(nothing_said):
    before = dict(os.environ)
    with nccl_debug_env(on=True):
        said = {name: value for name, value in os.environ.items() if name not in before}
    assert said == {
        **{"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET,COLL"},
        **{"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"},
        **{"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_FR_BUFFER_SIZE": "2000"},
        "TORCH_DISTRIBUTED_DEBUG": "INFO",
    }
    assert dict(os.environ) == before


def test_torch_is_told_though_it_has_read_its_variable_already(nothing_said):
    before = dist.get_debug_level()
    assert before == dist.DebugLevel.OFF
    with nccl_debug_env(on=True):
        assert dist.get_debug_level() == dist.DebugLevel.INFO
    assert dist.get_debug_level() == before


def test_a_level_that_was_set_in_the_process_is_put_back(nothing_said):
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        with nccl_debug_env(on=True):
            assert dist.get_debug_level() == dist.DebugLevel.INFO
        assert dist.get_debug_level() == dist.DebugLevel.DETAIL
    finally:
        dist.set_debug_level(dist.DebugLevel.OFF)


def test_what_the_user_has_set_stays(nothing_said, monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "TRACE")
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    with nccl_debug_env(on=True):
        assert os.environ["NCCL_DEBUG"] == "TRACE"
        assert dist.get_debug_level() == dist.DebugLevel.DETAIL
    assert os.environ["NCCL_DEBUG"] == "TRACE"
    assert os.environ["TORCH_DISTRIBUTED_DEBUG"] == "DETAIL"


def test_nothing_is_set_where_nobody_asked(nothing_said):
    with nccl_debug_env(on=False):
        assert not set(VARIABLES) & set(os.environ)
        assert dist.get_debug_level() == dist.DebugLevel.OFF


def test_the_flight_recorder_writes_into_the_run_folder(nothing_said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with flight_recorder(Path("run"), on=False):
        assert not set(DUMP_TO) & set(os.environ)
    Path("run").mkdir()
    with flight_recorder(Path("run"), on=True):
        begin = os.environ["TORCH_FR_DUMP_TEMP_FILE"]
        assert begin == f"{tmp_path}/run/log/nccl-rank-"
        Path(f"{begin}0").touch()
    assert not set(DUMP_TO) & set(os.environ)


@pytest.mark.parametrize("name", DUMP_TO)
def test_a_place_of_the_users_own_for_it_stays(nothing_said, tmp_path, monkeypatch, name):
    monkeypatch.setenv(name, "/mine/rank-")
    with flight_recorder(tmp_path, on=True):
        assert {each: os.environ.get(each) for each in DUMP_TO if each in os.environ} == {
            name: "/mine/rank-"
        }
    assert os.environ[name] == "/mine/rank-"


def test_the_installed_torch_knows_where_the_flight_recorder_writes_to():
    """Its names have changed before, and one that torch does not know is passed over in silence."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if not library.exists():
        pytest.skip("torch is built otherwise here")
    with library.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as found:
        assert all(found.find(name.encode()) >= 0 for name in DUMP_TO)
