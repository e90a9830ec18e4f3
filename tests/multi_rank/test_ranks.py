"""Laws 1, 2 and 10 on several ranks: the same numbers, the same decisions, at the same step."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import surestep
from tests.multi_rank.cases import CASES, POISONED, data, task, trained
from tests.multi_rank.checks import (
    check_copies,
    check_losses,
    check_measured,
    check_resumed,
    check_stopped,
    check_weights,
    distance,
    same,
)
from tests.multi_rank.on_four import on_ranks
from tests.multi_rank.shard_options import ON_PARTS
from tests.multi_rank.strategies import CROSSED, GOES_ON, WAYS, Cell, cells, resume_cells
from tests.multi_rank.torchrun import results_of

TOLERANCE = {"fp64": 1e-12}


def of_case(ranks: Sequence[dict[Any, Any]], name: Any) -> list[dict[str, Any]]:
    return [each[name] for each in ranks]


@pytest.mark.parametrize(("ranks", "name"), on_ranks(CASES), indirect=["ranks"])
def test_ranks_end_with_the_weights_of_one_process(one, ranks, name):
    check_weights(one[name], of_case(ranks, name), TOLERANCE.get(name, 1e-6))


@pytest.mark.parametrize(("ranks", "name"), on_ranks(CASES), indirect=["ranks"])
def test_all_ranks_hold_the_same_weights(ranks, name):
    check_copies(of_case(ranks, name))


@pytest.mark.parametrize(("ranks", "name"), on_ranks(CASES), indirect=["ranks"])
def test_losses_are_those_of_the_full_batch(one, ranks, name):
    check_losses(one[name], of_case(ranks, name))


@pytest.mark.parametrize(("ranks", "name"), on_ranks(CASES), indirect=["ranks"])
def test_evaluation_counts_every_sample_once(one, ranks, name):
    check_measured(one[name], of_case(ranks, name))


@pytest.mark.parametrize(("ranks", "name"), on_ranks(POISONED), indirect=["ranks"])
def test_nonfinite_samples_stop_all_ranks_before_the_step(one, ranks, name):
    assert one[name]["failed"] == 3
    for each in ranks:
        assert each[name]["failed"] == 3
        assert distance(one[name]["weights"], each[name]["weights"]) <= 1e-6
        assert each[name]["place"] == one[name]["place"]
        assert each[name]["said"] == ranks[0][name]["said"]


def test_replay_in_one_process_uses_the_batch_of_all_ranks(one, ranks):
    x, y = data()
    x[[41, 59]] = torch.nan
    now = surestep.replay(ranks[0]["poisoned on two"]["incident"], task((x, y))).now
    assert now.samples == (41, 59)


def test_request_of_one_rank_is_fulfilled_by_all_one_step_later(ranks):
    check_stopped(of_case(ranks, "stopped"), asked_in=5)


def test_signal_to_one_rank_stops_all_after_the_same_step(two):
    assert [each["signalled"]["status"] for each in two] == ["stopped"] * len(two)
    (place,) = {each["signalled"]["place"] for each in two}
    assert 4 <= place[0] <= 5


def test_pause_requested_by_one_rank_pauses_all_after_the_same_step(two):
    assert [each["paused"]["status"] for each in two] == ["stopped"] * len(two)
    (place,) = {each["paused"]["place"] for each in two}
    assert place[0] == 6


@pytest.mark.parametrize("option", ["static_graph", "find_unused_parameters"])
def test_option_of_ddp_changes_no_number(one, two, option):
    for each in two:
        assert distance(one["micro-batches"]["weights"], each[option]["weights"]) <= 1e-6


def test_only_rank_0_prints_the_progress(two):
    printed = [each["told"]["printed"] for each in two]
    assert "step 4/4" in printed[0]
    assert not any("step 4/4" in each for each in printed[1:])


def test_groups_of_a_run_that_ended_leave_no_thread(two):
    of_ddp = 2  # the model, which the script still has, keeps the group of its gradients
    assert [found["threads"] for found in of_case(two, "told")] == [of_ddp] * len(two)


def test_run_resumes_with_the_same_ranks_bit_for_bit(ranks):
    check_resumed(of_case(ranks, "gone on"), of_case(ranks, "adamw"))


def test_run_resumes_from_its_mirror_bit_for_bit_on_an_empty_machine(two):
    found = of_case(two, "mirrored")
    check_resumed(found, of_case(two, "adamw"))
    threads = {"surestep-mirror", "surestep-mirror-owner"}
    assert [each["shown"] for each in found] == [threads, *[set()] * (len(two) - 1)]


@pytest.mark.parametrize(("begun", "count"), [("one", 2), ("one", 4), ("two", 4)])
def test_run_resumes_with_more_ranks(one, launch, begun, count):
    for each in of(launch, count):
        found = each[f"begun by {begun}"]
        assert distance(one["adamw"]["weights"], found["weights"]) <= 1e-6
        assert found["losses"] == pytest.approx(one["adamw"]["losses"][7:], rel=1e-5)


@pytest.mark.parametrize("count", [2, 4])
def test_one_process_resumes_the_run_of_several(one, launch, tmp_path, count):
    shutil.copytree(launch(count) / "half", tmp_path / "half")
    found = trained(tmp_path / "half", task())
    assert distance(one["adamw"]["weights"], found["weights"]) <= 1e-6
    assert found["losses"] == pytest.approx(one["adamw"]["losses"][7:], rel=1e-5)


# The required strategies and numbers of ranks, written out so that a missing one is found.
TABLE = [
    *(("ddp", 2), ("ddp", 4), ("accelerate", 2)),
    *(("fsdp-full", 2), ("fsdp-full", 4), ("fsdp-grad_op", 2)),
    *(("fsdp-hybrid", 4), ("zero-0", 2), ("zero-1", 2), ("zero-2", 2), ("zero-3", 2)),
    ("zero-3", 4),
]


EVERY = [
    (cut, optimizer)
    for cut in ("one micro-batch", "uneven", "leftover", "an empty rank")
    for optimizer in ("adamw", "sgd")
]
# For four ranks, and for strategies that differ little from one that runs every cell.
ONCE = [
    *(("one micro-batch", "adamw"), ("uneven", "adamw")),
    *(("leftover", "sgd"), ("an empty rank", "sgd")),
]


def wanted(way: str, count: int) -> set[tuple[str, str, str]]:
    every = count == 2 and way in ("ddp", "fsdp-full", "zero-1", "zero-3")
    return {(way, *each) for each in (EVERY if every else ONCE)}


def of(launch: Callable[[int], Path], count: int) -> list[dict[str, Any]]:
    return results_of(launch(count), count)


@pytest.mark.parametrize("count", [2, 4])
def test_every_strategy_split_and_optimizer_is_tested(launch, count):
    table = {name for way, ranks in TABLE if ranks == count for name in wanted(way, ranks)}
    for each in of(launch, count):
        assert table == {name for name in each if name[0] in WAYS and len(name) == 3}


@pytest.mark.parametrize(("way", "count"), TABLE)
def test_every_strategy_resumes_with_the_same_ranks_bit_for_bit(launch, way, count):
    ranks = of(launch, count)
    check_resumed(of_case(ranks, ("again", way)), of_case(ranks, (way, *GOES_ON)))


def test_every_strategy_resumes_runs_of_the_others(one, ranks):
    begun = {name for name in ranks[0] if name[0] == "goes on"}
    ways = resume_cells(len(ranks))
    begins = {f"one goes on as {way}" for way in ways}
    if len(ranks) == 4:
        both = set(ways) & set(resume_cells(2))
        begins |= {f"two as {two} goes on as {way}" for way in both for two in ("ddp", way)}
    if len(ranks) == 2:
        begins |= {f"two as {two} goes on as {way}" for two, way in CROSSED}
    assert {name[1] for name in begun} == begins
    for name in begun:
        far = [distance(one[GOES_ON]["weights"], each[name]["weights"]) for each in ranks]
        print(f"{name[1]} on {len(ranks)} ranks: {max(far):.1e}")
        assert max(far) <= WAYS[name[1].rpartition(" as ")[2]].tolerance


@pytest.mark.parametrize(("way", "count"), TABLE)
def test_one_process_resumes_runs_of_every_strategy(one, launch, way, count, tmp_path):
    shutil.copytree(launch(count) / f"half of {way}", tmp_path / "half")
    cell = Cell("one process", *GOES_ON)
    measured = cell.measured(tmp_path / "half", None)["last"]
    for each in of(
        launch, count
    ):  # they evaluate what one process saved, and restore their own weights
        there = each["measured", way]
        assert there["last"] == pytest.approx(measured, rel=10 * WAYS[way].tolerance)
        assert there["own"] == there["last"]
    found = cell.run(tmp_path / "half", None)
    tolerance = WAYS[way].tolerance
    assert distance(one[GOES_ON]["weights"], found["weights"]) <= tolerance
    assert found["losses"] == pytest.approx(one[GOES_ON]["losses"][7:], rel=10 * tolerance)


@pytest.mark.parametrize(("way", "count"), TABLE)
def test_every_strategy_ends_with_the_weights_of_one_process(one, launch, way, count, capsys):
    ranks = of(launch, count)
    rows = {name: _worst(one, ranks, name) for name in cells(count) if name[0] == way}
    with capsys.disabled():
        for (_, cut, optimizer), far in rows.items():
            print(f"\n{way} on {count} ranks, {cut}, {optimizer}: {far:.1e}", end="")
    assert rows.keys() == wanted(way, count)
    assert all(far <= WAYS[way].tolerance for far in rows.values())


def _worst(one: dict[str, Any], ranks: list[dict[str, Any]], name: tuple[str, str, str]) -> float:
    """Return the largest distance of a rank to one process; the losses must be equal."""
    alone, near = one[name[1:]], 10 * WAYS[name[0]].tolerance
    for each in ranks:
        assert each[name]["losses"] == pytest.approx(alone["losses"], rel=near)
        assert each[name]["metrics"] == pytest.approx(alone["metrics"], rel=near)
        assert each[name]["place"] == alone["place"]
    return max(distance(alone["weights"], each[name]["weights"]) for each in ranks)


@pytest.mark.parametrize(("way", "count"), TABLE)
def test_strategy_holds_and_sends_what_it_claims(launch, way, count):
    for each in of(launch, count):
        shown = [each[name]["shown"] for name in cells(count) if name[0] == way]
        claims = [claim for claim in shown if claim is not None]
        assert len(claims) >= 2  # with one micro-batch and with several
        for claim in claims:
            WAYS[way].proves(claim, count)


@pytest.mark.parametrize("name", ON_PARTS)
def test_option_acts_on_shards_as_on_full_parameters(one, launch, name):
    alone, case = one["on parts", name], ON_PARTS[name]
    for found in of_case(of(launch, 2), ("on parts", name)):
        assert distance(alone["weights"], found["weights"]) <= case.tolerance
        assert found["shown"]["skipped"] == alone["shown"]["skipped"]
        assert found["place"] == alone["place"]
        near = {"rtol": 10 * case.tolerance, "atol": 10 * case.tolerance}
        torch.testing.assert_close(
            found["shown"]["predicted"], alone["shown"]["predicted"], **near, equal_nan=True
        )


def test_overflow_on_one_rank_skips_the_step_on_all(one):
    """The cases above compare with one step of six, and a nonfinite step."""
    assert one["on parts", "fp16, one rank overflows"]["shown"]["skipped"] == (1, 0)
    assert one["on parts", "skipping"]["shown"]["skipped"] == (0, 1)


def test_meta_init_equals_the_usual_start_bit_for_bit(launch):
    for rank, found in enumerate(of(launch, 2)):
        assert found["on parts", "from meta"]["built"] == ["meta" if rank else "cpu"]
        assert same(
            found["on parts", "as usual"]["weights"], found["on parts", "from meta"]["weights"]
        )


BY_ZERO = (*(f"zero-{stage}" for stage in range(4)), "zero-1 bf16", "zero-2 bf16")


@pytest.mark.parametrize("way", BY_ZERO)
def test_run_with_deepspeed_resumes_bit_for_bit(launch, way):
    for each in of(launch, 2):
        found = each[f"{way} gone on"]
        assert same(found["at once"]["weights"], found["gone on"]["weights"])
        assert found["gone on"]["losses"] == found["at once"]["losses"][7:]


@pytest.mark.parametrize("way", BY_ZERO)
def test_deepspeed_saves_the_weights_that_the_model_uses(launch, way):
    for each in of(launch, 2):
        live, saved = each[f"{way} gone on"]["live"], each[f"{way} gone on"]["saved"]
        assert same(live, {name: saved[name].to(kept) for name, kept in live.items()})


@pytest.mark.parametrize("stage", range(4))
def test_performance_keys_of_deepspeed_change_no_number(one, launch, stage):
    for each in of(launch, 2):
        found = each[f"zero-{stage} gone on"]["at once"]
        assert distance(one["for DeepSpeed"]["weights"], found["weights"]) <= 1e-6


def test_bf16_is_the_same_in_each_stage_that_shards(launch):
    """Stage 1 uses a different optimizer of DeepSpeed."""
    for each in of(launch, 2):
        one, two = (each[f"zero-{stage} bf16 gone on"]["at once"] for stage in (1, 2))
        assert distance(one["weights"], two["weights"]) <= 1e-6


@pytest.mark.parametrize("way", BY_ZERO)
def test_deepspeed_skips_on_all_ranks_if_one_is_nonfinite(launch, way):
    for each in of(launch, 2):
        found = each[f"{way} skipped"]
        assert found["took"] == [True, True, False, True]
        assert same(found["weights"][1], found["weights"][2])
        assert not same(found["weights"][2], found["weights"][3])


def test_deepspeed_prints_its_times_on_request(launch):
    assert "optimizer_step" in of(launch, 2)[0]["timed"]


def test_buffers_under_deepspeed_are_those_of_ddp(launch):
    for each in of(launch, 2):
        here, there = each["buffers", "deepspeed"], each["buffers", "ddp"]
        assert distance(there, here) <= 1e-6


def test_deepspeed_leaves_torch_unchanged(launch):
    for each in of(launch, 2):
        assert each["linear is torch's own"]
