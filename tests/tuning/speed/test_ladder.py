"""The ladder, with a measurer that knows the time of a step."""

import json
from dataclasses import replace

import pytest

from surestep.tuning.speed.measuring_process import HUNG, MeasuringFailed
from surestep.tuning.speed.table import list_steps, list_unused, summarize, tabulate_rungs
from tests.tuning.speed.fakes import FakeMeasurer, climb, make_knob


def test_knob_that_is_faster_is_kept_proved_and_the_next_is_compared_with_it():
    fake = FakeMeasurer({"a=1": 0.5, "a=2": 0.8}, {"a": [{"a": 1}, {"a": 2}], "b": [{"b": 1}]})
    found = climb(fake, make_knob("a"), make_knob("b"), seconds=1200.0)
    rung = found.rungs["a=1"]
    assert (rung.outcome, rung.keeps_numbers) == ("kept", True)
    assert rung.interval.low < 0.5 < rung.interval.high < 1
    assert rung.proof == {"steps": 51, "difference": None}
    assert found.rungs["a=2"].outcome == "not taken"
    assert found.rungs["b=1"].outcome == "not taken"
    assert ({"a": 1}, {"a": 1, "b": 1}) in fake.opened
    assert found.result.list_options("kept") == {"a": 1}
    assert found.result.total.interval.low < 0.5 < found.result.total.interval.high


def test_rung_within_the_noise_is_not_taken():
    found = climb(FakeMeasurer({"a=1": 0.98}, {"a": [{"a": 1}]}, noise=0.1), make_knob("a"))
    assert (found.rungs["a=1"].outcome, found.result.total) == ("not taken", None)
    assert found.rungs["a=1"].interval.high > 1


def test_knobs_that_shorten_the_largest_share_come_first_and_those_that_change_numbers_last():
    names = ("change", "compute", "load")
    knobs = [
        make_knob("change", keeps_numbers=False, shares=("data", "forward")),
        make_knob("compute"),
        make_knob("load", shares=("data",)),
    ]
    fake = FakeMeasurer({}, {name: [{name: 1}] for name in names}, wait=0.6)
    assert [rung.knob for rung in climb(fake, *knobs).result.rungs] == ["load", "compute", "change"]


def test_waits_are_known_if_the_other_parts_cannot_be_measured():
    fake = FakeMeasurer({}, {"a": [{"a": 1}], "b": [{"b": 1}]}, wait=0.8, no_shares="no reason")
    found = climb(fake, make_knob("a"), make_knob("b", shares=("data",)))
    assert [rung.knob for rung in found.result.rungs] == ["b", "a"]
    assert found.result.shares["data"] == pytest.approx(0.8)
    assert sum(found.result.shares.values()) == pytest.approx(1)
    assert found.result.notes == ["Where the time of a step goes was not measured: no reason."]


def test_order_follows_the_bottleneck_when_a_rung_is_kept():
    class Loading(FakeMeasurer):
        def step_s(self, options):
            self.wait = 0.1 if "a" in options else 0.9
            return super().step_s(options)

    found = {"a": [{"a": 1}], "b": [{"b": 1}], "c": [{"c": 1}]}
    knobs = [make_knob("a", shares=("data",)), make_knob("b", shares=("data",)), make_knob("c")]
    rungs = climb(Loading({"a=1": 0.3}, found, wait=0.9), *knobs).result.rungs
    assert [rung.knob for rung in rungs] == ["a", "c", "b"]


@pytest.mark.parametrize("reason", ["killed by SIGKILL", "out of memory", "CUDA"])
def test_knob_that_fails_is_a_rung_with_its_reason(reason):
    fake = FakeMeasurer({"b=1": 0.5}, {"a": [{"a": 1}], "b": [{"b": 1}]}, failing={"a=1": reason})
    found = climb(fake, make_knob("a"), make_knob("b"))
    assert (found.rungs["a=1"].outcome, found.rungs["a=1"].reason) == ("failed", reason)
    assert found.rungs["b=1"].outcome == "kept"


