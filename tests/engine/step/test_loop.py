import gc
import math
import time

import pytest
import torch
from torch import nn

from surestep.base.errors import NonFiniteError
from surestep.engine.state.state import StepCounts
from surestep.engine.step import gc as garbage
from tests import tiny
from tests.parts import see_log_points

X, Y = tiny.data()


def nonfinite_data(position):
    """Data whose sample at this position, in the stored order, makes the loss nonfinite."""
    x = X.clone()
    x[position] = torch.inf
    torch.manual_seed(0)
    return {"train": (x, Y), "model": nn.Linear(4, 3)}


ORDERED = {"data": {"shuffle": False}}


def points_of(session):
    points = []
    see_log_points(session, points.append)
    return points


@pytest.mark.parametrize(
    ("every", "steps"),
    [
        ("1 step", [[1], [2], [3], [4], [5], [6]]),
        ("2 steps", [[1, 2], [3], [4], [5, 6]]),
        ("100 steps", [[1, 2, 3], [4, 5, 6]]),
        ("1 epoch", [[1, 2, 3], [4, 5, 6]]),
        ("16 items", [[1, 2], [3], [4, 5], [6]]),
    ],
)
def test_log_points_are_at_the_interval_and_at_the_end_of_an_epoch(tmp_path, every, steps):
    with tiny.prepare(tmp_path, logging={"every": every}) as session:
        points = points_of(session)
        list(session.steps())
    found = [list(range(p.first_step, p.first_step + len(p.loss))) for p in points]
    assert found == steps


def test_log_points_contain_each_step(tmp_path):
    with tiny.prepare(tmp_path, logging={"every": "2 steps"}) as session:
        points = points_of(session)
        results = list(session.steps())
    for name in ("loss", "grad_norm"):
        read = [value for point in points for value in getattr(point, name)]
        assert read == pytest.approx([float(getattr(result, name)) for result in results])
    assert [rate for point in points for rate in point.lr] == [1e-3] * 6
    assert [point.items for point in points] == [16, 4, 8, 12]
    assert [point.samples for point in points] == [16, 4, 8, 12]
    assert [point.progress.step for point in points] == [2, 3, 4, 6]
    before = [place for point in points for place in point.progress_before]
    assert before == [result.progress_before for result in results]
    assert [point.epoch for point in points] == [0, 0, 1, 1]


@pytest.mark.parametrize("epochs", [0.5, 1, 2.5])
def test_run_has_the_steps_of_its_epochs(tmp_path, epochs):
    with tiny.prepare(tmp_path, epochs=epochs) as session:
        assert len(list(session.steps())) == max(1, round(3 * epochs))


def test_max_steps_repeats_the_data(tmp_path):
    with tiny.prepare(tmp_path, max_steps=7) as session:
        assert [result.epoch for result in session.steps()] == [0, 0, 0, 1, 1, 1, 2]
        assert session.state.progress == (7, 7, 2, 8, 48.0)


def test_clipped_steps_are_counted(tmp_path):
    with tiny.prepare(tmp_path, max_grad_norm=1e-6) as session:
        list(session.steps())
        assert session.state.counts.clipped == 6


def nan_for_large_targets(outputs, targets):
    """Cross-entropy, and NaN for targets above the classes: the gradients are finite."""
    nan = torch.where(targets < 3, 0.0, torch.nan).mean()
    return nn.functional.cross_entropy(outputs, targets % 3) + nan


def test_skipped_step_with_a_large_norm_is_not_counted_as_clipped(tmp_path):
    targets = torch.where(torch.arange(20) == 12, Y + 3, Y)
    parts = {"train": (X, targets), "loss": nan_for_large_targets}
    options = {"on_nonfinite": "skip", "max_grad_norm": 1e-6, **ORDERED}
    with tiny.prepare(tmp_path, parts, **options) as session:
        points = points_of(session)
        taken = [bool(result.took_step) for result in session.steps()]
    assert taken == [True, False, True] * 2
    assert all(1e-6 < norm < math.inf for point in points for norm in point.grad_norm)
    assert session.state.counts.clipped == 4


def test_leaving_and_reentering_the_loop_gives_the_same_weights(tmp_path):
    with tiny.prepare(tmp_path / "a") as whole:
        list(whole.steps())
    with tiny.prepare(tmp_path / "b") as broken:
        while broken.state.progress.step < 6:
            next(broken.steps())
    assert torch.equal(tiny.weights(whole.model), tiny.weights(broken.model))


def test_progress_that_is_loaded_between_steps_is_that_of_the_next_batch(tmp_path):
    """Its step may be the same, as after a load of the other weights of this step."""
    with tiny.prepare(tmp_path, max_steps=5) as session:
        places = []
        for result in session.steps():
            places.append((result.epoch, result.progress_before.position))
            if result.step == 2:
                session.state.progress = session.state.progress._replace(epoch=4, position=8)
    assert places == [(0, 0), (0, 8), (4, 8), (4, 16), (5, 0)]


