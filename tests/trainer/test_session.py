import time

import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import ConfigError, NonFiniteError, RunError
from surestep.record.run import Run
from tests import tiny

X, Y = tiny.data()


class Extra(nn.Linear):
    """Counts its training forwards in extra state."""

    def __init__(self):
        super().__init__(4, 3)
        self.count = 0

    def forward(self, x):
        self.count += self.training
        return super().forward(x)

    def get_extra_state(self):
        return {"count": self.count}

    def set_extra_state(self, state):
        self.count = state["count"]


def test_session_saves_and_continues_after_its_loop_is_left(tmp_path):
    with tiny.prepare(tmp_path / "a") as whole:
        list(whole.steps())
    with tiny.prepare(tmp_path / "b", {"val": (X, Y)}) as session:
        for result in session.steps():
            if result.step == 2:
                break
        session.save()
        assert session.saving.is_current
        session.evaluate()
        assert not session.saving.is_current  # the checkpoint lacks the current progress of the run
        assert session.evaluations.is_done
        assert [result.step for result in session.steps()] == [3, 4, 5, 6]
        assert not session.saving.is_current
    assert torch.equal(tiny.weights(whole.model), tiny.weights(session.model))


@pytest.mark.parametrize("cut", [[8], [5, 3], [1, 1, 6]])
def test_train_step_gives_the_update_of_the_full_batch(tmp_path, cut):
    plain = tiny.model()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    nn.CrossEntropyLoss()(plain(X[:8]), Y[:8]).backward()
    torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
    optimizer.step()
    with tiny.prepare(tmp_path, optim={"name": "sgd", "lr": 0.5}) as session:
        batches = list(zip(X[:8].split(cut), Y[:8].split(cut), strict=True))
        result = session.train_step(batches)
        torch.testing.assert_close(tiny.weights(session.model), tiny.weights(plain))
        assert (result.items, result.samples) == (8, 8)
        assert session.state.progress[:4] == (1, 1, 0, 0)


def test_train_step_without_a_batch_is_rejected(tmp_path):
    with (
        tiny.prepare(tmp_path) as session,
        pytest.raises(ConfigError, match="got no micro-batches"),
    ):
        session.train_step([])


def test_unknown_split_is_rejected_with_the_nearest_names(tmp_path):
    with tiny.prepare(tmp_path, {"val": {"near": (X, Y)}}) as session:
        with pytest.raises(ConfigError, match=r"The task has no nera data\. Did you mean 'near'"):
            session.evaluate("nera")
        with pytest.raises(ConfigError, match=r"The task has no test data"):
            session.evaluate("test")


def test_evaluation_of_one_split_does_not_change_the_best_metric(tmp_path):
    with tiny.prepare(tmp_path, {"val": (X, Y), "test": (X, Y)}) as session:
        session.evaluate("val")
        session.evaluate("test")
        assert session.state.best.best is None
        session.evaluate()
        assert session.state.best.best_step == 0


def test_evaluation_of_a_checkpoint_measures_all_and_leaves_the_limit_of_the_run(tmp_path):
    def count(outputs, targets):
        time.sleep(0.01)
        return torch.tensor(float(len(targets)))

    parts = {"val": (X, Y), "metrics": {"samples": surestep.whole_set(count)}}
    options = {"limit_val_batches": 2, "validation": {"batch_size": 4}}
    with tiny.prepare(tmp_path, parts, **options) as session:
        session.save()
        measured = [
            session.evaluate()["val/samples"],
            session.evaluate_checkpoint("val", "last")["val/samples"],
            session.evaluate()["val/samples"],
        ]
    assert measured == [8, len(Y), 8]
    seconds = [event["seconds"] for event in session.run.events() if event["event"] == "evaluation"]
    assert len(seconds) == 3
    assert min(seconds) >= 0.01


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return len(Y)

    def __getitem__(self, index):
        return X[index], Y[index]


