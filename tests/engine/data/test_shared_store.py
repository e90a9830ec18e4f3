"""A table in shared memory, to which several processes add, and any of them may be killed."""

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest

from surestep.engine.data.shared_store import KEY, SharedStore

SIZE = 10**7


def key(number):
    return number.to_bytes(KEY, "little")


def content(number):
    return bytes([number % 251]) * (1000 + number % 7)


def add_all(store, numbers):
    for number in numbers:
        store.add(key(number), content(number))


def run_child(function, *arguments):
    """Run a function in a fork, and return its process id."""
    if (child := os.fork()) == 0:
        try:
            function(*arguments)
            os._exit(0)
        finally:
            os._exit(1)
    return child


def end_of(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_entry_is_found_by_its_key():
    store = SharedStore(SIZE)
    add_all(store, [3, 4, 3])
    assert bytes(store.find(key(3))) == content(3)
    assert store.find(key(5)) is None
    assert len(store) == 2


def test_entries_of_forked_processes_are_all_there():
    store = SharedStore(SIZE)
    orders = [random.Random(seed).sample(range(200), 200) for seed in range(4)]
    assert [end_of(child) for child in [run_child(add_all, store, order) for order in orders]] == [
        0
    ] * 4
    assert len(store) == 200
    assert all(bytes(store.find(key(n))) == content(n) for n in range(200))


def test_killed_process_leaves_no_lock_and_no_part_of_an_entry():
    store = SharedStore(10**8)
    for attempt in range(10):
        start = attempt * 10**6
        child = run_child(add_all, store, range(start, start + 10**6))
        time.sleep(0.01)
        os.kill(child, signal.SIGKILL)
        end_of(child)
        store.add(key(start + 10**6 - 1), content(start + 10**6 - 1))
    assert len(store) > 10
    numbers = [int.from_bytes(found, "little") for found in store._entries]
    assert all(bytes(store.find(key(n))) == content(n) for n in numbers)


def test_memory_has_no_name_and_is_freed_with_the_store():
    before = len(os.listdir("/proc/self/fd")), set(os.listdir("/dev/shm"))
    store = SharedStore(SIZE)
    assert set(os.listdir("/dev/shm")) == before[1]
    assert len(os.listdir("/proc/self/fd")) > before[0]
    del store
    assert len(os.listdir("/proc/self/fd")) == before[0]


def test_entry_that_does_not_fit_is_left_out():
    store = SharedStore(3000)
    add_all(store, [1, 2, 3])
    assert (len(store), store.is_full) == (2, True)
    store.add(key(4), b"small")
    assert bytes(store.find(key(4))) == b"small"
    assert store.is_full


def test_store_takes_memory_only_as_it_is_filled():
    statm = Path("/proc/self/statm")
    before = int(statm.read_text().split()[1])
    store = SharedStore(2**36)
    add_all(store, [1])
    assert int(statm.read_text().split()[1]) - before < 1000


@pytest.mark.slow("starts processes that import the test")
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_spawned_process_shares_the_memory(method):
    store = SharedStore(SIZE)
    add_all(store, [1])
    child = multiprocessing.get_context(method).Process(target=add_all, args=(store, [1, 2]))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert len(store) == 2
