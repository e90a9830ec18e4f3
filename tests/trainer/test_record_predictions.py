"""A run keeps the predictions of its newest and its best evaluation, in a small file."""

import base64
import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import surestep
from surestep.record.predictions import MOST_BYTES, NAME, read_predictions
from surestep.trainer import record_predictions
from surestep.trainer.record_predictions import class_names, fit_size
from tests import tiny

VAL = tiny.data(30, seed=1)
REPORT = {"report": {"samples": 3}}


def evaluations_of(run):
    return read_predictions(run.path)["evaluations"]


def test_predictions_are_those_of_predict(tmp_path):
    run = tiny.fit(tmp_path / "run", {"val": VAL}, **REPORT)
    newest, *_ = evaluations_of(run)
    (found,) = newest["sets"]
    model = tiny.model().eval()
    run.load_model(model, "last")
    outputs = model(VAL[0]).detach()
    losses = nn.functional.cross_entropy(outputs, VAL[1], reduction="none")
    worst = [found["samples"][index] for index in found["worst"]]
    assert [one["index"] for one in worst] == losses.argsort(descending=True)[:3].tolist()
    assert [one["loss"] for one in worst] == pytest.approx(
        losses.sort().values.tolist()[:-4:-1], rel=1e-5
    )
    assert found["right"] == int((outputs.argmax(1) == VAL[1]).sum())
    assert (found["set"], found["kind"], found["n_samples"]) == ("val", "classes", 30)
    assert (newest["step"], newest["measured"], newest["left_out"]) == (6, "weights", [])


def test_best_evaluation_stays_when_a_worse_one_follows(tmp_path):
    with tiny.prepare(tmp_path / "run", {"val": VAL}, max_steps=3, **REPORT) as session:
        session.evaluate()
        steps = session.steps()
        next(steps)
        session.evaluate()
        best = evaluations_of(session.run)
        session.state.best.best = -1.0  # nothing is better
        next(steps)
        session.evaluate()
        found = evaluations_of(session.run)
    assert [(one["step"], one["is_newest"], one["is_best"]) for one in best] == [(1, True, True)]
    assert [(one["step"], one["is_newest"], one["is_best"]) for one in found] == [
        (2, True, False),
        (1, False, True),
    ]
    assert found[1]["sets"] == best[0]["sets"]


def test_resumed_run_keeps_the_best(tmp_path):
    def train(steps):
        options = {"validation": {"every": "2 steps"}, "optim": {"lr": 0.5}, "max_steps": 6}
        with tiny.prepare(tmp_path / "run", {"val": VAL}, **options, **REPORT) as session:
            for result in session.steps():
                if result.step % 2 == 0:
                    session.evaluate()
                if result.step == 4 and steps == 4:
                    session.state.best.best = -1.0  # nothing is better
                    session.save()
                    break
        return session

    before = evaluations_of(train(4).run)
    best = train(6).state.best.best_step
    after = evaluations_of(surestep.Run(tmp_path / "run"))
    expected = next(one for one in before if one["is_best"])
    assert (after[0]["step"], after[0]["is_best"]) == (6, False)
    assert after[1]["step"] == best == expected["step"]
    assert after[1]["sets"] == expected["sets"]


def test_damaged_file_is_replaced(tmp_path):
    folder = tmp_path / "run"
    with tiny.prepare(folder, {"val": VAL}, **REPORT) as session:
        (folder / NAME).write_text("{")
        session.evaluate()
    with tiny.prepare(folder, {"val": VAL}, **REPORT):
        pass
    assert evaluations_of(surestep.Run(folder))[0]["step"] == 0


def test_several_sets_and_losses_are_listed_each(tmp_path):
    x, y = VAL
    losses = {"kind": nn.CrossEntropyLoss(), "size": nn.MSELoss()}

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = tiny.model()

        def forward(self, x):
            return {"kind": self.inner(x), "size": self.inner(x)[:, :1]}

    data = {"x": x, "kind": y, "size": x[:, :1]}
    few = {name: tensor[:7] for name, tensor in data.items()}
    task = surestep.Task(
        Two(), losses, train=data, val={"all": DictData(data), "few": DictData(few)}
    )
    with surestep.prepare(task, tiny.config(**REPORT), run=tmp_path / "run") as session:
        session.evaluate()
        (evaluation,) = evaluations_of(session.run)
    names = [(one["set"], one["loss"], one["kind"], one["n_samples"]) for one in evaluation["sets"]]
    assert names == [
        ("all", "kind", "classes", 30),
        ("all", "size", "numbers", 30),
        ("few", "kind", "classes", 7),
        ("few", "size", "numbers", 7),
    ]
    assert evaluation["sets"][0]["samples"][0]["input"]["kind"] == "numbers"