class Clock:
    """The time, and what the parts of a run are said to take."""

    def __init__(self, monkeypatch):
        self.more, own = 0.0, time.perf_counter
        monkeypatch.setattr(time, "perf_counter", lambda: own() + self.more)


class SlowRows(torch.utils.data.Dataset):
    """Each sample takes 100 seconds."""

    def __init__(self, clock):
        self.clock = clock

    def __len__(self):
        return 20

    def __getitem__(self, index):
        self.clock.more += 100
        return X[index], Y[index]


def test_log_points_have_the_time_of_their_steps_and_the_part_that_waited_for_data(
    tmp_path, monkeypatch
):
    """An evaluation, a prediction and a save take no time of a step; your loop does."""
    clock = Clock(monkeypatch)

    def slow(outputs, targets):
        clock.more += 1e6
        return 1.0

    parts = {"train": SlowRows(clock), "val": tiny.data(4), "metrics": {"slow": slow}}
    data = {"num_workers": 0, "shuffle": False}
    with tiny.prepare(tmp_path, parts, data=data, logging={"every": "1 step"}) as session:
        points = points_of(session)
        for result in session.steps():
            clock.more += 10_000  # of your own code, which is in the time of the next log point
            if result.step == 2:
                session.evaluate()
                session.save()
                session.evaluate_checkpoint("val", "last")
    waits = [point.data_wait_s for point in points]
    assert waits == pytest.approx([800, 800, 400] * 2, abs=50)
    assert session.loop.log.data_wait_s == pytest.approx(4000, abs=50)
    taken = [point.seconds for point in points]
    assert taken == pytest.approx([800, 10_800, 10_400, 10_800, 10_800, 10_400], abs=50)


def test_manual_train_step_does_not_change_the_data_position(tmp_path):
    with tiny.prepare(tmp_path, max_steps=5) as session:
        positions = []
        for result in session.steps():
            positions.append(result.progress_before.position)
            if result.step == 2:
                session.train_step([(X[:3], Y[:3]), (X[3:4], Y[3:4])])
    assert positions == [0, 8, 16, 0]
    assert session.state.progress.step == 5


def nonfinite(session):
    with pytest.raises(NonFiniteError) as caught:
        list(session.steps())
    return caught.value


@pytest.mark.parametrize(
    "parts", [{}, {"optimizer": lambda groups: torch.optim.SGD(groups, lr=0.1)}]
)
def test_nonfinite_step_ends_the_run_in_the_state_before_it(tmp_path, parts):
    with tiny.prepare(tmp_path / "a", {**nonfinite_data(12), **parts}, **ORDERED) as session:
        error = nonfinite(session)
    with tiny.prepare(tmp_path / "b", {**nonfinite_data(12), **parts}, **ORDERED) as good:
        next(good.steps())
    assert error.step == 2
    assert not math.isfinite(error.loss)
    assert error.parameters == ["weight", "bias"]
    assert session.state.progress == good.state.progress
    assert torch.equal(tiny.weights(session.model), tiny.weights(good.model))
    assert "epoch 1 at position 8" in str(error)
    assert "on_nonfinite='skip'" in str(error)


@pytest.mark.parametrize("by_host", [True, False])
def test_update_of_an_average_that_the_failed_step_missed_is_not_counted(tmp_path, by_host):
    parts = {"optimizer": lambda groups: torch.optim.SGD(groups, lr=0.1)} if by_host else {}
    options = {"average": {"kind": "ema"}, **ORDERED}
    with tiny.prepare(tmp_path, {**nonfinite_data(12), **parts}, **options) as session:
        assert nonfinite(session).step == 2
        average = session.state.average
        assert (average.missed, average.n_updates(1)) == (0, 1)
        assert session.state.counts == StepCounts()


@pytest.mark.parametrize("average", ["none", "ema"])
def test_steps_after_the_nonfinite_one_are_not_counted(tmp_path, average):
    """One log point: a step left out, the nonfinite one, two left out and one without items."""
    x, y = tiny.data(80)
    x[16], y[40:48] = torch.inf, -100
    torch.manual_seed(0)
    parts = {"train": (x, y), "model": nn.Linear(4, 3)}
    options = {"average": {"kind": average}, "logging": {"every": "10 steps"}, **ORDERED}
    with tiny.prepare(tmp_path, parts, **options) as session:
        session.state.spikes.skipped_steps += [(2, 2), (4, 5)]
        points = points_of(session)
        assert nonfinite(session).step == 3
        counts, progress = session.state.counts, session.state.progress
        if average == "ema":
            assert session.state.average.missed == 1
    assert (progress.step, progress.steps_taken) == (2, 1)
    assert (counts.after_spike, counts.no_items, counts.skipped) == (1, 0, 1)
    assert [skip.step for point in points for skip in point.skips] == [2]


