import pytest

from surestep.config.duration import Duration, PeriodicTrigger, parse_duration

PERIODS = ("1 step", "7 steps", "1 epoch", "0.3 epochs", "2.5 epochs", "0.3333333333 epochs")


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("3 epochs", Duration(3, "epochs")),
        ("1 epoch", Duration(1, "epochs")),
        ("0.25 epochs", Duration(0.25, "epochs")),
        ("500 steps", Duration(500, "steps")),
        ("1e9 items", Duration(1e9, "items")),
        (" 10minutes ", Duration(10, "minutes")),
    ],
)
def test_duration_is_an_amount_and_a_unit(text, duration):
    assert parse_duration(text) == duration


def test_m_is_minutes_where_only_times_are_allowed():
    assert parse_duration("90m", ("minutes",)) == Duration(90, "minutes")
    with pytest.raises(ValueError, match="an amount and a unit"):
        parse_duration("90m", ("minutes", "steps"))


@pytest.mark.parametrize(
    "text", ["", "3", "epochs", "0 steps", "-1 steps", "3 weeks", "1.2.3 steps", "nan steps"]
)
def test_invalid_duration_is_rejected_with_an_example(text):
    with pytest.raises(ValueError, match=r"an amount and a unit .* such as '2 epochs'"):
        parse_duration(text)


def test_unsupported_unit_is_rejected():
    with pytest.raises(ValueError, match=r"\(epochs, steps\)"):
        parse_duration("10 minutes", ("epochs", "steps"))


@pytest.mark.parametrize(
    "text", ["1 epoch", "2.5 epochs", "1234567 steps", "0.123456789 epochs", "12345678901 items"]
)
def test_duration_round_trips_through_text(text):
    assert parse_duration(str(parse_duration(text))) == parse_duration(text)


def test_epochs_and_steps_convert_to_steps():
    assert parse_duration("1.5 epochs").in_steps(10) == 15
    assert parse_duration("0.001 epochs").in_steps(10) == 1
    assert parse_duration("7 steps").in_steps(10) == 7


@pytest.mark.parametrize("text", ["5 items", "5 minutes"])
def test_items_and_minutes_have_no_fixed_number_of_steps(text):
    with pytest.raises(ValueError, match="no fixed number of steps"):
        parse_duration(text).in_steps(10)


def due_steps(text: str, *, steps_per_epoch: int = 10, first: int = 1, last: int = 40) -> list[int]:
    cadence = PeriodicTrigger(parse_duration(text), steps_per_epoch)
    return [step for step in range(first, last + 1) if cadence.is_due(step, 0, 0)]


@pytest.mark.parametrize("text", PERIODS)
def test_count_of_due_steps_is_known_before(text):
    trigger = PeriodicTrigger(parse_duration(text), 10)
    assert [trigger.count_due(last) for last in (1, 7, 40)] == [
        len(due_steps(text, last=last)) for last in (1, 7, 40)
    ]


def test_count_of_due_steps_is_not_known_without_a_number_of_steps():
    assert PeriodicTrigger(None, 10).count_due(40) == 0
    for text, steps_per_epoch in (("5 items", 10), ("5 minutes", 10), ("1 epoch", None)):
        assert PeriodicTrigger(parse_duration(text), steps_per_epoch).count_due(40) is None


def test_fractions_of_an_epoch_include_the_end_of_each_epoch():
    assert due_steps("0.25 epochs", last=20) == [3, 5, 8, 10, 13, 15, 18, 20]
    assert 10 in due_steps("0.3333333333333333 epochs")


@pytest.mark.parametrize("text", PERIODS)
def test_resumed_trigger_is_due_at_the_same_steps(text):
    whole = due_steps(text)
    assert due_steps(text, last=17) + due_steps(text, first=18) == whole


@pytest.mark.parametrize("text", PERIODS)
@pytest.mark.parametrize("steps_per_epoch", [1, 7, 1000])
def test_next_check_step_never_misses_a_due_step(text, steps_per_epoch):
    cadence = PeriodicTrigger(parse_duration(text), steps_per_epoch)
    look = cadence.next_check_step(0)
    for step in range(1, 20_000):
        if cadence.is_due(step, 0, 0):
            assert step >= look
            look = cadence.next_check_step(step)


def test_next_check_step_is_not_after_a_step_that_is_due_but_for_a_rounding():
    cadence = PeriodicTrigger(parse_duration("0.07 epochs"), 100)
    assert cadence.period > 7
    assert cadence.is_due(7, 0, 0)
    assert cadence.next_check_step(0) == 7


@pytest.mark.parametrize("start", [10**6, 10**9])
def test_next_check_step_is_correct_at_large_step_counts(start):
    cadence = PeriodicTrigger(parse_duration("0.3 epochs"), 77)
    for step in range(start, start + 2000):
        look = cadence.next_check_step(step)
        assert not any(cadence.is_due(between, 0, 0) for between in range(step + 1, look))


def test_epochs_of_unknown_length_are_due_at_their_end():
    cadence = PeriodicTrigger(parse_duration("2 epochs"), None)
    ends = {7: 1, 12: 2, 20: 3, 21: 4}
    assert [step for step in range(30) if cadence.is_due(step, 0, 0, ends.get(step, 0))] == [12, 21]
    assert all(cadence.next_check_step(step) == step + 1 for step in range(30))
    steps = PeriodicTrigger(parse_duration("10 steps"), None)
    assert [step for step in range(30) if steps.is_due(step, 0, 0)] == [10, 20]


def test_items_are_due_at_the_step_that_crosses_a_multiple():
    cadence = PeriodicTrigger(parse_duration("100 items"), 10)
    assert [cadence.is_due(0, items, 0) for items in (60, 120, 180, 200, 450, 460)] == [
        *(False, True, False, True, True, False)
    ]


def test_items_that_pass_within_the_shortest_time_are_counted():
    trigger = PeriodicTrigger(parse_duration("10 items"), None, least_s=5)
    assert not trigger.is_due(1, items=12, seconds=1)
    assert not trigger.is_due(2, items=19, seconds=7)
    assert trigger.is_due(3, items=20, seconds=8)


def test_items_are_counted_from_the_progress_of_the_run():
    cadence = PeriodicTrigger(parse_duration("100 items"), 10, items=150)
    assert not cadence.is_due(0, 199, 0)
    assert cadence.is_due(0, 200, 0)


def test_minutes_are_due_once_after_a_pause_of_several_periods():
    cadence = PeriodicTrigger(parse_duration("1 minute"), None)
    assert [cadence.is_due(step, 0, 250.0 + step) for step in range(1, 4)] == [True, False, False]
    assert [cadence.is_due(step, 0, seconds) for step, seconds in ((4, 310.9), (5, 311.0))] == [
        False,
        True,
    ]


def test_minutes_are_counted_from_the_last_trigger():
    cadence = PeriodicTrigger(parse_duration("2 minutes"), 10, seconds=1000)
    times = (1119, 1120, 1200, 1240, 1300)
    assert [cadence.is_due(0, 0, seconds) for seconds in times] == [False, True, False, True, False]


@pytest.mark.parametrize("text", ["5 items", "5 minutes"])
def test_items_and_minutes_are_checked_at_each_step(text):
    assert PeriodicTrigger(parse_duration(text), 10).next_check_step(41) == 42