class DictData(torch.utils.data.Dataset):
    """Samples that are dicts."""

    def __init__(self, tensors):
        self.tensors = tensors

    def __len__(self):
        return len(self.tensors["x"])

    def __getitem__(self, index):
        return {name: tensor[index] for name, tensor in self.tensors.items()}


def test_samples_of_a_stream_have_positions(tmp_path):
    def stream():
        return zip(*VAL, strict=True)

    with tiny.prepare(tmp_path / "run", {"val": stream}, **REPORT) as session:
        session.evaluate()
        (evaluation,) = evaluations_of(session.run)
    with tiny.prepare(tmp_path / "other", {"val": VAL}, **REPORT) as session:
        session.evaluate()
        (expected,) = evaluations_of(session.run)
    (found,), (same,) = evaluation["sets"], expected["sets"]
    assert (found.pop("is_stream"), same.pop("is_stream")) == (True, False)
    assert found == same


def test_limit_of_batches_is_named(tmp_path):
    options = {"limit_val_batches": 2, "validation": {"batch_size": 4}}
    with tiny.prepare(tmp_path / "run", {"val": VAL}, **options, **REPORT) as session:
        session.evaluate()
        (found,) = evaluations_of(session.run)[0]["sets"]
    assert (found["n_samples"], found["limit_batches"]) == (8, 2)


def test_predictions_are_those_of_the_average(tmp_path):
    options = {"average": {"kind": "ema", "decay": 0.5}, "validation": {"weights": "both"}}
    with tiny.prepare(tmp_path / "run", {"val": VAL}, **options, **REPORT) as session:
        next(session.steps())
        session.evaluate()
        expected = session.predict("val")["prediction"]
        (evaluation,) = evaluations_of(session.run)
    assert evaluation["measured"] == "average"
    assert evaluation["sets"][0]["right"] == int((expected == VAL[1].numpy()).sum())


def own_loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"val": VAL, "loss": own_loss}, "the loss is a custom function, which does not name"),
        ({}, "there is no validation data"),
    ],
)
def test_plan_says_why_nothing_is_shown(parts, why):
    planned = tiny.plan(parts, **REPORT).plan
    assert planned.report_samples == 3
    assert planned.reason("report.samples").startswith(f"set in Python; not shown: {why}")
    assert "not shown" not in tiny.plan(parts).plan.reason("report.samples")


def own_step(manual_step):
    """Train with a different loss than that of evaluations."""
    for micro_batch in manual_step.micro_batches("net"):
        outputs = manual_step.model(micro_batch.args[0])
        manual_step.backward(outputs.square().mean(), micro_batch)
    manual_step.step("net")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = tiny.model()

    def forward(self, x):
        return self.net(x)


OWN_STEP = {"model": Net(), "step": own_step, "optimizers": {"net": surestep.Optim()}}


def test_predictions_of_a_custom_step_are_by_the_loss_of_evaluations(tmp_path):
    run = tiny.fit(tmp_path / "run", {"val": VAL, **OWN_STEP}, **REPORT)
    (found,) = evaluations_of(run)[0]["sets"]
    assert (found["kind"], found["n_samples"]) == ("classes", 30)


def test_custom_step_without_validation_data_has_none(tmp_path):
    parts = {**OWN_STEP, "loss": None}
    assert tiny.plan(parts, **REPORT).plan.reason("report.samples").endswith("validation data")
    assert read_predictions(tiny.fit(tmp_path / "run", parts, **REPORT).path) is None


def test_loss_without_a_prediction_is_in_the_file(tmp_path):
    run = tiny.fit(tmp_path / "run", {"val": VAL, "loss": own_loss}, **REPORT)
    (found,) = evaluations_of(run)[0]["sets"]
    assert found["kind"] == "none"
    assert found["why"].startswith("the loss is a custom function")


