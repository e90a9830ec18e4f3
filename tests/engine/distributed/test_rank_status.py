"""The status of each rank: which rank blocks the others, and how it is reported."""

import threading
from traceback import FrameSummary

import pytest
import torch

from surestep.engine.distributed.hang_monitor import has_timed_out, is_network_error
from surestep.engine.distributed.rank_status import (
    RankStatus,
    blocking_ranks,
    current_line,
    describe_lost_rank,
    error_stack,
    format_ranks,
    hang_summary,
    is_waiting,
    rank_table,
    thread_stack,
    user_line,
)

TORCH = "/x/site-packages/torch/"
USER = FrameSummary("/home/me/recipe.py", 3, "main", line="fit()")
BUSY = [FrameSummary("/home/me/data.py", 12, "__getitem__", line="time.sleep(9)")]
WAITING = [
    FrameSummary(f"{TORCH}distributed/distributed_c10d.py", 9, "all_reduce", line="work.wait()"),
    USER,
]
BUCKETS = [FrameSummary(f"{TORCH}nn/parallel/distributed.py", 1775, "_pre_forward", line="")]
GRADIENTS = [FrameSummary(f"{TORCH}autograd/graph.py", 800, "_engine_run_backward", line="")]
CHECKPOINTED = [  # within the forward of a model under DDP
    FrameSummary("/home/me/model.py", 7, "forward", line="time.sleep(9)"),
    FrameSummary(f"{TORCH}distributed/algorithms/_checkpoint/wrapper.py", 1, "forward", line=""),
    *BUCKETS,
]
IMPORTING = [
    FrameSummary(f"{TORCH}distributed/tensor/_ops/_pointwise_ops.py", 9, "_get", line=""),
    FrameSummary(f"{TORCH}distributed/tensor/_ops/_pointwise_ops.py", 99, "<module>", line=""),
]


def statuses(*stacks, steps=None, collectives=None):
    steps, collectives = steps or [5] * len(stacks), collectives or [9] * len(stacks)
    found = {}
    for rank, (stack, step, count) in enumerate(zip(stacks, steps, collectives, strict=True)):
        line, waits = current_line(stack), is_waiting(stack)
        found[rank] = RankStatus(rank, rank // 2, f"rank {rank} (n)", step, count, line, waits, 7)
    return found


@pytest.mark.parametrize(
    ("found", "silent", "ranks"),
    [
        (statuses(WAITING, BUSY, WAITING), (), [1]),
        (statuses(WAITING, BUSY, WAITING), (2,), [2]),
        (statuses(WAITING, WAITING, steps=[5, 4]), (), [1]),
        (statuses(WAITING, WAITING), (), []),
        (statuses(BUSY, BUSY), (), []),
        (statuses(BUSY, BUSY, collectives=[9, 8]), (), [1]),
        (statuses(BUSY, WAITING, WAITING, collectives=[9, 8, 9]), (), [1]),
        (statuses(WAITING, WAITING, BUSY, collectives=[9, 8, 8]), (), [2]),
        (statuses(WAITING, BUSY, steps=[2, 5], collectives=[9, 8]), (), [1]),  # after a rollback
    ],
)
def test_blocking_ranks_are_silent_ones_then_those_behind_then_busy_ones(found, silent, ranks):
    assert blocking_ranks(found, silent) == ranks


@pytest.mark.parametrize("stack", [WAITING, BUCKETS, GRADIENTS])
def test_rank_in_a_torch_collective_is_waiting(stack):
    assert is_waiting(stack)
    assert blocking_ranks(statuses(stack, BUSY), ()) == [1]


def test_collective_of_a_checkout_of_torch_is_waiting(monkeypatch):
    monkeypatch.setattr(torch, "__file__", "/src/pytorch/torch/__init__.py")
    name = "/src/pytorch/torch/distributed/distributed_c10d.py"
    stack = [FrameSummary(name, 9, "all_reduce", line="work.wait()"), USER]
    assert is_waiting(stack)
    assert current_line(stack) == (
        "torch/distributed/distributed_c10d.py:9 in all_reduce: work.wait(), "
        "called at /home/me/recipe.py:3 in main: fit()"
    )


@pytest.mark.parametrize("stack", [BUSY, CHECKPOINTED, [], [BUSY[0], *BUCKETS], IMPORTING])
def test_rank_in_user_code_or_in_an_import_is_not_waiting(stack):
    assert not is_waiting(stack)


@pytest.mark.parametrize(
    ("text", "is_network", "is_timeout"),
    [
        ("Application timeout caused pair closure", True, True),
        ("[/x/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 60ms for", True, True),
        ("[/x/gloo/transport/tcp/pair.cc:525] Connection closed by peer", True, False),
        ("mat1 and mat2 shapes cannot be multiplied", False, False),
    ],
)
def test_gloo_network_errors_and_timeouts_are_recognized(text, is_network, is_timeout):
    assert is_network_error(RuntimeError(text)) is is_network
    assert has_timed_out(RuntimeError(text)) is is_timeout


def test_hang_summary_names_rank_and_step():
    assert hang_summary(statuses(WAITING, WAITING, BUSY), (), 4.25) == (
        "Rank 2 (n) has kept the others waiting in step 5 for 4.25 s."
    )
    assert "does not answer" in hang_summary(statuses(WAITING, BUSY), (1,), 4)
    assert hang_summary(statuses(WAITING, WAITING), (), 4).startswith("All ranks have waited")
    found = statuses(BUSY, WAITING, steps=[None] * 2)
    assert "before the first step" in hang_summary(found, (), 4)


def test_rank_table_starts_with_the_blocking_rank():
    assert rank_table(statuses(WAITING, BUSY), ()) == [
        "  rank 1 (n), in step 5: /home/me/data.py:12 in __getitem__: time.sleep(9)",
        "  rank 0 (n), in step 5: torch/distributed/distributed_c10d.py:9 in all_reduce: "
        "work.wait(), called at /home/me/recipe.py:3 in main: fit() (waits for others)",
    ]
    assert "last status at /home/me/data.py:12" in rank_table(statuses(WAITING, BUSY), [1])[0]
    assert rank_table(statuses(*[BUSY] * 20), ())[-1] == "  and 4 others"


@pytest.mark.parametrize(
    ("is_silent", "text"),
    [
        (True, "no longer answers; it was last at /home/me/data.py:12 in"),
        (False, "did not arrive; it is at /home/me/data.py:12 in"),
    ],
)
def test_lost_rank_is_described_with_its_last_line(is_silent, text):
    found = describe_lost_rank(statuses(BUSY)[0], is_silent=is_silent)
    assert found.startswith(f"Rank 0 (n) {text}")


def test_consecutive_ranks_are_formatted_as_a_range():
    assert format_ranks([7, 0, 2, 3, 4]) == "0, 2-4, 7"


def test_stacks_start_with_the_innermost_frame():
    stack = thread_stack(threading.get_ident())
    assert stack[0].name == test_stacks_start_with_the_innermost_frame.__name__
    assert stack[0].line == "stack = thread_stack(threading.get_ident())"
    with pytest.raises(ValueError, match="so") as raised:
        raise ValueError("so")
    assert error_stack(raised.value)[0].line == 'raise ValueError("so")'
    assert user_line(raised.value).endswith('raise ValueError("so")')