@pytest.mark.parametrize(
    "train",
    [
        (X, Y),
        Rows(),
        torch.utils.data.DataLoader(
            Rows(), 8, shuffle=True, num_workers=1, persistent_workers=True
        ),
    ],
    ids=["tensors", "rows", "workers"],
)
def test_evaluation_of_the_training_data_between_steps_changes_no_weight(tmp_path, train):
    with tiny.prepare(tmp_path / "a", {"train": train}) as whole:
        list(whole.steps())
    with tiny.prepare(tmp_path / "b", {"train": train}) as session:
        for _ in session.steps():
            session.evaluate("train")
    assert torch.equal(tiny.weights(whole.model), tiny.weights(session.model))


def test_evaluation_with_saved_weights_restores_the_state(tmp_path):
    model = Extra()
    with tiny.prepare(tmp_path, {"model": model, "val": (X, Y)}) as session:
        steps = session.steps()
        next(steps)
        session.save()
        list(steps)
        before, count = tiny.weights(model), model.count
        session.evaluate_checkpoint("val", "last")
        assert torch.equal(tiny.weights(model), before)
        assert model.count == count


@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
def test_closed_session_restores_the_train_mode_of_the_model(tmp_path, mode):
    model = nn.Sequential(nn.Dropout(), nn.Linear(4, 3)).train(mode)
    model[0].train(not mode)
    with tiny.prepare(tmp_path, {"model": model, "val": (X, Y)}) as session:
        list(session.steps())
        session.evaluate()
    assert [module.training for module in model.modules()] == [mode, not mode, mode]


def test_session_can_be_closed_twice(tmp_path):
    session = tiny.prepare(tmp_path)
    session.close()
    session.close()
    tiny.prepare(tmp_path).close()


@pytest.mark.parametrize(
    "use",
    [
        lambda session: next(iter(session.steps())),
        lambda session: session.train_step([(X[:8], Y[:8])]),
        lambda session: session.evaluate(),
        lambda session: session.save(),
    ],
    ids=["steps", "train_step", "evaluate", "save"],
)
def test_closed_session_rejects_every_use(tmp_path, use):
    session = tiny.prepare(tmp_path, {"val": (X, Y)})
    session.close()
    with pytest.raises(RunError, match=r"is closed: .* Open a new one with prepare\(.*fit\(\)"):
        use(session)
    assert session.state.progress.step == 0
    assert not list(tmp_path.glob("checkpoints/*"))


def test_drop_last_drops_the_smaller_batch_of_each_epoch(tmp_path):
    with tiny.prepare(tmp_path, data={"drop_last": True}) as session:
        results = list(session.steps())
    assert [(result.epoch, result.samples) for result in results] == [
        *((0, 8), (0, 8), (1, 8), (1, 8))
    ]


def test_seconds_of_a_run_are_the_time_of_its_steps(tmp_path):
    with tiny.prepare(tmp_path) as session:
        list(session.steps())
        steps = [event["seconds"] for event in session.run.events() if event["event"] == "steps"]
        assert session.timed.seconds == pytest.approx(sum(steps), abs=1e-3)


def test_run_ended_by_a_custom_loop_reports_it_and_is_finished(tmp_path):
    with tiny.prepare(tmp_path) as session:
        for _ in session.steps():
            pass
        session.save()
        session.end("finished")
    assert session.run.status["reason"] == "session.end('finished')"
    with tiny.prepare(tmp_path) as again:
        assert again.finished


def status_of(path):
    status = Run(path).status
    return status["status"], status.get("reason"), status.get("resumable")


def test_custom_loop_that_takes_all_steps_leaves_a_finished_run(tmp_path):
    with tiny.prepare(tmp_path) as session:
        list(session.steps())
        session.save()
    assert status_of(tmp_path) == ("finished", "all steps are done", None)
    assert Run(tmp_path).status["step"] == 6
    with tiny.prepare(tmp_path) as again:
        assert again.finished
    assert status_of(tmp_path) == ("finished", "all steps are done", None)


