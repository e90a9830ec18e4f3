import pytest
import torch

from surestep.base.errors import ConfigError
from surestep.engine.schedule.groups import GroupSchedule
from tests.engine.schedule.test_curves import shape


def optimizer_of(kind=torch.optim.Adam, **options):
    first, second = (torch.zeros(1, requires_grad=True) for _ in range(2))
    groups = [{"params": [first], "lr": 0.5}, {"params": [second], "lr": 0.1}]
    return kind(groups, **options)


def halved(steps_taken):
    return 0.5**steps_taken


def warmed_up(steps_taken):
    return steps_taken / 10


def rates(optimizer):
    return [group["lr"] for group in optimizer.param_groups]


def test_cycled_momentum_is_written_to_momentum_or_betas():
    adam = optimizer_of(betas=(0.9, 0.99))
    schedule = GroupSchedule(adam, halved, shape(name="one_cycle"))
    adam.load_state_dict(adam.state_dict())  # makes new groups
    schedule.write(0)
    assert adam.param_groups[0]["betas"] == (0.95, 0.99)
    sgd = optimizer_of(torch.optim.SGD, momentum=0.9)
    GroupSchedule(sgd, halved, shape(name="one_cycle")).write(0)
    assert sgd.param_groups[1]["momentum"] == 0.95
    rprop = optimizer_of(torch.optim.Rprop)
    with pytest.raises(ConfigError, match="cycle_momentum=False"):
        GroupSchedule(rprop, halved, shape(name="one_cycle"))
    GroupSchedule(rprop, halved, shape(name="one_cycle", cycle_momentum=False)).write(1)
    assert rates(rprop) == [0.25, 0.05]


def test_checkpoint_has_the_momentum_without_that_of_the_cycle():
    adam, sgd = optimizer_of(betas=(0.9, 0.99)), optimizer_of(torch.optim.SGD, momentum=0.8)
    schedule, other = (GroupSchedule(o, halved, shape(name="one_cycle")) for o in (adam, sgd))
    for one in (schedule, other):
        one.write(0)
    assert schedule.unscheduled(0, "betas", (0.95, 0.5)) == (0.9, 0.5)
    assert schedule.unscheduled(0, "momentum", 0.3) == 0.3  # of an optimizer with both
    assert other.unscheduled(1, "momentum", 0.95) == 0.8
    assert other.unscheduled(1, "dampening", 0.95) == 0.95
    plain = GroupSchedule(adam, halved)
    assert plain.unscheduled(0, "betas", (0.95, 0.5)) == (0.95, 0.5)


def test_rate_that_is_set_counts_as_a_factor_for_its_group():
    sgd = optimizer_of(torch.optim.SGD)
    schedule = GroupSchedule(sgd, halved)
    schedule.write(1)
    sgd.param_groups[0]["lr"] *= 0.2
    schedule.write(3)
    assert rates(sgd) == [0.25 * 0.2 / 4, 0.1 / 8]
    sgd.param_groups[0]["lr"] = 0.0
    schedule.write(4)
    assert rates(sgd) == [0.0, 0.1 / 16]
    sgd.param_groups[0]["lr"] = 1.0
    schedule.write(5)
    assert rates(sgd) == [0.5, 0.1 / 32]


def test_rate_that_is_set_where_the_schedule_is_zero_is_the_peak():
    sgd = optimizer_of(torch.optim.SGD)
    schedule = GroupSchedule(sgd, warmed_up)
    schedule.write(0)
    sgd.param_groups[0]["lr"] = 2.0
    schedule.write(1)
    assert rates(sgd) == pytest.approx([0.2, 0.01])


def test_group_with_a_peak_of_zero_takes_a_rate():
    sgd = optimizer_of(torch.optim.SGD)
    sgd.param_groups[1]["lr"] = 0.0
    schedule = GroupSchedule(sgd, halved)
    schedule.write(1)
    assert rates(sgd) == [0.25, 0.0]
    sgd.param_groups[1]["lr"] = 0.3
    schedule.write(2)
    assert rates(sgd) == [0.125, 0.15]


