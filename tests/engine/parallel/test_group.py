"""Processes find each other under a word of their own, whatever dead ones left in the store."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore

from surestep.engine.distributed.launcher_env import ALONE, LaunchInfo
from surestep.engine.distributed.process_group import agree_on_prefix, join_process_group
from surestep.engine.distributed.timeouts import GroupTimeouts


def start(store, size, timeout_s=5.0):
    """Let as many threads as ranks agree; return the word of each."""

    def one(rank):
        return agree_on_prefix(store, LaunchInfo(rank=rank, size=size), timeout_s)

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
        agree_on_prefix(store, LaunchInfo(rank=0, size=2), 0.2)
    assert len(set(start(store, 2))) == 1


@pytest.mark.parametrize(
    ("rank", "size", "who"),
    [(0, 2, "rank 1 of 2 (node 0)"), (0, 6, "ranks 1-5 of 6 (nodes 0-2)"), (1, 6, "rank 0 of 6")],
)
def test_it_is_told_once_which_ranks_have_not_come(capsys, rank, size, who):
    store, launched = HashStore(), LaunchInfo(rank=rank, size=size, local_size=2)
    with pytest.raises(TimeoutError):
        agree_on_prefix(store, launched, 0.3, tell_s=0.05)
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert told.startswith(f"Rank {rank} has waited 0.05 s for {who}")


def test_of_those_that_wait_for_the_first_rank_one_tells(capsys):
    store = HashStore()
    for rank in (1, 2):
        with pytest.raises(TimeoutError):
            agree_on_prefix(store, LaunchInfo(rank=rank, size=3), 0.1, tell_s=0.02)
    assert capsys.readouterr().err.count("has waited") == 1


def test_a_rank_whose_first_does_not_come_says_so():
    with pytest.raises(TimeoutError, match="rank 0 did not come"):
        agree_on_prefix(HashStore(), LaunchInfo(rank=1, size=2), 0.1)


def test_one_process_opens_no_group():
    with join_process_group(ALONE, backend="gloo", patience=GroupTimeouts(1.0, 1.0)) as world:
        assert world.size == 1