def test_unsaved_steps_of_a_custom_loop_are_trained_again(tmp_path):
    for _ in range(2):
        with tiny.prepare(tmp_path) as session:
            assert len(list(session.steps())) == 6
        assert status_of(tmp_path) == ("finished", "all steps are done", None)


def test_run_that_was_stopped_has_no_finding_about_its_end(tmp_path):
    """A finished one that skipped most of its steps has: its schedule did not reach its end."""
    x, y = tiny.data(40)
    y[8:] = -100
    schedule, data = {"schedule": {"name": "cosine"}}, {"data": {"shuffle": False}}
    for name, last in (("finished", 5), ("stopped", 4)):
        with tiny.prepare(
            tmp_path / name, {"train": (x, y)}, epochs=1, **schedule, **data
        ) as session:
            for result in session.steps():
                if result.step == last:
                    break
        rules = {finding["rule"] for finding in session.run.status["findings"]}
        assert (session.run.status["status"], "SS307" in rules) == (name, name == "finished")


def test_custom_loop_left_early_leaves_a_resumable_stopped_run(tmp_path):
    with tiny.prepare(tmp_path) as session:
        for result in session.steps():
            if result.step == 4:
                break
        session.save()
    assert status_of(tmp_path) == ("stopped", "the session was closed after step 4 of 6", True)
    last = list(Run(tmp_path).events())[-1]
    assert (last["event"], last["status"], last["step"]) == ("end", "stopped", 4)
    with tiny.prepare(tmp_path) as again:
        assert [result.step for result in again.steps()] == [5, 6]


def test_run_on_batches_of_the_caller_is_never_finished(tmp_path):
    with tiny.prepare(tmp_path, epochs=None, max_steps=1) as session:
        session.train_step([(X[:8], Y[:8])])
    assert status_of(tmp_path) == ("stopped", "the session was closed after step 1 of 1", False)


def test_callback_that_stops_a_loop_finishes_the_run(tmp_path):
    class StopAtTwo(surestep.Callback):
        def on_step(self, state, result):
            return surestep.Request.STOP if result.step == 2 else None

    with surestep.prepare(
        tiny.task(), tiny.config(), run=tmp_path, callbacks=[StopAtTwo()]
    ) as session:
        assert len(list(session.steps())) == 2
    assert status_of(tmp_path) == ("finished", "a callback asked to stop", None)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ZeroDivisionError("by hand"), ("failed", "ZeroDivisionError: by hand", None)),
        (KeyboardInterrupt(), ("stopped", "KeyboardInterrupt after step 1 of 6", False)),
        (SystemExit(3), ("stopped", "SystemExit after step 1 of 6", False)),
    ],
    ids=["error", "ctrl-c", "exit"],
)
def test_error_raised_in_a_custom_loop_is_stored_in_the_status(tmp_path, error, expected):
    def train():
        with tiny.prepare(tmp_path) as session:
            next(iter(session.steps()))
            raise error

    with pytest.raises(type(error)):
        train()
    assert status_of(tmp_path) == expected


def test_nonfinite_step_detected_while_closing_fails_the_run(tmp_path):
    x = X.clone()
    x[-1, 0] = 1e38
    config = {"epochs": None, "max_steps": 1, "logging": {"every": "1000 steps"}}
    with (
        pytest.raises(NonFiniteError),
        tiny.prepare(tmp_path, {"model": Overflow()}, **config) as session,
    ):
        session.train_step([(x, Y)])
    status, reason, _ = status_of(tmp_path)
    assert status == "failed"
    assert reason.startswith("Step 1 was not finite")


class Overflow(nn.Module):
    """Not finite if an input is large."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(torch.where(x > 1e30, torch.inf, x))


def test_end_status_set_by_a_custom_loop_is_preserved(tmp_path):
    with tiny.prepare(tmp_path) as session:
        next(iter(session.steps()))
        session.end("failed", reason="the caller said so")
    assert status_of(tmp_path) == ("failed", "the caller said so", None)
