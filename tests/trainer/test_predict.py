import numpy as np
import pytest
import torch

import surestep
from surestep.base.errors import CheckpointError, ConfigError
from surestep.record.run import Run
from surestep.trainer.evaluator import predict_run
from tests import tiny

X, Y = tiny.data()
SPLIT = {"train": (X[:10], Y[:10]), "val": (X[10:16], Y[10:16]), "test": (X[16:], Y[16:])}
SAID = {"epochs": 3, "validation": {"metric": "loss", "mode": "max"}}
EMA = {"average": {"kind": "ema", "decay": 0.5}}


def expected(run, which, x=X[16:]):
    net = tiny.model(seed=9)
    run.load_model(net, which)
    with torch.no_grad():
        return net.eval()(x).numpy()


@pytest.mark.parametrize("which", ["best", "last", "average"])
@pytest.mark.parametrize(("split", "x"), [("test", X[16:]), ("val", X[10:16]), ("train", X[:10])])
def test_closed_run_predicts_as_plain_torch_with_its_weights(tmp_path, which, split, x):
    run = tiny.fit(tmp_path, SPLIT, **SAID, **EMA)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    task, config = tiny.task(**SPLIT), tiny.config(**SAID, **EMA)
    saved, found = predict_run(run, task, config, split=split, which=which)
    assert saved == run.saved(which)
    np.testing.assert_allclose(found["output"], expected(run, which, x), rtol=1e-5, atol=1e-6)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_predictions_of_best_last_and_average_differ(tmp_path):
    run = tiny.fit(tmp_path, SPLIT, **SAID, average={"kind": "ema", "decay": 0.9})
    said = [expected(run, which) for which in ("best", "last", "average")]
    assert (said[1] != said[2]).any()


def test_trainer_predicts_with_a_checkpoint_and_restores_the_model(tmp_path):
    trainer = surestep.Trainer(tiny.task(**SPLIT), tiny.config(**SAID), run=tmp_path)
    run = trainer.fit()
    weights = tiny.weights(trainer.session.model)
    best, last = trainer.predict("test"), trainer.predict("test", "last")
    np.testing.assert_allclose(best["output"], expected(run, "best"), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(last["output"], expected(run, "last"), rtol=1e-5, atol=1e-6)
    assert (best["output"] != last["output"]).any()
    assert torch.equal(tiny.weights(trainer.session.model), weights)


@pytest.mark.parametrize("average", [False, True])
def test_session_predicts_with_the_weights_it_evaluates(tmp_path, average):
    with tiny.prepare(tmp_path, SPLIT, **SAID, **(EMA if average else {})) as session:
        for _ in range(3):
            next(session.steps())
        found = session.predict("test")
        logits, targets = torch.tensor(found["output"]), torch.tensor(found["target"])
        loss = float(torch.nn.functional.cross_entropy(logits, targets))
        assert session.evaluate("test")["test/loss"] == pytest.approx(loss, rel=1e-6)


def test_prediction_between_steps_changes_no_weight(tmp_path):
    parts = {**SPLIT, "model": lambda: tiny.model(dropout=0.5)}
    with tiny.prepare(tmp_path / "a", parts) as session:
        for _ in session.steps():
            session.predict("test")
            session.predict("test", mc_dropout=2)
        watched = tiny.weights(session.model)
    with tiny.prepare(tmp_path / "b", parts) as session:
        for _ in session.steps():
            pass
        assert torch.equal(tiny.weights(session.model), watched)


def test_mc_dropout_is_the_same_in_an_open_and_a_closed_run(tmp_path):
    parts = {**SPLIT, "model": tiny.model(dropout=0.5)}
    trainer = surestep.Trainer(tiny.task(**parts), tiny.config(**SAID), run=tmp_path)
    run = trainer.fit()
    open_one = trainer.predict("test", mc_dropout=4)
    parts = {**SPLIT, "model": tiny.model(dropout=0.5)}
    _, closed = predict_run(run, tiny.task(**parts), tiny.config(**SAID), mc_dropout=4)
    assert open_one.arrays.keys() == closed.arrays.keys()
    for name in closed.arrays:
        assert (open_one[name] == closed[name]).all()


def test_prediction_progress_shows_the_number_of_samples(tmp_path):
    run, done = tiny.fit(tmp_path, SPLIT, **SAID), []
    task, config = tiny.task(**SPLIT), tiny.config(**SAID)
    predict_run(run, task, config, split="train", watch=lambda *each: done.append(each))
    assert done == [(8, 10), (10, 10)]


@pytest.mark.parametrize(
    ("said", "error", "message"),
    [
        ({"split": "tset"}, ConfigError, r"no tset data\. Did you mean 'test'"),
        ({"which": "average"}, CheckpointError, "has no averaged weights"),
        ({"which": "newest"}, ConfigError, "'newest' is not known"),
        ({"mc_dropout": 1}, ConfigError, "with 1 passes has no spread"),
    ],
)
def test_invalid_prediction_request_is_rejected(tmp_path, said, error, message):
    tiny.fit(tmp_path, SPLIT, **SAID)
    with pytest.raises(error, match=message):
        predict_run(Run(tmp_path), tiny.task(**SPLIT), tiny.config(**SAID), **said)
    with tiny.prepare(tmp_path, SPLIT, **SAID) as session:
        args = {"split": "test", **said}
        with pytest.raises(error, match=message):
            session.predict(args.pop("split"), **args)