def test_knob_that_hangs_is_not_tried_with_its_other_options():
    found = {"a": [{"a": 1}, {"a": 2}], "b": [{"b": 1}]}
    fake = FakeMeasurer({"b=1": 0.5}, found, failing={"a=1": "no answer"}, kind=HUNG)
    rungs = climb(fake, make_knob("a"), make_knob("b")).rungs
    assert (rungs["a=1"].outcome, rungs["a=2"].outcome) == ("failed", "not tried")
    assert rungs["a=2"].reason == "there was no answer with the options above"
    assert rungs["b=1"].outcome == "kept"


def test_limit_of_an_answer_is_that_of_the_tuning_again_after_a_knob_that_hangs():
    found = {"a": [{"a": 1}], "b": [{"b": 1}]}
    fake = FakeMeasurer({"b=1": 0.5}, found, failing={"a=1": "no answer"}, kind=HUNG, limit_s=1e3)
    climb(fake, make_knob("a"), make_knob("b", shares=("data", "forward")))
    noise, _, of_a, total = fake.limits
    assert of_a < 1000
    assert (noise, total, fake.limit_s) == (1000, 1000, 1000)


def test_run_that_cannot_be_measured_as_it_is_ends_the_ladder():
    class Failing(FakeMeasurer):
        def describe(self, options, knobs):
            raise MeasuringFailed("no data", "ConfigError")

    with pytest.raises(MeasuringFailed, match="no data") as raised:
        climb(Failing({}, {"a": []}), make_knob("a"))
    assert str(raised.value.as_error()) == "no data"
    assert type(raised.value.as_error()).__name__ == "ConfigError"


def test_knob_without_candidates_says_why_and_is_planned_again_when_others_are_kept():
    fake = FakeMeasurer(
        {"a=1": 0.5, "b=1": 0.8},
        {"a": [{"a": 1}], "b": lambda options: [{"b": 1}] if "a" in options else "needs a"},
    )
    found = climb(fake, make_knob("a"), make_knob("b", shares=("data",)))
    assert found.rungs["b=1"].outcome == "kept"
    alone = climb(fake, make_knob("b"))
    assert (alone.rungs["b"].outcome, alone.rungs["b"].reason) == ("not tried", "needs a")
    assert len(tabulate_rungs(alone.result, keeps_numbers=True)) == 1
    assert list_unused(alone.result, keeps_numbers=True) == "Nothing to try here: b (needs a)."
    assert list_unused(alone.result, keeps_numbers=False) == ""


def test_knob_that_claims_to_keep_the_numbers_and_does_not_is_moved():
    fake = FakeMeasurer({"a=1": 0.5}, {"a": [{"a": 1}]}, unlike=["a=1"])
    rungs = climb(fake, make_knob("a")).result.rungs
    assert [(rung.outcome, rung.keeps_numbers) for rung in rungs] == [
        ("not taken", False),
        ("proposed", False),
    ]
    assert "At step 2" in rungs[0].reason
    assert rungs[0].proof["difference"].startswith("At step 2")
    assert rungs[1].curves.are_equal


def test_knob_that_changes_the_numbers_is_proposed_and_kept_if_that_is_allowed():
    fake = FakeMeasurer({"a=1": 0.5}, {"a": [{"a": 1}]}, losses={"a=1": 0.005})
    knob = make_knob("a", keeps_numbers=False)
    proposed = climb(fake, knob)
    rung = proposed.rungs["a=1"]
    assert rung.outcome == "proposed"
    assert "--allow numbers" in rung.reason
    assert rung.curves.ends == pytest.approx((1.01, 1.015))
    assert rung.curves.spread == pytest.approx(0.01)
    assert rung.curves.seeds == (0, 1, 2)
    assert proposed.result.list_options("kept") == {}
    assert proposed.result.total is None
    assert proposed.result.total_proposed.interval.high < 1
    assert climb(fake, knob, allows_numbers=True).rungs["a=1"].outcome == "kept"


def test_knob_whose_loss_is_higher_is_not_taken_even_if_that_is_allowed():
    fake = FakeMeasurer({"a=1": 0.5}, {"a": [{"a": 1}]}, losses={"a=1": 0.1})
    knob = make_knob("a", keeps_numbers=False)
    rung = climb(fake, knob, allows_numbers=True).rungs["a=1"]
    assert rung.outcome == "not taken"
    assert "higher beyond the spread" in rung.reason