def test_momentum_that_is_set_stays():
    adam = optimizer_of(betas=(0.9, 0.99))
    schedule = GroupSchedule(adam, halved, shape(name="one_cycle"))
    schedule.write(0)
    adam.param_groups[1]["betas"] = (0.5, 0.9)
    adam.param_groups[0]["betas"] = (adam.param_groups[0]["betas"][0], 0.8)
    schedule.write(10)
    first, second = (group["betas"] for group in adam.param_groups)
    assert second == (0.5, 0.9)
    assert first[1] == 0.8
    assert 0.85 < first[0] < 0.95


@pytest.mark.parametrize("pending", [False, True])
def test_changes_are_loaded_into_a_new_schedule(pending):
    def make():
        adam = optimizer_of(betas=(0.9, 0.99))
        return adam, GroupSchedule(adam, halved, shape(name="one_cycle"))

    adam, schedule = make()
    schedule.start(0)
    schedule.write(1)
    assert [schedule.changes(index) for index in (0, 1)] == [{}, {}]
    adam.param_groups[0] |= {"lr": 0.07, "betas": (0.3, 0.99)}
    if not pending:
        schedule.write(2)
    other, resumed = make()
    resumed.load([schedule.changes(index) for index in (0, 1)])
    resumed.start(2)
    for steps_taken in (2, 3):
        schedule.write(steps_taken)
        resumed.write(steps_taken)
        for group, again in zip(adam.param_groups, other.param_groups, strict=True):
            assert (group["lr"], group["betas"]) == (again["lr"], again["betas"])


@pytest.mark.parametrize("more", [1, 4])
def test_code_that_scales_the_rate_at_every_start_counts_once_with_another_peak(more):
    """A change of the rate during the run is kept although the peak has changed."""
    sgd, other = optimizer_of(torch.optim.SGD), optimizer_of(torch.optim.SGD)
    for group in other.param_groups:
        group["lr"] *= more
    schedule, resumed = GroupSchedule(sgd, halved), GroupSchedule(other, halved)
    sgd.param_groups[0]["lr"] *= 0.4
    schedule.start(0)
    schedule.write(0)
    sgd.param_groups[0]["lr"] *= 0.25
    schedule.write(1)
    resumed.load([schedule.changes(index) for index in (0, 1)])
    other.param_groups[0]["lr"] *= 0.4
    resumed.start(2)
    resumed.write(2)
    assert rates(other) == pytest.approx([0.5 * more * 0.4 * 0.25 / 4, 0.1 * more / 4])


def test_peak_that_is_set_in_mid_run_is_kept_beside_a_rate_that_every_start_sets():
    sgd, other = optimizer_of(torch.optim.SGD), optimizer_of(torch.optim.SGD)
    schedule, resumed = (GroupSchedule(one, lambda steps_taken: 1.0) for one in (sgd, other))
    sgd.param_groups[0]["lr"] = 0.2
    schedule.start(0)
    schedule.write(0)
    sgd.param_groups[0]["lr"] = 0.5
    resumed.load([schedule.changes(index) for index in (0, 1)])
    other.param_groups[0]["lr"] = 0.2
    resumed.start(1)
    resumed.write(1)
    assert rates(other) == [0.5, 0.1]


@pytest.mark.parametrize("set_rate", [lambda lr: 0.2, lambda lr: 0.4 * lr])
def test_code_that_sets_a_rate_at_every_start_counts_once(set_rate):
    sgd = optimizer_of(torch.optim.SGD)
    schedule = GroupSchedule(sgd, halved)
    sgd.param_groups[0]["lr"] = set_rate(sgd.param_groups[0]["lr"])
    schedule.start(0)
    schedule.write(0)
    schedule.write(1)
    sgd.param_groups[0]["lr"] *= 0.3
    schedule.write(2)
    other = optimizer_of(torch.optim.SGD)
    resumed = GroupSchedule(other, halved)
    resumed.load([schedule.changes(index) for index in (0, 1)])
    other.param_groups[0]["lr"] = set_rate(other.param_groups[0]["lr"])
    resumed.start(3)
    assert rates(other) == rates(sgd)  # of the last step
    schedule.write(3)
    resumed.write(3)
    assert rates(other) == rates(sgd) == pytest.approx([0.2 * 0.3 / 8, 0.1 / 8])


def test_rate_that_is_set_in_mid_run_to_the_peak_is_kept_on_resume():
    sgd, other = optimizer_of(torch.optim.SGD), optimizer_of(torch.optim.SGD)
    schedule, resumed = GroupSchedule(sgd, halved), GroupSchedule(other, halved)
    schedule.write(2)
    sgd.param_groups[0]["lr"] = 0.5
    resumed.load([schedule.changes(index) for index in (0, 1)])
    resumed.write(3)
    assert rates(other) == [0.5 / 2, 0.1 / 8]


