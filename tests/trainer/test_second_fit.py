"""What happens the second time: fit() after Ctrl-C, two evaluations of a step, a late error."""

import gc
import random
import signal

import numpy as np
import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import NonFiniteError
from tests import tiny


class CtrlC(surestep.Callback):
    def on_step(self, state, result):
        if result.step == 2:
            signal.raise_signal(signal.SIGINT)


def test_fit_called_again_after_ctrl_c_trains_to_the_end(tmp_path):
    trainer = surestep.Trainer(
        tiny.task(), tiny.config(max_steps=6), run=tmp_path / "r", callbacks=[CtrlC()]
    )
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    assert trainer.session.run.status["status"] == "stopped"
    run = trainer.fit()
    assert (run.status["status"], run.last.step) == ("finished", 6)


class EvaluatingWhenDue(surestep.Callback):
    def on_step(self, state, result):
        return surestep.Request.EVALUATE


def test_repeated_evaluation_of_a_step_counts_once_for_early_stop(tmp_path):
    with tiny.prepare(tmp_path, max_steps=3) as session:
        next(session.steps())
        session.evaluate()
        before = session.state.best.since_best
        session.evaluate()
        assert session.state.best.since_best == before


def test_best_of_an_evaluation_by_a_callback_is_saved(tmp_path):
    task, config = tiny.task(val=tiny.task().train), tiny.config(max_steps=5)
    trainer = surestep.Trainer(task, config, run=tmp_path / "r", callbacks=[EvaluatingWhenDue()])
    run = trainer.fit()
    assert run.best.step == trainer.session.state.best.best_step
    assert run.best.metrics["val/loss"] == trainer.session.state.best.best


def test_evaluation_does_not_change_the_random_numbers_of_the_user(tmp_path):
    with tiny.prepare(tmp_path) as session:
        torch.manual_seed(3), np.random.seed(3), random.seed(3)
        expected = torch.rand(2), np.random.rand(), random.random()
        torch.manual_seed(3), np.random.seed(3), random.seed(3)
        session.evaluate()
        found = torch.rand(2), np.random.rand(), random.random()
    assert torch.equal(expected[0], found[0])
    assert expected[1:] == found[1:]


def test_error_that_ended_a_session_has_the_closing_error_as_a_note(tmp_path):
    bad = {"loss": lambda logits, y: logits.mean() * float("nan"), "loss_is_separable": False}
    session = tiny.prepare(tmp_path, bad)
    next(session.steps())
    own = ZeroDivisionError("mine")
    session.__exit__(ZeroDivisionError, own, None)
    assert "Step 1 was not finite" in own.__notes__[0]


def test_nonfinite_step_is_reported_at_the_latest_on_closing(tmp_path):
    bad = {"loss": lambda logits, y: logits.mean() * float("nan"), "loss_is_separable": False}
    with pytest.raises(NonFiniteError, match="Step 1 "), tiny.prepare(tmp_path, bad) as session:
        next(session.steps())


def test_run_folder_can_be_given_as_text(tmp_path):
    run = tiny.fit(tmp_path)
    assert surestep.Run(str(tmp_path)).best == run.best


def test_value_logged_twice_in_a_step_is_averaged(tmp_path):
    def loss(logits, y):
        surestep.log("twice", torch.tensor(1.0))
        surestep.log("twice", torch.tensor(3.0))
        return torch.nn.functional.cross_entropy(logits, y)

    run = tiny.fit(tmp_path, {"loss": loss}, micro_batch_size=3)
    logged = [event["logged"]["twice"] for event in run.events() if event["event"] == "steps"]
    assert all(value == pytest.approx(2.0) for values in logged for value in values)


def test_module_set_to_eval_mode_must_be_part_of_the_model(tmp_path):
    with pytest.raises(surestep.SurestepError, match="not a part of the model"):
        tiny.prepare(tmp_path, {"keep_eval": [torch.nn.Linear(2, 2)]})


def test_failing_metric_is_named_before_the_first_step(tmp_path):
    parts = {"metrics": {"hits": lambda logits, y: (logits.argmax(1) == y).mean()}}
    with pytest.raises(surestep.SurestepError, match=r"metrics\['hits'\] fails on the first batch"):
        tiny.prepare(tmp_path / "r", parts)
    assert not (tmp_path / "r").exists()


def test_run_without_a_checkpoint_can_restart_with_a_different_config(tmp_path):
    with tiny.prepare(tmp_path, max_steps=2) as session:
        assert session.run.find_checkpoint("last") is None
    with tiny.prepare(tmp_path, max_steps=3) as session:
        assert len(list(session.steps())) == 3
        assert "restart" in [event["event"] for event in session.run.events()]


def test_checkpoint_other_than_best_and_last_cannot_be_loaded(tmp_path):
    run = tiny.fit(tmp_path)
    with pytest.raises(surestep.SurestepError, match="Did you mean 'best'"):
        run.load_model(tiny.model(), which="bset")


def test_resume_with_different_data_is_rejected(tmp_path):
    with tiny.prepare(tmp_path / "run") as session:
        next(session.steps())
        session.save()
    with pytest.raises(surestep.SurestepError, match=r"train samples  20  ->  18"):
        tiny.prepare(tmp_path / "run", {"train": tiny.data(18)})


def test_folder_is_unlocked_once_its_session_is_garbage_collected(tmp_path):
    tiny.fit(tmp_path / "run")
    with pytest.raises(surestep.SurestepError, match="no test data"):
        surestep.Trainer(tiny.task(), tiny.config(), run=tmp_path / "run").predict("test")
    gc.collect()
    tiny.fit(tmp_path / "run")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: tiny.task(loss=nn.CrossEntropyLoss), r"a class. Write CrossEntropyLoss\(\)"),
        (lambda: tiny.task(metrics=[len]), "metrics is a list, not a dict"),
        (lambda: surestep.Trainer(tiny.task(), {"epochs": 1}), "config is a dict. Pass surestep"),
    ],
)
def test_value_of_the_wrong_type_is_rejected_with_a_clear_message(wrong, sentence):
    with pytest.raises(surestep.SurestepError, match=sentence):
        wrong()
