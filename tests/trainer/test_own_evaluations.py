"""What evaluations, saves and the end of your own loop leave in the state and the run folder."""

import time

import pytest
import torch

import surestep
from surestep.base.errors import NonFiniteError
from surestep.record.checkpoint import writer
from tests import tiny

X, Y = tiny.data()
ORDERED = {"data": {"shuffle": False}}


class Seen(surestep.Callback):
    """Notes the steps that are evaluated, and requests a save after the second."""

    def __init__(self):
        self.steps = []

    def on_evaluate(self, state, metrics):
        self.steps.append(state.progress.step)
        return surestep.Request.SAVE if len(self.steps) == 2 else None


def events(run, kind):
    return [event for event in run.events() if event["event"] == kind]


def test_step_is_evaluated_once_for_the_best_metric_and_its_checkpoint_has_the_metrics(
    tmp_path, monkeypatch
):
    write = writer.write_checkpoint

    def write_slowly(*args, **kwargs):
        time.sleep(0.02)  # longer than a step
        return write(*args, **kwargs)

    monkeypatch.setattr(writer, "write_checkpoint", write_slowly)
    seen, task = Seen(), tiny.task(val=tiny.data(5, seed=1))
    session = surestep.prepare(task, tiny.config(), run=tmp_path / "r", callbacks=[seen])
    with session:
        for result in session.steps():
            if result.step == 1:
                session.save()
                first = session.evaluate()
                assert session.evaluate() == first  # counts once
                session.evaluate("train")  # counts never
                state = session.state.best
                assert (state.latest_step, state.since_best, state.is_due) == (1, 0, False)
                session.save()
                assert session.run.last.metrics == first
            if result.step == 2:
                session.state.best.is_due = True
                second = session.evaluate()
            if result.step == 3:
                third = session.evaluate_checkpoint("val", "last")
        assert not session.state.best.is_due
    assert seen.steps == [1, 2]
    assert session.run.best.step in (1, 2)
    assert third == second  # the save of step 2 was requested in its evaluation
    evaluated = events(session.run, "evaluation")
    assert [event["step"] for event in evaluated] == [1, 1, 1, 2, 2]
    assert [event["step"] for event in events(session.run, "checkpoint")] == [1, 1, 2]
    assert evaluated[-1]["which"] == "last"


def test_evaluation_reads_first_whether_the_steps_before_it_were_finite(tmp_path):
    x = X.clone()
    x[12] = torch.inf  # in step 2
    parts, logging = {"train": (x, Y), "val": (X, Y)}, {"every": "100 steps"}
    with tiny.prepare(tmp_path, parts, logging=logging, **ORDERED) as session:
        for result in session.steps():
            if result.step == 2:
                break
        with pytest.raises(NonFiniteError, match="Step 2 was not finite"):
            session.evaluate()
        assert session.state.progress.step == 1
        assert session.state.best.latest_step is None
    assert events(session.run, "evaluation") == []


@pytest.mark.parametrize("weights", ["average", "raw"])
def test_prediction_and_evaluation_use_the_weights_that_the_plan_says(tmp_path, weights):
    average = {"kind": "ema", "decay": 0.5, "start": "0%"}
    options = {"average": average, "validation": {"weights": weights}, "optim": {"lr": 0.1}}
    with tiny.prepare(tmp_path, {"val": (X, Y)}, **options) as session:
        list(session.steps())
        raw = {name: value.clone() for name, value in session.model.state_dict().items()}
        used = raw if weights == "raw" else dict(session.state.average.tensors)
        found = torch.from_numpy(session.predict("val")["output"])
        loss = session.evaluate()["val/loss"]
        assert session.state.best.measured == ("weights" if weights == "raw" else "average")
        assert all(torch.equal(raw[name], v) for name, v in session.model.state_dict().items())
    model = tiny.model(seed=3)
    model.load_state_dict(used)
    torch.testing.assert_close(found, model.eval()(X))
    torch.testing.assert_close(torch.tensor(loss), torch.nn.functional.cross_entropy(found, Y))


def test_loop_that_is_left_reports_its_last_steps_and_those_without_items(tmp_path):
    y = torch.where(torch.arange(20) // 8 == 1, -100, Y)  # in step 2 of 3
    logging = {"every": "100 steps"}
    with tiny.prepare(tmp_path, {"train": (X, y)}, logging=logging, **ORDERED) as session:
        for result in session.steps():
            if result.step == 2:
                break
    run = session.run
    assert [(event["first"], len(event["loss"])) for event in events(run, "steps")] == [(1, 2)]
    (skipped,) = run.skipped.steps
    assert (skipped["step"], skipped["reason"]) == (2, "no_items")
    assert run.status["steps_taken"] == 1


def test_custom_batches_are_logged_at_the_interval_without_a_position(tmp_path):
    with tiny.prepare(tmp_path, logging={"every": "2 steps"}, max_steps=9) as session:
        next(session.steps())
        for _ in range(3):
            session.train_step([(X[:4], Y[:4])])
        shown = [(event["first"], len(event["loss"])) for event in events(session.run, "steps")]
        assert shown == [(1, 2), (3, 2)]
        assert session.state.progress == (4, 4, 0, 8, 20.0)


def test_run_that_was_out_of_patience_at_its_checkpoint_trains_no_further(tmp_path):
    parts, values = {"val": (X[:2], Y[:2])}, iter([0, 3.0, 2.0, 1.0, 4.0, 5.0])
    parts["metrics"] = {"score": surestep.whole_set(lambda outputs, targets: next(values))}
    options = {"epochs": 5, "early_stop": {"patience": 2}}
    options["validation"] = {"metric": "score", "mode": "max", "every": "1 epoch"}
    with tiny.prepare(tmp_path, parts, **options) as session:
        for result in session.steps():
            if result.step % 3 == 0:
                session.evaluate()
                session.save()
            if result.step == 9:
                break
        assert session.state.best.since_best == 2
    run = tiny.fit(tmp_path, parts, **options)
    assert (run.status["step"], run.status["status"]) == (9, "finished")
    assert run.status["reason"].startswith("early stop: val/score did not improve on 3 in 2")