def test_other_rate_at_the_start_of_a_resumed_run_is_the_new_peak():
    sgd, other = optimizer_of(torch.optim.SGD), optimizer_of(torch.optim.SGD)
    schedule, resumed = GroupSchedule(sgd, halved), GroupSchedule(other, halved)
    schedule.write(2)
    sgd.param_groups[0]["lr"] *= 0.3
    resumed.load([schedule.changes(index) for index in (0, 1)])
    other.param_groups[0]["lr"] = 0.8
    resumed.write(3)
    assert rates(other) == [0.8 / 8, 0.1 / 8]


def test_rates_change_with_a_peak_that_is_different_on_resume():
    sgd = optimizer_of(torch.optim.SGD)
    schedule = GroupSchedule(sgd, halved)
    schedule.write(0)
    sgd.param_groups[0]["lr"] = 0.25
    other = optimizer_of(torch.optim.SGD)
    for group in other.param_groups:
        group["lr"] *= 4
    resumed = GroupSchedule(other, halved)
    resumed.load([schedule.changes(index) for index in (0, 1)])
    resumed.write(1)
    assert rates(other) == [0.5, 0.2]


def test_groups_show_the_last_rate_after_a_rollback():
    sgd = optimizer_of(torch.optim.SGD)
    schedule = GroupSchedule(sgd, halved)
    schedule.write(0)
    sgd.param_groups[0]["lr"] *= 0.5
    schedule.write(1)
    saved = [schedule.changes(index) for index in (0, 1)]
    sgd.param_groups[0]["lr"] = 7.0  # after the checkpoint
    schedule.write(2)
    schedule.load(saved)
    schedule.show(2)
    assert rates(sgd) == [0.125, 0.05]
    schedule.write(2)
    assert rates(sgd) == [0.0625, 0.025]


def test_step_that_is_repeated_changes_nothing():
    sgd = optimizer_of(torch.optim.SGD)
    schedule = GroupSchedule(sgd, halved)
    for steps_taken in (0, 1, 2):
        schedule.write(steps_taken)
    before = rates(sgd)
    with schedule.preserve():
        schedule.write(1)
    for group, lr in zip(sgd.param_groups, before, strict=True):
        group["lr"] = lr  # as the snapshot of the optimizer restores it
    assert [schedule.changes(index) for index in (0, 1)] == [{}, {}]
    schedule.write(2)
    assert rates(sgd) == before


@pytest.mark.parametrize("steps_taken", [0, 1, 5])
def test_values_at_a_start_are_those_of_the_config_or_of_the_last_step(steps_taken):
    adam, running = (optimizer_of(betas=(0.9, 0.99)) for _ in range(2))
    schedule, before = (
        GroupSchedule(a, warmed_up, shape(name="one_cycle")) for a in (adam, running)
    )
    schedule.start(steps_taken)
    for step in range(steps_taken):
        before.write(step)
    for group, expected in zip(adam.param_groups, running.param_groups, strict=True):
        assert (group["lr"], group["betas"]) == (expected["lr"], expected["betas"])


def test_code_that_sets_a_momentum_at_every_start_counts_once():
    """A change of the momentum during the run is kept."""

    def begin(saved=None, steps_taken=0):
        adam = optimizer_of(betas=(0.9, 0.99))
        schedule = GroupSchedule(adam, halved, shape(name="one_cycle"))
        if saved is not None:
            schedule.load(saved)
        adam.param_groups[0]["betas"] = (0.5, 0.99)
        schedule.start(steps_taken)
        schedule.write(steps_taken)
        assert adam.param_groups[1]["betas"][0] > 0.8
        return adam, schedule

    adam, schedule = begin()
    assert adam.param_groups[0]["betas"] == (0.5, 0.99)
    unchanged = [schedule.changes(index) for index in (0, 1)]
    adam.param_groups[0]["betas"] = (0.7, 0.99)
    schedule.write(1)
    changed = [schedule.changes(index) for index in (0, 1)]
    for saved, expected in ((unchanged, 0.5), (changed, 0.7)):
        adam, _ = begin(saved, 2)
        assert adam.param_groups[0]["betas"] == (expected, 0.99)
