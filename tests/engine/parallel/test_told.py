"""Who is told to be missing, and how."""

import threading

import pytest

from surestep.engine.distributed.errors import is_of_network, timed_out
from surestep.engine.distributed.hang_report import (
    blocking_ranks,
    describe_lost_rank,
    format_ranks,
    hang_summary,
    rank_table,
)
from surestep.engine.distributed.rank_status import (
    RankStatus,
    StackLine,
    thread_stack,
    traceback_stack,
)

WAITING = (
    StackLine(
        "/x/site-packages/torch/distributed/distributed_c10d.py", 9, "all_reduce", "work.wait()"
    ),
    StackLine("/home/me/recipe.py", 3, "main", "fit()"),
)
BUSY = (StackLine("/home/me/data.py", 12, "__getitem__", "time.sleep(9)"),)


OF_TORCH = "/x/site-packages/torch/"
BUCKETS = (StackLine(f"{OF_TORCH}nn/parallel/distributed.py", 1775, "_pre_forward"),)
GRADIENTS = (StackLine(f"{OF_TORCH}autograd/graph.py", 800, "_engine_run_backward"),)
WITHIN = (  # of a model that is being checkpointed, under DDP
    StackLine("/home/me/model.py", 7, "forward", "time.sleep(9)"),
    StackLine(f"{OF_TORCH}distributed/algorithms/_checkpoint/checkpoint_wrapper.py", 1, "forward"),
    *BUCKETS,
)


IMPORTING = (
    StackLine(f"{OF_TORCH}distributed/tensor/_ops/_pointwise_ops.py", 9, "_get_pointwise_ops"),
    StackLine(f"{OF_TORCH}distributed/tensor/_ops/_pointwise_ops.py", 99, "<module>"),
)