def test_rung_has_to_save_its_start_within_the_run():
    found = {"a": [{"a": 1}]}
    slow = FakeMeasurer({"a=1": 0.5}, found, start_s={"a=1": 60.0})
    rung = climb(slow, make_knob("a")).rungs["a=1"]
    assert rung.outcome == "not taken"
    assert rung.break_even == pytest.approx(1200, rel=0.1)
    assert "the run has 1000" in rung.reason
    quick = FakeMeasurer({"a=1": 0.5}, found, start_s={"a=1": 6.0})
    rung = climb(quick, make_knob("a")).rungs["a=1"]
    assert (rung.outcome, rung.break_even) == ("kept", pytest.approx(120, rel=0.1))


def test_whole_run_has_its_other_parts_before_and_after():
    fake = FakeMeasurer({"a=1": 0.5}, {"a": [{"a": 1}]}, start_s={"a=1": 6.0}, noise=0.0)
    result = climb(fake, make_knob("a")).result
    written = result.as_json()
    assert written["whole"]["total_s"] == pytest.approx(100 + 10 + 20 + 10 + 5 + 6)
    assert written["whole_kept"]["total_s"] == pytest.approx(50 + 10 + 20 + 10 + 11 + 6)
    assert written["whole_proposed"] is None
    text = "\n".join(summarize(result))
    assert "The whole run takes 2 min 31 s" in text
    assert "evaluation (20)" in text
    assert "checkpoint.every=5 minutes" in text
    assert "With what is kept: 1 min 47 s instead of 2 min 31 s. A step is 2 times as fast" in text


@pytest.mark.parametrize(
    ("whole", "reason"), [(None, "it is measured with one process only"), ("no disk", "no disk")]
)
def test_steps_are_summed_if_the_whole_run_is_not_known(whole, reason):
    fake = FakeMeasurer({"a=1": 0.5}, {"a": [{"a": 1}]}, whole=whole, noise=0.0)
    text = "\n".join(summarize(climb(fake, make_knob("a")).result))
    assert f"What the run takes beside its steps is not known: {reason}." in text
    assert "With what is kept: 50 s instead of 1 min 40 s" in text


def test_what_is_not_tried_for_lack_of_time_says_so():
    names = [f"k{number}" for number in range(30)]
    fake = FakeMeasurer({}, {name: [{name: 1}] for name in names}, noise=0.0)
    found = climb(fake, *map(make_knob, names), seconds=60.0)
    late = [rung for rung in found.result.rungs if rung.reason == "out of time"]
    assert len(found.result.rungs) == 30
    assert 5 < len(late) < 29
    assert all(rung.outcome == "not tried" for rung in late)
    assert fake.now < 63


def test_result_is_saved_after_every_rung_as_json():
    fake = FakeMeasurer({"a=1": 0.5}, {"a": [{"a": 1}], "b": "none"})
    found = climb(fake, make_knob("a"), make_knob("b"))
    assert set(found.saved) == {0, 1, 2}
    assert json.loads(json.dumps(found.result.as_json()))["rungs"][0]["knob"] == "a"


def test_noisy_machine_and_short_run_are_reported():
    fake = FakeMeasurer({}, {"a": []}, noise=0.5, run={"total_steps": 3})
    notes = climb(fake, make_knob("a")).result.notes
    assert "The machine is noisy" in notes[0]
    assert notes[1] == "The run has 3 steps, in which hardly anything pays back."


LATE = replace(make_knob("a"), begins_in_epoch_2=True)


def test_knob_that_begins_in_the_second_epoch_is_proved_there_or_not_taken():
    found = {"a": [{"a": 1}]}
    rung = climb(FakeMeasurer({"a=1": 0.5}, found), LATE).rungs["a=1"]
    assert (rung.outcome, rung.proof["steps"]) == ("kept", 50 + 1 + 3)
    long = FakeMeasurer({"a=1": 0.5}, found, run={"steps_per_epoch": 2000, "total_steps": 9000})
    rung = climb(long, LATE).rungs["a=1"]
    assert (rung.outcome, rung.proof) == ("not taken", None)
    assert "no time to prove it in the second epoch, up to step 2004" in rung.reason


