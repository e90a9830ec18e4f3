"""When a run starts to evaluate, how much of its data it uses, and how long it may take."""

import math
import time
from types import SimpleNamespace

import pytest
import torch

import surestep
from surestep.base.errors import ConfigError, Preempted
from surestep.engine.step import deadline
from surestep.trainer import prepare
from tests import tiny


def fit(folder, task=None, *, callbacks=(), **options):
    task = task or tiny.task(val=tiny.data(5))
    return surestep.Trainer(task, tiny.config(**options), run=folder, callbacks=callbacks).fit()


def events_of(run, kind):
    return [event for event in run.events() if event["event"] == kind]


def weights_of(run):
    model = tiny.model(seed=9)
    run.load_model(model, which="last")
    return {name: value.tolist() for name, value in model.state_dict().items()}


@pytest.fixture
def clock(monkeypatch):
    """The clock of `max_time`: it stands still unless a test moves it."""
    clock = SimpleNamespace(now=0.0)
    times = {"perf_counter": time.perf_counter, "strftime": time.strftime}
    for module in (deadline, prepare):
        stopped = SimpleNamespace(monotonic=lambda: clock.now, **times)
        monkeypatch.setattr(module, "time", stopped)
    return clock


def test_run_paused_by_max_time_resumes_bitwise_identically(tmp_path, clock):
    class Slow(surestep.Callback):
        def on_step(self, state, result):
            clock.now += 2.5

    options = {"max_steps": 60, "checkpoint": {"every": "60 steps"}}
    whole = fit(tmp_path / "whole", **options)
    for step in (24, 48):
        with pytest.raises(Preempted):
            fit(tmp_path / "run", callbacks=[Slow()], max_time="1 minute", **options)
        status = surestep.Run(tmp_path / "run").status
        assert (status["status"], status["resumable"]) == ("stopped", True)
        assert (status["reason"], status["step"]) == ("max_time is over", step)
    run = fit(tmp_path / "run", callbacks=[Slow()], max_time="1 minute", **options)
    assert run.status["status"] == "finished"
    assert weights_of(run) == weights_of(whole)


