"""Fixtures of the laws: one thread, and a folder for each run."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: sums of one and of two threads differ in their last bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test its own cache of found sizes."""
    monkeypatch.setenv("SURESTEP_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def take_every_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a pause of the machine from making the state of a stream look expensive."""
    monkeypatch.setattr("surestep.engine.data.stream_state.CHEAP_S", float("inf"))


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[], Path]:
    """Return a function that returns a new run folder."""
    count = iter(range(1000))
    return lambda: tmp_path / f"run-{next(count)}"