def test_first_epoch_counts_against_a_knob_that_begins_in_the_second_one():
    found = {"a": [{"a": 1}]}
    fake = FakeMeasurer({"a=1": 0.5}, found, first_epoch_s={"a=1": 6.0}, noise=0.0)
    result = climb(fake, LATE).result
    assert (result.rungs[0].outcome, result.rungs[0].break_even) == ("kept", 121)
    assert result.total.first_epoch_s == 6.0
    whole = result.as_json()
    assert whole["whole_kept"]["parts"]["start"] == whole["whole"]["parts"]["start"] + 6
    short = FakeMeasurer({"a=1": 0.5}, found, first_epoch_s={"a=1": 60.0}, noise=0.0)
    rung = climb(short, LATE).rungs["a=1"]
    assert rung.outcome == "not taken"
    assert rung.reason.startswith("its start and first epoch take 60 s more, which it saves after")


def test_times_of_a_chart_follow_what_is_kept():
    found = {"a": [{"a": 1}, {"a": 2}], "b": [{"b": 1}]}
    fake = FakeMeasurer({"a=1": 0.5, "b=1": 0.8}, found, noise=0.0)
    steps = list_steps(climb(fake, make_knob("a"), make_knob("b"), seconds=1200.0).result)
    assert [(one["name"], one["outcome"]) for one in steps] == [
        *(("as it is", "kept"), ("a=1", "kept"), ("a=2", "not taken"), ("b=1", "kept"))
    ]
    assert [one["seconds"][0] for one in steps] == pytest.approx([0.1, 0.05, 0.1, 0.04])
    assert all(low <= middle <= high for middle, low, high in (one["seconds"] for one in steps))


def test_knob_that_starts_slowly_comes_after_those_of_about_the_same_share():
    found = {name: [{name: 1}] for name in "abc"}
    slow = replace(make_knob("a", shares=("data", "forward")), starts_slowly=True)
    knobs = [slow, make_knob("b"), make_knob("c", shares=("data",))]
    rungs = climb(FakeMeasurer({}, found, wait=0.7), *knobs).result.rungs
    assert [rung.knob for rung in rungs] == ["c", "a", "b"]  # 0.7, 1.0 / 2 and 0.3


def test_one_knob_does_not_take_the_time_of_the_others():
    found = {"a": [{"a": 1}, {"a": 2}, {"a": 3}], **{name: [{name: 1}] for name in "bcdef"}}
    slow = {"a=1": 100.0, "a=2": 100.0}
    fake = FakeMeasurer({"b=1": 0.5}, found, opening_s=slow, noise=0.0, limit_s=500.0)
    first = make_knob("a", shares=("data", "forward"))
    rungs = climb(fake, first, *map(make_knob, "bcdef")).rungs
    assert rungs["a=1"].outcome == "not taken"
    assert rungs["a=2"].reason == "its start took the time of one knob"
    assert rungs["a=3"].reason == "the options above took the 2 min 0 s of one knob"
    assert rungs["b=1"].outcome == "kept"
    assert fake.limits[1:3] == [pytest.approx(120, abs=1), pytest.approx(14, abs=1)]
    alone = FakeMeasurer({}, found, opening_s=slow, noise=0.0)
    rungs = climb(alone, first).rungs.values()
    assert [rung.reason for rung in rungs] == ["no faster beyond the noise"] * 3


@pytest.mark.parametrize(
    ("factors", "failing", "tried", "reason"),
    [
        ({"a=1": 0.5, "a=3": 1.1}, {}, ["1", "0", "3"], "it is beyond a=3, which is slower"),
        ({"a=0": 1.2, "a=1": 1.1}, {"a=3": "memory"}, ["1", "3"], "it is beyond a=3, which failed"),
    ],
)
def test_counts_beyond_one_that_is_worse_are_not_tried(factors, failing, tried, reason):
    found = {"a": [{"a": count} for count in (1, 0, 3, 4)]}
    fake = FakeMeasurer(factors, found, present={"a": 2}, noise=0.0, failing=failing)
    rungs = climb(fake, replace(make_knob("a"), is_count=True)).rungs
    assert [
        word[-1] for word, rung in rungs.items() if not rung.reason.startswith("it is beyond")
    ] == tried
    assert rungs["a=4"].reason == reason
    assert rungs["a=4"].outcome == "not tried"
