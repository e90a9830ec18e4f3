"""Models with losses in training and predictions in evaluation keep laws 1 to 3."""

import pytest
import torch
from torch.utils.data import DataLoader

import surestep
from surestep.base.errors import ConfigError, DataError, NonFiniteError, Preempted, TaskError
from surestep.trainer.planning import plan_task
from tests.laws.support.detector import Detector, Images, Recall, collate

SEED = 3


def detector():
    torch.manual_seed(1)
    return Detector()


def task(**parts):
    usual = {
        "model": detector(),
        "loss": "model in training",
        "train": Images(),
        "collate_fn": collate,
    }
    return surestep.Task(**{**usual, **parts})


def evaluated_task(**parts):
    return task(**{"val": Images(5, seed=1), "metrics": {"recall": Recall()}, **parts})


def config(**options):
    optim = surestep.Optim(name="sgd", lr=0.05, weight_decay=0.0)
    usual = {
        "max_steps": 9,
        "batch_size": 4,
        "seed": SEED,
        "max_grad_norm": "off",
        "data": {"shuffle": False},
        "logging": {"progress": "quiet", "every": 1},
    }
    return surestep.Config(**{**usual, "optim": optim, **options})


def plan(made, wanted):
    return plan_task(made, wanted).plan


def fit(folder, made, *, callbacks=(), **options):
    run = surestep.Trainer(made, config(**options), run=folder, callbacks=callbacks).fit()
    return made.model, run


def same(one, other):
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def plain_loop(steps, size=4):
    """Train as torchvision's reference script does, with the random numbers of each step."""
    model, images = detector(), Images()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    logged, step = [], 0
    model.train()
    while step < steps:
        for first in range(0, len(images), size):
            batch = [images[index] for index in range(first, min(first + size, len(images)))]
            if step == steps:
                break
            torch.manual_seed(surestep.derive_seed("model", SEED, step, first))
            losses = model(*collate(batch))
            loss = sum(losses.values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            logged.append({name: float(loss.detach()) for name, loss in losses.items()})
            step += 1
    return model, logged


class Logged(surestep.Callback):
    """Records the named losses and the samples of each step."""

    def __init__(self):
        self.losses, self.samples = [], []

    def on_step(self, state, result):
        found = {}
        for name, loss, _ in result.logged:
            found[name] = found.get(name, 0.0) + float(loss)
        self.losses.append(found)
        self.samples.append(result.samples)


@pytest.mark.parametrize("loaded", [False, True])
def test_training_equals_the_plain_loop_over_the_sum_of_losses(tmp_path, loaded):
    data = DataLoader(Images(), 4, collate_fn=collate) if loaded else Images()
    parts = {"train": data, **({"collate_fn": None} if loaded else {})}
    options = {"batch_size": None, "data": {}} if loaded else {}
    seen = Logged()
    model, _ = fit(tmp_path / "run", task(**parts), callbacks=[seen], **options)
    expected, losses = plain_loop(9)
    for one, other in zip(model.state_dict().values(), expected.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert seen.samples == [4, 4, 2] * 3
    assert seen.losses == [pytest.approx(loss, rel=1e-5) for loss in losses]


def test_resumed_run_is_bitwise_identical(tmp_path):
    class PauseAtFour(surestep.Callback):
        def on_step(self, state, result):
            return surestep.Request.PAUSE if result.step == 4 else None

    options = {"validation": {"metric": "recall_any"}, "data": {"shuffle": True}}
    expected, _ = fit(tmp_path / "whole", evaluated_task(), **options)
    with pytest.raises(Preempted):
        fit(tmp_path / "interrupted", evaluated_task(), callbacks=[PauseAtFour()], **options)
    resumed, _ = fit(tmp_path / "interrupted", evaluated_task(), **options)
    assert same(resumed, expected)


def test_evaluations_compute_metrics_and_do_not_change_the_run(tmp_path):
    model, run = fit(
        tmp_path / "run", evaluated_task(), validation={"metric": "recall_any", "batch_size": 2}
    )
    plain, _ = fit(tmp_path / "plain", task())
    assert same(model, plain)
    recall = Recall()
    model.eval()
    for image, target in Images(5, seed=1):
        recall.update(model([image]), [target])
    expected = {f"val/recall_{name}": float(value) for name, value in recall.compute().items()}
    assert run.last.metrics == pytest.approx(expected)
    assert expected["val/recall_images"] == 5


def test_plan_reports_that_micro_batches_change_the_numbers():
    made = plan(task(), config(micro_batch_size=2))
    assert "averages its losses over each micro-batch" in made.reason("batch_layout")
    declared = task(items=lambda batch: len(batch[0]))
    made = plan(declared, config(micro_batch_size=2))
    assert "averages its losses" not in made.reason("batch_layout")


def test_split_batch_is_the_mean_over_micro_batches_weighted_by_samples(tmp_path):
    seen = Logged()
    fit(tmp_path / "run", task(), callbacks=[seen], max_steps=1, micro_batch_size=3)
    model, images = detector().train(), Images()
    expected = {"loss_classifier": 0.0, "loss_box_reg": 0.0}
    for rows in (range(3), range(3, 4)):
        torch.manual_seed(surestep.derive_seed("model", SEED, 0, rows.start))
        for name, loss in model(*collate([images[row] for row in rows])).items():
            expected[name] += float(loss.detach()) * len(rows) / 4
    assert seen.losses[0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("parts", "options", "message"),
    [
        ({}, {}, "Set validation.metric to one of val/recall"),
        ({"metrics": {}}, {}, "Pass Task"),
        ({}, {"validation": {"metric": "loss"}}, "Measured: val/recall"),
        ({}, {"validation": {"metric": "recall_all"}}, "Did you mean 'recall_any'"),
        ({}, {"validation": {"metric": "recall"}}, "Did you mean 'recall_any'"),
    ],
)
def test_run_without_a_metric_to_monitor_is_rejected(tmp_path, parts, options, message):
    with pytest.raises((ConfigError, TaskError), match=message):
        fit(tmp_path / "run", evaluated_task(**parts), **options)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"batched": True, "collate_fn": None}, "give collate_fn"),
        ({"batch_transform": lambda x, y: (x, y)}, "batch_transform"),
        ({"step": lambda manual_step: None}, "step"),
        ({"teacher": detector}, "teacher"),
    ],
)
def test_parts_that_conflict_with_training_only_losses_are_rejected(parts, message):
    with pytest.raises(TaskError, match=message):
        task(**parts)


