import pytest
import torch
from torch.nn import functional

import surestep
from surestep.recipes import distill
from surestep.recipes.load import load

SMALL = {"width": 2, "teacher_width": 4, "teacher_steps": 20, "samples": 40}


def prepared(folder, epochs=3, **options):
    recipe = load("distill")
    config = recipe.config.replace_options({"epochs": epochs, "logging.progress": "quiet"})
    return surestep.prepare(recipe.build({**SMALL, **options}, config), config, run=folder)


def test_teacher_is_not_trained_and_not_saved(tmp_path):
    teacher = distill.train_teacher(4, 20)
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    with prepared(tmp_path / "r") as session:
        student = [each.clone() for each in session.model.parameters()]
        for _ in session.steps():
            pass
        session.save()
        assert not any(map(torch.equal, student, session.model.parameters()))
        saved = distill.network(2)
        session.run.load_model(saved, "last")  # only the student's names and shapes
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())


@pytest.mark.parametrize(("temperature", "alpha"), [(4.0, 0.9), (2.0, 0.3), (1.0, 0.0)])
def test_loss_is_the_weighted_sum_of_both_terms(tmp_path, temperature, alpha):
    with prepared(tmp_path / "r", temperature=temperature, alpha=alpha) as session:
        measured = session.evaluate("test")["test/loss"]
        x, y = session.task.test
        with torch.no_grad():
            student, teacher = session.model.eval()(x), distill.train_teacher(4, 20).eval()(x)
    soft = functional.kl_div(
        (student / temperature).log_softmax(1),
        (teacher / temperature).softmax(1),
        reduction="batchmean",
    )
    wanted = alpha * temperature**2 * soft + (1 - alpha) * functional.cross_entropy(student, y)
    assert measured == pytest.approx(float(wanted), rel=1e-5)


def test_student_agrees_more_with_its_teacher_after_training(tmp_path):
    def agree(model):
        x, _ = session.task.test
        with torch.no_grad():
            named = model.eval()(x).argmax(dim=1)
            return float(
                (named == distill.train_teacher(8, 60).eval()(x).argmax(dim=1)).float().mean()
            )

    small = {"width": 4, "teacher_width": 8, "teacher_steps": 60, "samples": 320}
    with prepared(tmp_path / "r", 8, **small, alpha=1.0) as session:  # no label counts
        before = agree(session.model)
        for _ in session.steps():
            pass
        assert agree(session.model) > max(0.4, before + 0.2)


def test_teacher_is_not_trained_on_val_and_test(monkeypatch):
    x, y = distill.images()
    x[1200:] = torch.nan
    monkeypatch.setattr(distill, "images", lambda: (x, y))
    teacher = distill.train_teacher.__wrapped__(2, 40)
    assert all(value.isfinite().all() for value in teacher.state_dict().values())


def test_splits_share_no_images():
    recipe = load("distill")
    task = recipe.build(SMALL | {"samples": 1200}, recipe.config)
    x, _ = distill.images()
    assert torch.equal(torch.cat([part[0] for part in (task.train, task.val, task.test)]), x)