def test_max_time_interrupts_an_evaluation(tmp_path, clock):
    class SlowModel(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.evaluated = tiny.model(), []

        def forward(self, x):
            if self.training:
                self.evaluated.clear()
            else:
                self.evaluated.append(1)  # a number would be restored
                clock.now += 6.0
            return self.inner(x)

    task = tiny.task(model=SlowModel(), val=tiny.data(40))
    options = {"validation": {"every": "1 step", "batch_size": 1}}
    with pytest.raises(Preempted, match="max_time is over: Stopped after step 1; saved as"):
        fit(tmp_path / "run", task, max_steps=3, max_time="1 minute", **options)
    assert 0 < len(task.model.evaluated) <= 10


def test_evaluation_on_start_uses_the_first_weights_and_changes_no_number(tmp_path):
    plain = fit(tmp_path / "plain", max_steps=4)
    started = fit(tmp_path / "started", max_steps=4, validation={"on_start": True})
    first, *_ = events_of(started, "evaluation")
    assert first["step"] == 0
    with torch.no_grad():
        x, y = tiny.data(5)
        loss = torch.nn.functional.cross_entropy(tiny.model()(x), y)
    assert first["metrics"]["val/loss"] == pytest.approx(float(loss), rel=1e-6)
    assert weights_of(started) == weights_of(plain)


def test_resumed_run_does_not_evaluate_on_start_again(tmp_path):
    options = {"max_steps": 6, "validation": {"on_start": True}, "checkpoint": {"every": "2 steps"}}

    class PauseAtTwo(surestep.Callback):
        def on_step(self, state, result):
            return surestep.Request.PAUSE if result.step == 2 else None

    with pytest.raises(Preempted):
        fit(tmp_path / "run", callbacks=[PauseAtTwo()], **options)
    run = fit(tmp_path / "run", **options)
    assert [event["step"] for event in events_of(run, "evaluation")].count(0) == 1


def never_better(outputs, targets):
    return torch.tensor(1.0)


@pytest.mark.parametrize(
    ("start", "last"), [(None, 3), ("4 steps", 6), ("2 epochs", 6), ("20 steps", 12)]
)
def test_early_stop_counts_evaluations_after_its_start(tmp_path, start, last):
    # 20 samples in batches of 10: two steps an epoch. The first evaluation sets the best.
    task = tiny.task(val=tiny.data(5), metrics={"accuracy": never_better})
    run = fit(
        tmp_path / "run",
        task,
        max_steps=12,
        batch_size=10,
        validation={"every": "1 step", "metric": "accuracy"},
        early_stop={"patience": 2, "start": start},
    )
    assert run.status["step"] == last


def test_better_metric_before_the_start_of_early_stop_is_the_best(tmp_path):
    values = iter([0.9, 0.9, *[0.5] * 20])  # the start-up checks consume the first
    accuracy = surestep.whole_set(lambda *_: next(values))
    task = tiny.task(val=tiny.data(5), metrics={"accuracy": accuracy})
    run = fit(
        tmp_path / "run",
        task,
        max_steps=12,
        validation={"every": "1 step", "metric": "accuracy"},
        early_stop={"patience": 2, "start": "5 steps"},
    )
    assert run.best.step == 1
    assert run.status["step"] == 7


def test_early_stop_start_without_patience_is_rejected(tmp_path):
    with pytest.raises(
        ConfigError, match=r"start=.* requires early_stop.patience, but .* Set early_stop"
    ):
        fit(tmp_path / "run", max_steps=2, early_stop={"start": "2 steps"})


def test_limit_train_batches_trains_on_the_first_batches_of_each_epoch(tmp_path):
    seen = []

    class Batches(surestep.Callback):
        def on_batch(self, state, batch):
            seen.append((batch.epoch, batch.position, batch.end, batch.ends_epoch))

    run = fit(
        tmp_path / "run", callbacks=[Batches()], epochs=3, batch_size=6, limit_train_batches=2
    )
    places = [(0, 6, False), (6, 12, True)]
    assert seen == [(epoch, *place) for epoch in range(3) for place in places]
    assert run.status["step"] == 6
    unlimited = fit(tmp_path / "all", max_steps=2, batch_size=6)
    limited = fit(tmp_path / "first", max_steps=2, batch_size=6, limit_train_batches=2)
    assert weights_of(limited) == weights_of(unlimited)


def test_limit_above_the_number_of_batches_has_no_effect(tmp_path):
    run = fit(tmp_path / "run", epochs=2, batch_size=6, limit_train_batches=100)
    assert run.status["step"] == 2 * math.ceil(20 / 6)


@pytest.mark.parametrize(("kind", "workers"), [("stream", 0), ("dataset", 0), ("dataset", 2)])
def test_run_with_limited_epochs_resumes_bitwise_identically(tmp_path, kind, workers):
    def task():
        x, y = tiny.data(30)
        data = [(x[i], y[i]) for i in range(30)]
        return tiny.task(train=(lambda: iter(data)) if kind == "stream" else data)

    class PauseAtFour(surestep.Callback):
        def on_step(self, state, result):
            return surestep.Request.PAUSE if result.step == 4 else None

    options = {
        "max_steps": 9,
        "batch_size": 5,
        "limit_train_batches": 3,
        "data": {"num_workers": workers},
    }
    whole = fit(tmp_path / "whole", task(), **options)
    with pytest.raises(Preempted):
        fit(tmp_path / "cut", task(), callbacks=[PauseAtFour()], **options)
    assert weights_of(fit(tmp_path / "cut", task(), **options)) == weights_of(whole)
    assert whole.status["epoch"] == 3


def test_limit_val_batches_limits_a_run_and_not_a_requested_evaluation(tmp_path, capsys):
    x, y = tiny.data(12)
    task = tiny.task(val=(x, y))
    options = {"max_steps": 2, "limit_val_batches": 2, "validation": {"batch_size": 3}}
    run = fit(tmp_path / "run", task, **options, logging={"progress": "plain"})
    (event,) = events_of(run, "evaluation")
    model = tiny.model()
    run.load_model(model, which="last")
    with torch.no_grad():
        loss = float(torch.nn.functional.cross_entropy(model(x[:6]), y[:6]))
    assert event["metrics"]["val/loss"] == pytest.approx(loss, rel=1e-6)
    assert "step 2 on 2 batches: val/loss" in capsys.readouterr().err
    with torch.no_grad():
        loss = float(torch.nn.functional.cross_entropy(model(x), y))
    config = tiny.config(**options, logging={"progress": "plain"})
    trainer = surestep.Trainer(task, config, run=tmp_path / "run")
    for _ in range(2):
        found = trainer.evaluate("val", "last")
        assert found["val/loss"] == pytest.approx(loss, rel=1e-6)
        assert "last checkpoint, step 2, 12 samples of val: val/loss" in capsys.readouterr().err
    trainer.session.evaluate()  # of the run
    assert "step 2 on 2 batches: val/loss" in capsys.readouterr().err
    trainer.close()


@pytest.mark.parametrize("part", ["test", "train"])
def test_limit_val_batches_does_not_limit_test_and_training_data(tmp_path, part):
    parts = {"val": tiny.data(12), "test": tiny.data(20, seed=1)}
    options = {"limit_val_batches": 2, "validation": {"batch_size": 3}}
    with tiny.prepare(tmp_path / "run", parts, **options) as session:
        found = session.evaluate(part)
    x, y = tiny.data() if part == "train" else parts["test"]
    with torch.no_grad():
        loss = float(torch.nn.functional.cross_entropy(tiny.model()(x), y))
    assert found[f"{part}/loss"] == pytest.approx(loss, rel=1e-6)


def test_limit_val_batches_without_validation_data_is_rejected(tmp_path):
    with pytest.raises(ConfigError, match="limit_val_batches=2 requires validation data"):
        fit(tmp_path / "run", tiny.task(), max_steps=2, limit_val_batches=2)


def test_single_sample_batch_beyond_the_limit_is_not_a_batchnorm_error(tmp_path):
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(tiny.FEATURES), tiny.model())
    task = tiny.task(model=net, train=tiny.data(11))
    run = fit(tmp_path / "run", task, epochs=2, batch_size=5, limit_train_batches=2)
    assert run.status["step"] == 4


def test_epochs_of_an_unsized_stream_with_a_limit_name_the_steps_to_set(tmp_path):
    x, y = tiny.data(8)
    task = tiny.task(train=lambda: iter(zip(x, y, strict=True)))
    with pytest.raises(ConfigError, match=r"is a stream without one. Set max_steps=15 instead"):
        fit(tmp_path / "run", task, epochs=3, limit_train_batches=5)


def test_pause_requested_in_on_start_comes_before_the_first_step(tmp_path):
    class PauseFirst(surestep.Callback):
        def on_start(self, state):
            return surestep.Request.PAUSE

    for _ in range(2):
        with pytest.raises(Preempted):
            fit(tmp_path / "run", callbacks=[PauseFirst()], max_steps=3)
    assert fit(tmp_path / "run", max_steps=3).status["step"] == 3