def stands(*stacks, steps=None, talks=None):
    steps, talks = steps or [5] * len(stacks), talks or [9] * len(stacks)
    return {
        rank: RankStatus(rank, rank // 2, f"n{rank // 2}", 100 + rank, step, 7, 3.0, stack, talk)
        for rank, (stack, step, talk) in enumerate(zip(stacks, steps, talks, strict=True))
    }


@pytest.mark.parametrize(
    ("found", "silent", "ranks"),
    [
        (stands(WAITING, BUSY, WAITING), (), [1]),
        (stands(WAITING, BUSY, WAITING), (2,), [2]),
        (stands(WAITING, WAITING, steps=[5, 4]), (), [1]),
        (stands(WAITING, WAITING), (), []),
        (stands(BUSY, BUSY), (), []),
        (stands(BUSY, BUSY, talks=[9, 8]), (), [1]),
        (stands(BUSY, WAITING, WAITING, talks=[9, 8, 9]), (), [1]),
        (stands(WAITING, WAITING, BUSY, talks=[9, 8, 8]), (), [2]),
        (stands(WAITING, BUSY, steps=[2, 5], talks=[9, 8]), (), [1]),  # went back to step 2
    ],
)
def test_the_silent_are_missed_else_those_behind_else_those_at_work(found, silent, ranks):
    assert blocking_ranks(found, silent) == ranks


@pytest.mark.parametrize("stack", [WAITING, BUCKETS, GRADIENTS])
def test_a_rank_within_torchs_messages_waits(stack):
    assert stands(stack)[0].is_waiting
    assert blocking_ranks(stands(stack, BUSY), ()) == [1]


@pytest.mark.parametrize("stack", [BUSY, WITHIN, (), (BUSY[0], *BUCKETS), IMPORTING])
def test_a_rank_at_a_line_of_the_user_or_at_an_import_does_not(stack):
    assert not stands(stack)[0].is_waiting


def test_who_waits_is_not_known_without_looking_at_lines(monkeypatch):
    monkeypatch.setattr(RankStatus, "is_waiting", False)
    with pytest.raises(AssertionError):
        test_a_rank_within_torchs_messages_waits(BUCKETS)
    assert "(waits for others)" not in " ".join(rank_table(stands(BUCKETS, BUSY), {}))


def test_ranks_that_are_behind_are_told_though_nobody_is_seen_waiting():
    assert hang_summary(stands(BUSY, BUSY, BUSY, talks=[9, 8, 9]), (), 4).endswith(
        "is behind the others, which have stood in step 5 for 4 s."
    )
    assert "(node 0 'n0', process 100) and rank 1 (node 0 'n0', process 101) are behind" in (
        hang_summary(stands(BUSY, BUSY, BUSY, talks=[8, 8, 9]), (), 4)
    )


@pytest.mark.parametrize(
    ("text", "of_network", "late"),
    [
        ("Application timeout caused pair closure", True, True),
        ("[/x/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 60ms for", True, True),
        ("[/x/gloo/transport/tcp/pair.cc:525] Connection closed by peer", True, False),
        ("mat1 and mat2 shapes cannot be multiplied", False, False),
    ],
)
def test_errors_of_gloo_are_known(text, of_network, late):
    assert is_of_network(RuntimeError(text)) is of_network
    assert timed_out(RuntimeError(text)) is late


def test_the_headline_names_rank_machine_and_step():
    assert hang_summary(stands(WAITING, WAITING, BUSY), (), 4.25) == (
        "Rank 2 (node 1 'n1', process 102) keeps the others waiting in step 5 for 4.25 s."
    )
    assert "does not answer" in hang_summary(stands(WAITING, BUSY), (1,), 4)
    assert hang_summary(stands(WAITING, WAITING), (), 4).startswith("All ranks have waited")
    assert "before the first step" in hang_summary(stands(BUSY, WAITING, steps=[None] * 2), (), 4)


def test_the_table_tells_each_line_once_and_who_is_missed_first():
    lines = rank_table(stands(WAITING, WAITING, BUSY, WAITING), {})
    assert lines == [
        "  rank 2 (node 1 'n1', process 102), step 5: "
        "/home/me/data.py:12 in __getitem__: time.sleep(9)",
        "  ranks 0-1, 3, step 5: torch/distributed/distributed_c10d.py:9 in all_reduce: "
        "work.wait(), called at /home/me/recipe.py:3 in main: fit() (waits for others)",
    ]


def test_of_a_silent_rank_the_line_is_told_where_it_was_last_heard_of():
    (line, _) = rank_table(stands(WAITING, BUSY), {1: 0.0})
    assert "step 5, last heard of at" in line
    assert "data.py:12" in line


@pytest.mark.parametrize(
    ("step", "silent", "told"),
    [
        (None, True, "is not heard of any more; it was starting."),
        (5, True, "is not heard of any more; it last stood at /home/me/data.py:12 in"),
        (5, False, "did not come; it stands at /home/me/data.py:12 in"),
    ],
)
def test_of_a_rank_that_has_not_begun_its_steps_no_line_is_told(step, silent, told):
    found = describe_lost_rank(stands(BUSY, steps=[step])[0], is_silent=silent)
    assert found.startswith(f"Rank 0 (node 0 'n0', process 100) {told}")


def test_spans_of_ranks():
    assert format_ranks([7, 0, 2, 3, 4]) == "0, 2-4, 7"


def test_a_stand_travels_as_text():
    (found,) = stands(BUSY).values()
    assert RankStatus.from_json(found.to_json()) == found


def test_lines_are_those_of_the_program_innermost_first():
    found = thread_stack(threading.get_ident())
    assert found[0].function == test_lines_are_those_of_the_program_innermost_first.__name__
    assert found[0].code == "found = thread_stack(threading.get_ident())"
    assert found[0].is_of_user
    with pytest.raises(ValueError, match="so") as raised:
        raise ValueError("so")
    assert traceback_stack(raised.value)[0].code == 'raise ValueError("so")'
