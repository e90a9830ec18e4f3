"""An error that all ranks have is told once a machine; one that some have, with their names."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch._C._distributed_c10d import TCPStore

from surestep.engine.distributed import error_reporting as last_words
from surestep.engine.distributed.error_reporting import report_error_once
from surestep.engine.distributed.launcher_env import LaunchInfo


@pytest.fixture
def store():
    return TCPStore("localhost", 0, is_master=True, wait_for_workers=False)


def told_of(texts, store, *, size, attempt=0, local_size=None):
    """Return what ranks tell that end by these errors, by rank."""
    told = {rank: [] for rank in texts}

    def end(rank):
        where = {"address": "localhost", "port": store.port, "shares_store": True}
        where |= {"local_size": local_size or size}
        launched = LaunchInfo(rank=rank, size=size, attempt=attempt, **where)
        report_error_once(texts[rank], launched, told[rank].append)

    with ThreadPoolExecutor(len(texts)) as pool:
        list(pool.map(end, texts))
    return sorted(each for said in told.values() for each in said)


def test_what_all_ranks_have_is_told_once_and_anew_by_a_restart(store):
    texts = dict.fromkeys(range(3), "ConfigError: no.")
    assert told_of(texts, store, size=3) == ["ConfigError: no."]
    assert told_of(texts, store, size=3, attempt=1) == ["ConfigError: no."]


def test_each_machine_tells_once(store):
    texts = dict.fromkeys(range(4), "ConfigError: no.")
    assert told_of(texts, store, size=4, local_size=2) == ["ConfigError: no."] * 2


def test_what_some_ranks_have_is_told_with_who_has_it(store, monkeypatch):
    monkeypatch.setattr(last_words, "_MOMENT_S", 0.3)
    (one,) = told_of({1: "RecipeError: gone."}, store, size=4)
    assert one.startswith("Rank 1 (node 0 ")
    assert one.endswith("): RecipeError: gone.")
    assert told_of({1: "E", 2: "E"}, store, size=4) == ["Ranks 1-2: E"]


@pytest.mark.parametrize(("size", "told"), [(1, "E"), (2, r"Rank 1 \(.*\): E")])
def test_without_a_store_each_rank_tells_with_its_name(size, told):
    said = []
    report_error_once("E", LaunchInfo(rank=size - 1, size=size, local_size=size), said.append)
    (one,) = said
    assert re.fullmatch(told, one)
