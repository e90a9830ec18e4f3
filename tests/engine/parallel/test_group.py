"""Processes find each other under a word of their own, whatever dead ones left in the store."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore

from surestep.engine.parallel.group import agree_on_a_word, open_world
from surestep.engine.parallel.launch import ALONE, Launched
from surestep.engine.parallel.patience import Patience


def start(store, size, timeout_s=5.0):
    """Let as many threads as ranks agree; return the word of each."""

    def one(rank):
        return agree_on_a_word(store, Launched(rank=rank, size=size), timeout_s)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


def test_all_ranks_of_a_start_share_a_word_that_no_other_start_has():
    store = HashStore()
    words = [start(store, size) for size in (3, 3, 2, 4)]
    assert all(len(set(each)) == 1 for each in words)
    assert len({each[0] for each in words}) == len(words)


def test_what_a_dead_process_left_is_not_taken_for_one_that_is_there():
    store = HashStore()
    store.set("hello/1", "of somebody who died")
    with pytest.raises(TimeoutError, match=r"ranks \[1\] did not come"):
        agree_on_a_word(store, Launched(rank=0, size=2), 0.2)
    assert len(set(start(store, 2))) == 1


def test_a_rank_whose_first_does_not_come_says_so():
    with pytest.raises(TimeoutError, match="rank 0 did not come"):
        agree_on_a_word(HashStore(), Launched(rank=1, size=2), 0.1)


def test_one_process_opens_no_group():
    with open_world(ALONE, backend="gloo", patience=Patience(1.0, 1.0)) as world:
        assert world.size == 1