@pytest.mark.parametrize(("parts", "options"), [({"val": VAL}, {}), ({}, REPORT)])
def test_run_without_the_option_or_the_data_has_no_file(tmp_path, parts, options):
    run = tiny.fit(tmp_path / "run", parts, **options)
    assert read_predictions(run.path) is None


def test_full_disk_is_one_line_and_the_run_continues(tmp_path, monkeypatch):
    def full(*_):
        raise surestep.errors.RunError("the disk is full.")

    monkeypatch.setattr(record_predictions, "write_predictions", full)
    run = tiny.fit(tmp_path / "run", {"val": VAL}, **REPORT)
    notices = [event["text"] for event in run.events() if event["event"] == "notice"]
    assert notices == ["The report will not show predictions: the disk is full."]
    assert run.status["status"] == "finished"


def pictures(samples, size=48):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(samples, 3, size, size, generator=generator)
    return x, torch.arange(samples) % 3


def test_file_is_small_whatever_the_data(tmp_path):
    x, y = pictures(24)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 48 * 48, 3))
    parts = {"model": model, "train": (x[:8], y[:8]), "val": {"one": (x, y), "two": (x[:9], y[:9])}}
    with tiny.prepare(tmp_path / "run", parts, max_steps=3, report={"samples": 64}) as session:
        session.evaluate()
        next(session.steps())
        session.state.best.best = -1.0
        session.evaluate()
        found = evaluations_of(session.run)
    assert (session.run.path / NAME).stat().st_size <= MOST_BYTES
    assert [one["left_out"] for one in found] == [["Pictures have at most 32 pixels a side."]] * 2
    assert found[0]["sets"][0]["samples"][0]["input"]["size"] == [32, 32, 3]


def shown(samples, sets=1):
    """Return sets with pictures of noise, as they are collected."""
    noise = np.random.default_rng(0).integers(0, 256, (samples, 96, 96, 3), dtype=np.uint8)
    listed = [
        {
            "index": index,
            "input": {
                "kind": "picture",
                "size": [96, 96, 3],
                "pixels": base64.b64encode(noise[index].tobytes()).decode(),
            },
        }
        for index in range(samples)
    ]
    lists = {"worst": list(range(samples)), "confident": list(range(samples))[::-1]}
    return [{"set": str(number), "samples": listed, **lists} for number in range(sets)]


@pytest.mark.parametrize(
    ("most", "left_out", "samples"),
    [
        (200_000, [], 4),
        (60_000, ["Pictures have at most 48 pixels a side."], 4),
        (
            12_000,
            ["Pictures have at most 32 pixels a side.", "Each list has at most 1 samples."],
            2,
        ),
        (900, ["No samples are listed."], 0),
    ],
)
def test_what_does_not_fit_is_left_out_in_order(most, left_out, samples):
    content = fit_size(shown(4), most)
    assert content["left_out"] == left_out
    assert len(content["sets"][0]["samples"]) == samples
    assert len(json.dumps(content)) <= most + 100


def test_fewer_samples_keep_the_first_of_each_list():
    (found,) = fit_size(shown(4), 12_000)["sets"]
    assert [found["samples"][index]["index"] for index in found["worst"]] == [0]
    assert [found["samples"][index]["index"] for index in found["confident"]] == [3]


def test_sets_that_do_not_fit_are_named():
    content = fit_size(shown(1, sets=30), 1000)
    kept = len(content["sets"])
    assert 0 < kept < 30
    left_out = f"{30 - kept} of 30 validation sets or losses are left out."
    assert content["left_out"] == ["No samples are listed.", left_out]


class Named(TensorDataset):
    classes = ["cat", "dog", "eel"]


def test_names_of_classes_are_those_of_the_dataset(tmp_path):
    data = DataLoader(Subset(Named(*VAL), range(20)), batch_size=5)
    assert class_names(data) == ["cat", "dog", "eel"]
    assert class_names(VAL) == []
    with tiny.prepare(tmp_path / "run", {"val": Named(*VAL)}, **REPORT) as session:
        session.evaluate()
        (found,) = evaluations_of(session.run)[0]["sets"]
    assert found["class_names"] == {"0": "cat", "1": "dog", "2": "eel"}
