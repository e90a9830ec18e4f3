import time

import pytest
import torch
import torch.distributed as dist

from surestep.engine.distributed import gloo_threads
from surestep.engine.distributed.gloo_threads import count_gloo_threads, wait_until_idle


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.barrier()  # a thread has its name once it has run
    yield
    dist.destroy_process_group()


def copy_in_threads(count):
    """Start collectives that take milliseconds each; return their handles."""
    source = torch.ones(5_000_000)
    return [
        dist.all_gather([torch.empty_like(source)], source, async_op=True) for _ in range(count)
    ]


def test_no_collective_runs_after_the_wait(group):
    works = copy_in_threads(10)
    wait_until_idle()
    assert all(work.is_completed() for work in works)


def test_wait_for_threads_that_always_run_ends(monkeypatch):
    monkeypatch.setattr(gloo_threads, "_LIMIT_S", 0.05)
    monkeypatch.setattr(gloo_threads, "_read_states", lambda: ["State:\tR (running)"])
    began = time.monotonic()
    wait_until_idle()
    assert time.monotonic() - began >= 0.05


def test_name_that_is_cut_within_a_character_is_read(tmp_path):
    name = tmp_path / "comm"
    name.write_bytes("обучение".encode()[:15])
    assert gloo_threads._read(name).startswith("обучени")


def test_threads_are_those_of_the_group(group):
    assert count_gloo_threads() > 0
