"""A failure on one of two ranks is explained on the other, and ends both.

One launch runs all cases; each test checks one of them.
"""

import os
from pathlib import Path

import pytest

import surestep
from surestep.record.run import Run
from tests.multi_rank import forked
from tests.multi_rank.cases import opened, task
from tests.multi_rank.checks import check_differences_are_reported, check_drift_is_reported
from tests.multi_rank.failures import (
    BROKEN,
    CASES,
    OPTIONS,
    START_TIMEOUT_S,
    TIMEOUT_S,
    WHILE_SAVING,
    broken,
)
from tests.multi_rank.forked import Ended
from tests.multi_rank.starter import start
from tests.multi_rank.torchrun import check_ended_well


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return the folder that holds the run of each case by name."""
    folder = tmp_path_factory.mktemp("failures")
    check_ended_well(start("failures", folder))
    return folder


@pytest.fixture(scope="module")
def ended(folder) -> dict[str, Ended]:
    return forked.ended(folder, CASES)


def test_healthy_run_prints_nothing(ended):
    case = ended["nothing"]
    assert case.codes == [0, 0]
    assert case.wrote == ["", ""]


HANGS = [  # rank, step, function, and what the other rank waits for
    ("asleep", 1, 3, "__getitem__", "_engine_run_backward"),
    ("asleep in step 1", 1, 1, "__getitem__", "_pre_forward"),
    ("asleep with BatchNorm", 0, 3, "__getitem__", "_distributed_broadcast_coalesced"),
    ("loops", 1, 4, "loop", "_engine_run_backward"),
]


@pytest.mark.parametrize(("name", "rank", "step", "function", "waits_in"), HANGS)
def test_hanging_rank_is_named_before_the_timeout(ended, name, rank, step, function, waits_in):
    case, other = ended[name], 1 - rank
    told, error = (case.wrote[each].partition("ParallelError") for each in (0, other))
    told, error = told[0], error[2]
    lines = [each for each in told.splitlines() if f"), in step {step}: " in each]
    assert f"Rank {rank} (node 0 '{os.uname().nodename}', process " in told
    assert f"has kept the others waiting in step {step} for" in told
    (line,) = [each for each in lines if each.startswith(f"  rank {rank} ")]
    assert ": tests/multi_rank/failures.py:" in line
    assert f"in {function}: time.sleep(" in line
    (line,) = [each for each in lines if each.startswith(f"  rank {other} ")]
    assert f" in {waits_in}: " in line
    assert ", called at surestep/engine/" in line
    assert line.endswith(" (waits for others)")
    waited_s = START_TIMEOUT_S if step == 1 else TIMEOUT_S
    assert f": Rank {other} gave up after {waited_s:g} s of waiting. Rank {rank} (" in error
    assert f"in {function}: time.sleep(" in error


@pytest.mark.parametrize(("name", "rank"), [(name, rank) for name, rank, *_ in HANGS])
def test_hanging_rank_exits_after_the_others(ended, name, rank):
    case, other = ended[name], 1 - rank
    assert case.codes == [1, 1]
    told = f"is ended: rank {other} failed. ParallelError: Rank {other} gave up after"
    assert told in case.wrote[rank]


@pytest.mark.parametrize("name", ["asleep", "asleep with BatchNorm", "loops", "stopped"])
def test_events_hold_the_position_of_each_rank(folder, name):
    (stall,) = [each for each in Run(folder / name).events() if each["event"] == "stall"]
    assert [each["rank"] for each in stall["ranks"]] == [0, 1]
    assert all(each["line"] for each in stall["ranks"])


def test_silent_rank_is_named_with_its_last_line(ended):
    told, _, error = ended["stopped"].wrote[0].partition("ParallelError")
    assert "does not answer; the others have waited in step 4 for" in told
    (line,) = [each for each in told.splitlines() if each.startswith("  rank 1")]
    assert "last status at" in line
    assert "in stop: time.sleep(1)" in line
    assert "no longer answers; it was last at" in error
    assert ended["stopped"].codes == [1, -9]


def test_rank_that_cannot_reach_the_store_names_its_host(ended):
    told, _, error = ended["first stopped"].wrote[1].partition("ParallelError")
    for text in (told, error):
        assert "gets no answer from the launcher's store at 127.0.0.1:" in text
        assert "It is in step 4: " in text
    assert ended["first stopped"].codes == [-9, 1]


@pytest.mark.parametrize(("name", "failed"), [("fails", 1), ("first fails", 0)])
def test_error_on_one_rank_is_reported_by_the_other_with_its_place(ended, name, failed):
    case, other = ended[name], 1 - failed
    assert case.codes == [1, 1]
    assert "ValueError: the metrics cannot be sent" in case.wrote[failed]
    assert f"Rank {other} cannot continue: rank {failed} (node 0" in case.wrote[other]
    assert "failed. ValueError: the metrics cannot be sent (tests/" in case.wrote[other]
    assert abs(case.seconds[0] - case.seconds[1]) < TIMEOUT_S


def test_killed_rank_is_named(ended):
    case = ended["killed"]
    assert case.codes == [1, -9]
    assert "ParallelError: Rank 0 cannot continue. Rank 1 (node 0" in case.wrote[0]
    assert "it was last at tests/multi_rank/failures.py:" in case.wrote[0]


@pytest.mark.parametrize("name", WHILE_SAVING)
def test_rank_that_exits_during_a_save_ends_the_run_and_preserves_the_previous_checkpoint(
    folder, ended, name
):
    case = ended[name]
    assert case.codes == [1, -9]
    assert "ParallelError: Rank 0 " in case.wrote[0]
    assert "Rank 1 (node 0" in case.wrote[0]
    assert "no longer answers; it was last at" in case.wrote[0]
    assert [(each.step, each.good) for each in Run(folder / name).verify()] == [(2, True)]
    with opened(folder / name, task(), **OPTIONS) as session:
        assert session.state.progress.step == 2
        assert [each.step for each in session.steps()][-1] == 8


def test_run_ended_by_a_hanging_rank_resumes(folder):
    with opened(folder / "loops", task(), **OPTIONS) as session:
        assert session.state.progress.step == 2
        assert [each.step for each in session.steps()][-1] == 8


@pytest.mark.parametrize("rank", [0, 1])
def test_unused_parameter_is_named_with_the_option_that_allows_it(ended, rank):
    case = ended["unused"]
    assert case.codes == [1, 1]
    assert "TaskError: No gradient reaches spare.weight (rank 0-1), spare.bias" in case.wrote[rank]
    assert "set parallel.find_unused_parameters=True." in case.wrote[rank]


@pytest.mark.parametrize("rank", [0, 1])
def test_graph_that_is_not_static_ends_the_step_on_both_ranks(ended, rank):
    case = ended["not static"]
    assert case.codes == [1, 1]
    assert "TaskError: torch summed no gradients in this step" in case.wrote[rank]


@pytest.mark.parametrize("rank", [0, 1])
def test_parameter_that_deepspeed_would_treat_as_frozen_is_named(ended, rank):
    case = ended["unused by DeepSpeed"]
    assert case.codes == [1, 1]
    assert "TaskError: No gradient reaches spare.weight, spare.bias in the" in case.wrote[rank]


def test_nonfinite_step_is_left_to_a_replay_in_one_process(folder, ended):
    case = ended["not finite"]
    assert case.codes == [1, 1]
    for wrote in case.wrote:
        assert "2 ranks do not look for the cause" in wrote
    (incident,) = (folder / "not finite" / "incidents").iterdir()
    assert surestep.replay(incident, broken()).now.samples == (BROKEN,)


def test_unused_parameter_can_be_allowed(ended):
    assert ended["unused, allowed"].codes == [0, 0]


@pytest.mark.parametrize("rank", [0, 1])
def test_replicas_that_diverge_are_detected_at_the_same_step_on_all_ranks(ended, rank):
    case = ended["pushed"]
    assert case.codes == [1, 1]
    check_drift_is_reported(case.wrote[rank], "2.bias")


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_with_different_options_get_both_values(ended, rank):
    case = ended["other options"]
    assert case.codes == [1, 1]
    samples = "data.train samples: 101 on rank 0; 100 on rank 1"
    check_differences_are_reported(
        case.wrote[rank], "optim.lr: 0.01 on rank 0; 0.001 on rank 1", samples
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_weights_that_depend_on_the_rank_are_detected_at_the_start(ended, rank):
    case = ended["other weights"]
    assert case.codes == [1, 1]
    assert "The model starts with different weights on some ranks: " in case.wrote[rank]
    assert "0.weight has different values on rank 1" in case.wrote[rank]
