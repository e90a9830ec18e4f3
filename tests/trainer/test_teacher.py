import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import surestep
from surestep.base.errors import TaskError
from surestep.record.events import read_events
from tests import tiny
from tests.laws.support import plain
from tests.laws.support.tasks import mlp, rows, session_of

X, Y = rows()
DISTIL = surestep.losses.distillation(temperature=3.0, alpha=0.7)


def a_teacher(seed=5):
    torch.manual_seed(seed)
    return nn.Sequential(nn.BatchNorm1d(10), nn.Linear(10, 3), nn.Dropout(0.5))


def task(**parts):
    usual = {"model": mlp(), "loss": DISTIL, "train": (X, Y), "teacher": a_teacher()}
    return surestep.Task(**{**usual, **parts})


def trained(folder, *, micro_batch_size=16, **parts):
    with session_of(
        task(**parts), folder, max_steps=8, batch_size=16, micro_batch_size=micro_batch_size
    ) as session:
        for _ in session.steps():
            pass
        session.save()
    return session.model


def test_training_with_a_teacher_equals_a_plain_loop(tmp_path):
    teacher, student = a_teacher().eval(), mlp()
    with torch.no_grad():
        said = teacher(X)
    both = torch.cat([Y[:, None].float(), said], 1)

    def mean_loss(outputs, targets):
        soft = F.kl_div(
            F.log_softmax(outputs / 3, 1), F.softmax(targets[:, 1:] / 3, 1), reduction="batchmean"
        )
        return 0.7 * 9 * soft + 0.3 * F.cross_entropy(outputs, targets[:, 0].long())

    batches = plain.shuffled(torch.utils.data.TensorDataset(X, both), batch_size=16)
    plain.usual_loop(student, mean_loss, batches, steps=8)
    assert plain.distance(student, trained(tmp_path / "whole")) <= 1e-6
    assert plain.distance(student, trained(tmp_path / "cut", micro_batch_size=5)) <= 1e-6


def test_teacher_is_not_changed(tmp_path):
    teacher = a_teacher()
    before = copy.deepcopy(teacher.state_dict())
    trained(tmp_path, teacher=teacher)
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())
    assert teacher.training
    assert teacher[2].training
    assert all(each.requires_grad and each.grad is None for each in teacher.parameters())


def test_teacher_is_not_saved(tmp_path):
    trained(tmp_path / "with")
    saved = surestep.Run(tmp_path / "with")
    student = mlp()
    saved.load_model(student, "last")  # strict: an extra tensor would be rejected


def test_teacher_can_be_built_by_a_function_and_is_used_in_evaluation(tmp_path):
    with session_of(task(teacher=a_teacher, val=(X, Y)), tmp_path, epochs=1) as session:
        measured = session.evaluate("val")["val/loss"]
    with torch.no_grad():
        said = a_teacher().eval()(X)
    assert measured == pytest.approx(float(DISTIL(mlp()(X), (Y, said)).detach()), rel=1e-6)


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        (lambda: {"loss": "model"}, "A teacher needs a loss that takes its outputs"),
        (lambda: {"teacher": lambda: 3}, "The function given as teacher returned a int"),
        (
            lambda: {"teacher": nn.Linear(10, 4)},
            r"Both models must return logits of",
        ),
        (
            lambda: {"teacher": nn.Sequential(nn.Linear(10, 3), nn.Softmax(1))},
            "The teacher's outputs are probabilities",
        ),
        (lambda: shared(), "The teacher shares parameters with the model"),
    ],
)
def test_teacher_that_does_not_fit_is_rejected(tmp_path, parts, sentence):
    with pytest.raises(TaskError, match=sentence):
        session_of(task(**parts()), tmp_path / "run", epochs=1)


def shared():
    net = mlp()
    return {"model": net, "teacher": nn.Sequential(net)}


def test_any_loss_can_use_the_outputs_of_the_teacher(tmp_path):
    def loss(outputs, targets):
        _, said = targets
        return (outputs - said).square().mean(1).mean()

    run = tiny.fit(
        tmp_path / "run",
        {"model": tiny.model(), "teacher": tiny.model(1), "loss": loss, "train": tiny.data()},
    )
    assert run.status["status"] == "finished"


def test_both_loss_terms_are_logged_and_add_up_to_the_loss(tmp_path):
    trained(tmp_path / "run")
    events = read_events(tmp_path / "run" / "events.jsonl")
    points = [event for event in events if event["event"] == "steps"]
    assert sum(len(point["loss"]) for point in points) == 8
    for point in points:
        terms = zip(point["logged"]["soft"], point["logged"]["hard"], strict=True)
        assert point["loss"] == pytest.approx([soft + hard for soft, hard in terms], rel=1e-5)