@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_nonfinite_step_and_those_after_it_leave_the_average_as_it_was(tmp_path, kind):
    """The device skips them; the host, which knows it only at the log point, averages on."""
    x, y = tiny.data(64)
    options = {"average": {"kind": kind}, "logging": {"every": "8 steps"}, "epochs": 1, **ORDERED}
    with tiny.prepare(tmp_path / "good", {"train": (x, y), "model": start()}, **options) as good:
        for result in good.steps():
            if result.step == 5:
                break
        expected = [value.clone() for value in good.state.average.tensors.values()]
    x = x.clone()
    x[40] = torch.inf  # in step 6 of 8
    with tiny.prepare(tmp_path / "bad", {"train": (x, y), "model": start()}, **options) as session:
        assert nonfinite(session).step == 6
        found = list(session.state.average.tensors.values())
    for mine, value in zip(found, expected, strict=True):
        assert torch.equal(mine, value)


def start():
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def test_only_steps_before_the_nonfinite_one_are_logged(tmp_path):
    with tiny.prepare(tmp_path, nonfinite_data(12), **ORDERED) as session:
        points = points_of(session)
        nonfinite(session)
    assert [len(point.loss) for point in points] == [1]


def test_run_goes_on_in_the_same_session_once_the_nonfinite_sample_is_corrected(tmp_path):
    parts, good = nonfinite_data(12), nonfinite_data(12)
    good["train"][0][12] = 0.5
    with tiny.prepare(tmp_path / "bad", parts, max_steps=5, **ORDERED) as session:
        nonfinite(session)
        parts["train"][0][12] = 0.5
        list(session.steps())
    assert session.state.progress.steps_taken == 5
    with tiny.prepare(tmp_path / "good", good, max_steps=5, **ORDERED) as never:
        list(never.steps())
    assert torch.equal(tiny.weights(session.model), tiny.weights(never.model))


def test_skipped_nonfinite_steps_are_counted(tmp_path):
    with tiny.prepare(tmp_path, nonfinite_data(12), on_nonfinite="skip", **ORDERED) as session:
        taken = [bool(result.took_step) for result in session.steps()]
    assert taken == [True, False, True] * 2
    assert session.state.counts.nonfinite == 2
    assert session.state.progress.steps_taken == 4


def test_each_skip_of_a_log_point_has_the_positions_of_its_samples(tmp_path):
    x = X.clone()
    x[[3, 17]] = torch.inf
    options = {"on_nonfinite": "skip", "epochs": 1, "logging": {"every": "9 steps"}, **ORDERED}
    with tiny.prepare(tmp_path, {"train": (x, Y), "model": start()}, **options) as session:
        points = points_of(session)
        list(session.steps())
    (point,) = points
    found = [(skip.step, skip.positions, skip.guilty) for skip in point.skips]
    assert found == [(1, (0, 8), (3,)), (3, (16, 20), (17,))]


def test_too_many_nonfinite_steps_fail(tmp_path):
    options = {"on_nonfinite": "skip", "max_nonfinite_steps": 1, **ORDERED}
    with tiny.prepare(tmp_path, nonfinite_data(12), **options) as session:
        error = nonfinite(session)
        assert error.step == 5
        assert session.state.counts.nonfinite == 1
    assert "To skip more than 1 such steps, set a larger --max-nonfinite-steps" in str(error)
    assert "--on-nonfinite skip" not in str(error), "it is set already"


@pytest.fixture
def collecting():
    """Enable the garbage collector as in a user's process."""
    gc.unfreeze()
    gc.enable()
    yield
    gc.disable()


@pytest.mark.parametrize("leaving", ["end", "break", "error", "close"])
def test_garbage_collector_is_restored_after_the_loop(tmp_path, leaving, collecting):
    with tiny.prepare(
        tmp_path, nonfinite_data(12) if leaving == "error" else {}, **ORDERED
    ) as session:
        steps = session.steps()
        next(steps)
        assert not gc.isenabled()
        if leaving == "break":
            steps.close()
        elif leaving == "end":
            list(steps)
        elif leaving == "error":
            with pytest.raises(NonFiniteError):
                list(steps)
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_garbage_is_collected_only_at_log_points(tmp_path, collecting, monkeypatch):
    seen = []
    own = gc.collect
    monkeypatch.setattr(garbage, "FULL_SHARE", math.inf)
    monkeypatch.setattr(gc, "collect", lambda *which: seen.append(which) or own(*which))
    stopped = []
    monkeypatch.setattr(gc, "disable", lambda: stopped.append("disable"))
    monkeypatch.setattr(gc, "enable", lambda: stopped.append("enable"))
    with tiny.prepare(tmp_path, max_steps=4, logging={"every": "2 steps"}) as session:
        steps = session.steps()
        next(steps)
        assert (stopped, len(seen)) == (["disable"], 1)
        assert gc.get_freeze_count() > 0
        next(steps)
        assert seen[-1] == (1,)
        list(steps)
    assert stopped == ["disable", "enable"]
    assert gc.get_freeze_count() == 0
    assert seen[-1] == (2,)
