import pytest
import torch
from torch import nn

from surestep.base.errors import ConfigError, RunError
from tests import tiny

X, Y = tiny.data()


class Extra(nn.Linear):
    """Counts its forwards in training, in extra state."""

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


def test_leaving_the_loop_leaves_a_session_that_saves_and_goes_on(tmp_path):
    with tiny.prepare(tmp_path / "a") as whole:
        list(whole.steps())
    with tiny.prepare(tmp_path / "b", {"val": (X, Y)}) as session:
        for result in session.steps():
            if result.step == 2:
                break
        session.save()
        assert session.is_saved
        session.evaluate()
        assert not session.is_saved  # the checkpoint does not hold how the run stands now
        assert session.is_evaluated
        assert [result.step for result in session.steps()] == [3, 4, 5, 6]
        assert not session.is_saved
    assert torch.equal(tiny.weights(whole.model), tiny.weights(session.model))


@pytest.mark.parametrize("cut", [[8], [5, 3], [1, 1, 6]])
def test_train_step_takes_the_step_of_the_whole_batch(tmp_path, cut):
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
        assert session.state.place[:4] == (1, 1, 0, 0)


def test_train_step_without_a_batch_is_refused(tmp_path):
    with (
        tiny.prepare(tmp_path) as session,
        pytest.raises(ConfigError, match="got no micro-batches"),
    ):
        session.train_step([])


def test_an_unknown_part_lists_the_near_ones(tmp_path):
    with tiny.prepare(tmp_path, {"val": {"near": (X, Y)}}) as session:
        with pytest.raises(ConfigError, match=r"no data called 'nera'\. Did you mean 'near'"):
            session.evaluate("nera")
        with pytest.raises(ConfigError, match=r"no data called 'test'"):
            session.evaluate("test")


def test_measuring_a_part_does_not_move_the_standing(tmp_path):
    with tiny.prepare(tmp_path, {"val": (X, Y), "test": (X, Y)}) as session:
        session.evaluate("val")
        session.evaluate("test")
        assert session.state.standing.best is None
        session.evaluate()
        assert session.state.standing.best_step == 0
        assert session.is_best


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
def test_measuring_the_training_data_between_steps_changes_nothing(tmp_path, train):
    with tiny.prepare(tmp_path / "a", {"train": train}) as whole:
        list(whole.steps())
    with tiny.prepare(tmp_path / "b", {"train": train}) as session:
        for _ in session.steps():
            session.evaluate("train")
    assert torch.equal(tiny.weights(whole.model), tiny.weights(session.model))


def test_measuring_with_saved_weights_puts_everything_back(tmp_path):
    model = Extra()
    with tiny.prepare(tmp_path, {"model": model, "val": (X, Y)}) as session:
        steps = session.steps()
        next(steps)
        session.save()
        list(steps)
        before, count = tiny.weights(model), model.count
        session.measure("val", "last")
        assert torch.equal(tiny.weights(model), before)
        assert model.count == count


@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
def test_a_closed_session_puts_the_users_modes_back(tmp_path, mode):
    model = nn.Sequential(nn.Dropout(), nn.Linear(4, 3)).train(mode)
    model[0].train(not mode)
    with tiny.prepare(tmp_path, {"model": model, "val": (X, Y)}) as session:
        list(session.steps())
        session.evaluate()
    assert [module.training for module in model.modules()] == [mode, not mode, mode]


def test_a_session_that_is_closed_twice_is_closed(tmp_path):
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
def test_a_closed_session_does_nothing_and_says_so(tmp_path, use):
    session = tiny.prepare(tmp_path, {"val": (X, Y)})
    session.close()
    with pytest.raises(RunError, match=r"is closed: .* Go on with another: prepare\(.*fit\(\)"):
        use(session)
    assert session.state.place.step == 0
    assert not list(tmp_path.glob("checkpoints/*"))


def test_drop_last_drops_the_smaller_batch_of_each_epoch(tmp_path):
    with tiny.prepare(tmp_path, data={"drop_last": True}) as session:
        results = list(session.steps())
    assert [(result.epoch, result.samples) for result in results] == [
        *((0, 8), (0, 8), (1, 8), (1, 8))
    ]


def test_the_seconds_of_a_run_are_those_of_its_steps(tmp_path):
    with tiny.prepare(tmp_path) as session:
        list(session.steps())
        steps = [event["seconds"] for event in session.run.events() if event["event"] == "steps"]
        assert session.timed.seconds == pytest.approx(sum(steps), abs=1e-3)


def test_a_run_that_was_ended_by_its_own_loop_says_so_and_is_finished(tmp_path):
    with tiny.prepare(tmp_path) as session:
        for _ in session.steps():
            pass
        session.save()
        session.end("finished")
    assert session.run.status["reason"] == "session.end('finished')"
    with tiny.prepare(tmp_path) as again:
        assert again.finished