def test_items_as_text_are_rejected():
    with pytest.raises(TaskError, match="function of the batch"):
        plan(task(items="tokens"), config())


class Bad(Detector):
    """A model whose loss is NaN for image 5."""

    def forward(self, images, targets=None):
        found = super().forward(images, targets)
        if self.training and any(int(target["image_id"]) == 5 for target in targets):
            found["loss_classifier"] = found["loss_classifier"] * float("nan")
        return found


@pytest.mark.parametrize("parts", [{}, {"inputs": lambda batch: ({"images": batch[0]}, batch[1])}])
def test_sample_of_a_nonfinite_loss_is_named(tmp_path, parts):
    with pytest.raises(NonFiniteError, match=r"Sample.*\b5\b"):
        fit(tmp_path / "run", task(model=Bad(), **parts))


def test_tuple_batch_with_a_model_loss_suggests_the_right_declaration(tmp_path):
    with pytest.raises(DataError, match="loss='model in training'"):
        fit(tmp_path / "run", task(loss="model"))


def test_name_of_the_declaration_is_suggested():
    with pytest.raises(TaskError, match="Did you mean 'model in training'"):
        task(loss="model_in_training")


class Predicting(Detector):
    """A model that has no losses in training."""

    def forward(self, images, targets=None):
        training = self.training
        self.eval()
        try:
            return super().forward(images)
        finally:
            self.train(training)


class Vector(Detector):
    """A model whose losses are not scalars."""

    def forward(self, images, targets=None):
        found = super().forward(images, targets)
        return (
            {name: tensor.repeat(2) for name, tensor in found.items()} if self.training else found
        )


@pytest.mark.parametrize(
    ("kind", "message"), [(Predicting, "it returned a list"), (Vector, r"shape \(2,\)")]
)
def test_training_output_of_the_model_is_checked_before_the_run(tmp_path, kind, message):
    with pytest.raises(TaskError, match=message):
        fit(tmp_path / "run", task(model=kind()))


def test_custom_loop_counts_the_images_of_its_batches(tmp_path):
    with surestep.prepare(task(), config(), run=tmp_path / "run") as session:
        result = session.train_step([collate([Images()[0], Images()[1]])])
        assert (result.samples, result.items) == (2, 2)
