"""Who is told to be missing, and how."""

import threading

import pytest

from surestep.engine.parallel.stand import Line, Stand, lines_of, lines_to
from surestep.engine.parallel.told import ended, headline, missed, spans, table

WAITING = (
    Line("/x/site-packages/torch/distributed/distributed_c10d.py", 9, "all_reduce", "work.wait()"),
    Line("/home/me/recipe.py", 3, "main", "fit()"),
)
BUSY = (Line("/home/me/data.py", 12, "__getitem__", "time.sleep(9)"),)


def stands(*stacks, steps=None):
    steps = steps or [5] * len(stacks)
    return {
        rank: Stand(rank, rank // 2, f"n{rank // 2}", 100 + rank, steps[rank], 7, 3.0, stack)
        for rank, stack in enumerate(stacks)
    }


@pytest.mark.parametrize(
    ("found", "silent", "ranks"),
    [
        (stands(WAITING, BUSY, WAITING), (), [1]),
        (stands(WAITING, BUSY, WAITING), (2,), [2]),
        (stands(WAITING, WAITING, steps=[5, 4]), (), [1]),
        (stands(WAITING, WAITING), (), []),
        (stands(BUSY, BUSY), (), []),
    ],
)
def test_the_silent_are_missed_else_those_at_work_else_those_behind(found, silent, ranks):
    assert missed(found, silent) == ranks


def test_the_headline_names_rank_machine_and_step():
    assert headline(stands(WAITING, WAITING, BUSY), (), 4.25) == (
        "Rank 2 (node 1 'n1', process 102) keeps the others waiting in step 5 for 4.25 s."
    )
    assert "does not answer" in headline(stands(WAITING, BUSY), (1,), 4)
    assert headline(stands(WAITING, WAITING), (), 4).startswith("All ranks have waited")
    assert "before the first step" in headline(stands(BUSY, WAITING, steps=[None] * 2), (), 4)


def test_the_table_tells_each_line_once_and_who_is_missed_first():
    lines = table(stands(WAITING, WAITING, BUSY, WAITING), {})
    assert lines == [
        "  rank 2 (node 1 'n1', process 102), step 5: "
        "/home/me/data.py:12 in __getitem__: time.sleep(9)",
        "  ranks 0-1, 3, step 5: torch/distributed/distributed_c10d.py:9 in all_reduce: "
        "work.wait(), called at /home/me/recipe.py:3 in main: fit() (waits for others)",
    ]


def test_of_a_silent_rank_the_line_is_told_where_it_was_last_heard_of():
    (line, _) = table(stands(WAITING, BUSY), {1: 0.0})
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
    found = ended(stands(BUSY, steps=[step])[0], is_silent=silent)
    assert found.startswith(f"Rank 0 (node 0 'n0', process 100) {told}")


def test_spans_of_ranks():
    assert spans([7, 0, 2, 3, 4]) == "0, 2-4, 7"


def test_a_stand_travels_as_text():
    (found,) = stands(BUSY).values()
    assert Stand.of_json(found.to_json()) == found


def test_lines_are_those_of_the_program_innermost_first():
    found = lines_of(threading.get_ident())
    assert found[0].function == test_lines_are_those_of_the_program_innermost_first.__name__
    assert found[0].code == "found = lines_of(threading.get_ident())"
    assert found[0].is_of_user
    with pytest.raises(ValueError, match="so") as raised:
        raise ValueError("so")
    assert lines_to(raised.value)[0].code == 'raise ValueError("so")'
