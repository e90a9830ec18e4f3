"""Several losses in one Task: what is rejected, what is counted, and how they are named."""

import math
from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import surestep
from surestep.base.errors import ConfigError, DataError, TaskError
from surestep.engine.batch import MicroBatch
from surestep.engine.data.target_stats import with_fitted_loss
from surestep.engine.losses.adapt import as_losses
from surestep.engine.losses.multi import get_named, split_heads, weighted_sum, with_items
from tests import tiny

X, Y = tiny.data()
PLACES = torch.stack([Y, torch.where(Y == 1, 255, Y)], 1)
IGNORING = {"ignore_index": 255}
MASK = surestep.losses.multiclass(**IGNORING)
BOTH = {"mask": MASK, "kind": nn.CrossEntropyLoss()}
DATA = {"x": X, "mask": PLACES, "kind": Y}


class Two(nn.Module):
    def __init__(self, returns: Any = dict) -> None:
        super().__init__()
        self.mask = nn.Linear(tiny.FEATURES, 6)
        self.kind = nn.Linear(tiny.FEATURES, 3)
        self.returns = returns

    def forward(self, x):
        return self.returns(mask=self.mask(x).unflatten(1, (3, 2)), kind=self.kind(x))


def parts(**more: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    return {"model": Two(), "loss": BOTH, "train": DATA, **more}


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"loss": {}}, r"loss is an empty dict\. Give a loss for each output, by its name"),
        ({"loss": {"a/b": MASK}}, r"A loss cannot be called 'a/b'"),
        ({"loss": {3: MASK}}, r"A loss cannot be called 3"),
        ({"loss": {"mask": "model"}}, r"loss\['mask'\] is 'model'\. Each of several losses is one"),
        ({"loss": {"mask": 3}}, r"loss\['mask'\] is a int\. Each of several"),
        ({"loss": {"mask": (MASK, 0.5)}}, r"loss\['mask'\] is a tuple\. Each of several"),
        ({"loss_weights": {"msk": 0.5}}, r"no loss 'msk'\. Did you mean 'mask'\?"),
        ({"loss_weights": {"mask": -1}}, r"loss_weights\['mask'\] is -1\. Use a finite number"),
        ({"loss_weights": {"mask": math.nan}}, r"loss_weights\['mask'\] is nan"),
        ({"loss_weights": {"mask": math.inf}}, r"loss_weights\['mask'\] is inf"),
        ({"loss_weights": {"mask": "1"}}, r"loss_weights\['mask'\] is '1'"),
        ({"loss_weights": {"mask": 0, "kind": 0.0}}, r"All loss_weights are 0"),
        ({"items": {"knd": "tokens"}}, r"items names no loss 'knd'\. Did you mean 'kind'"),
        ({"items": "tokens"}, r"does not name one of 2 losses\. Use items=\{'mask': 'tokens'\}"),
        ({"items": len}, r"items=a function does not name one of 2 losses"),
        ({"teacher": nn.Linear(4, 3)}, r"A teacher goes with one loss, and the Task has several"),
        ({"step": lambda turn: None}, r"several losses and a custom step"),
        ({"metrics": {"loss_mask": max}}, r"A metric cannot be called 'loss_mask'"),
        ({"loss": MASK, "loss_weights": {"a": 1}}, r"loss_weights names several losses, and the"),
        ({"loss": MASK, "items": {"a": "tokens"}}, r"items names several losses, and the Task"),
    ],
)
def test_invalid_options_of_several_losses_are_rejected_by_the_task(more, sentence):
    with pytest.raises(TaskError, match=sentence):
        tiny.task(**parts(**more))


@pytest.mark.parametrize(
    ("other", "is_separable"),
    [(nn.MSELoss(), True), (surestep.losses.contrastive(), False)],
)
def test_losses_are_separable_if_all_of_them_are(other, is_separable):
    for losses in ({"a": MASK, "b": other}, {"a": other, "b": MASK}):
        task = tiny.task(**parts(loss=losses))
        assert task.build_loss(task.build_model()).is_separable is is_separable


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (nn.MSELoss(reduction="none"), r"loss\['mask'\]: MSELoss\(reduction='none'\) returns"),
        (nn.MSELoss(), None),
        ("hubber", r"loss\['mask'\]: loss='hubber' is not a loss"),
    ],
)
def test_each_of_several_losses_is_built_under_its_name(loss, sentence):
    task = tiny.task(**parts(loss={"mask": loss}))
    if sentence is None:
        assert task.build_loss(task.build_model()).label == "mask: MSELoss"
        return
    with pytest.raises(TaskError, match=sentence):
        task.build_loss(task.build_model())


def ignored_elsewhere(outputs, targets):
    return functional.cross_entropy(outputs, targets, ignore_index=255)


def no_model(returns):
    return {"model": Two(returns)}


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (no_model(lambda mask, kind: kind), r"outputs that are called 'mask', and the outputs are"),
        (
            no_model(lambda mask, kind: (mask, kind)),
            r"are a tuple\. Of several losses, let the mod",
        ),
        (no_model(lambda mask, kind: {"mask": mask, "knd": kind}), r"none\. Did you mean 'knd'\?"),
        ({"train": (X, Y)}, r"loss\['mask'\] takes the targets .* are a Tensor\. .* give a dict"),
        (
            {"inputs": lambda b: (b["x"], {"mask": b["mask"]})},
            r"loss\['kind'\] takes the targets .* Known: mask\.",
        ),
        ({"train": DATA | {"kind": Y + 1}}, r"loss\['kind'\]: .*"),
        ({"train": DATA | {"mask": PLACES.float()}}, r"loss\['mask'\]: .*"),
        (
            {"loss": BOTH | {"mask": ignored_elsewhere}},
            r"loss\['mask'\]: The loss is not a mean over its items",
        ),
        (
            {
                "loss": BOTH | {"kind": functional.cross_entropy, "mask": lambda o, t: o.sum()},
                "train": DATA | {"mask": torch.where(PLACES == 255, -100, PLACES)},
            },
            r"the loss 'mask' is declared .* Task\(items=\{'mask': 'tokens'\}\)",
        ),
        ({"loss": BOTH | {"kind": lambda o, t: o}}, r"loss\['kind'\]: The loss has shape"),
        ({"loss": BOTH | {"kind": nn.PReLU()}}, r"The loss has parameters, which"),
    ],
)
def test_first_batch_is_checked_with_each_loss_and_the_failing_one_is_named(
    tmp_path, more, sentence
):
    refused = pytest.raises((TaskError, DataError), match=sentence)
    with refused, tiny.prepare(tmp_path, parts(**more)):
        pass


@pytest.mark.parametrize("returns", [SimpleNamespace, namedtuple("Out", "mask kind")])
def test_model_may_return_an_object_or_a_named_tuple(tmp_path, returns):
    found = []
    for name, more in {"dict": {}, "other": no_model(returns)}.items():
        given = parts(**more)
        given["model"].load_state_dict(parts()["model"].state_dict())
        with tiny.prepare(tmp_path / name, given) as session:
            found.append(float(next(session.steps()).loss))
    assert found[0] == found[1]


def test_attributes_of_tensors_and_tuples_are_not_outputs():
    """A tensor has `.T`, and a tuple has `.count`."""
    for value in (X, (X, Y), [X]):
        with pytest.raises(TaskError, match="are called"):
            get_named(value, "T" if value is X else "count", "outputs")


def test_items_are_counted_for_each_loss_and_in_total():
    loss = tiny.task(**parts()).build_loss(nn.Identity())
    targets = {"mask": PLACES, "kind": Y}
    micro = with_items(MicroBatch((X,), {}, targets, 0, 20, 0), loss, DATA)
    assert micro.part_items == (int((PLACES != 255).sum()), 20)
    assert micro.items == sum(micro.part_items)


def test_weighted_sum_has_each_weight_and_the_items_of_the_global_batch():
    """A loss without items in a micro-batch adds nothing to it."""
    losses = {"a": "mse", "b": nn.MSELoss(reduction="sum"), "c": "mae"}
    loss = as_losses(losses, {}, {"a": 0.5, "b": 2.0, "c": 3.0}, {})
    outputs = {
        name: torch.full((2,), value) for name, value in (("a", 1.0), ("b", 2.0), ("c", 5.0))
    }
    targets = {name: torch.zeros(2) for name in outputs}
    micro = MicroBatch((X,), {}, targets, 4, 2, 0, part_items=(2, 2, 2))
    total, logged = weighted_sum(loss, outputs, micro, (4, 4, 4))
    assert float(total) == 0.5 * 2 / 4 + 2 * 8 + 3 * 10 / 4
    shown = {part.name: float(part.value) for part in logged}
    assert shown == {"loss_a": 0.5, "loss_b": 8.0, "loss_c": 2.5}
    part = micro._replace(part_items=(0, 2, 0))
    assert float(weighted_sum(loss, outputs, part, (4, 4, 4))[0]) == 16
    heads = split_heads(loss, outputs, part)
    assert [(head.name, head.micro_batch.items) for head in heads] == [("b", 2)]


def test_plan_reports_each_loss_with_its_weight_and_divisor():
    loss = {"mask": surestep.losses.multiclass(weight="balanced", ignore_index=255)}
    planned = tiny.plan(parts(loss=BOTH | loss, loss_weights={"kind": 0.25}))
    assert planned.plan.loss.endswith(" + 0.25 x kind: CrossEntropyLoss")
    reason = planned.plan.reason("loss")
    assert "read from the 20 training samples" in reason
    assert reason.endswith("kind: divided by targets that are not ignored")
    counts = torch.bincount(PLACES[PLACES != 255], minlength=3)
    weights = planned.loss.components[0].loss.module.weights
    torch.testing.assert_close(weights, (counts.sum() / (3 * counts)).to(weights))


def test_plan_reports_a_loss_that_is_not_separable():
    pairs = {"mask": surestep.losses.dice(per="batch"), "kind": nn.CrossEntropyLoss()}
    planned = tiny.plan(parts(loss=pairs), micro_batch_size=3)
    assert "here: dice(per='batch', smooth=1.0, ignore_index=-100) comp" in planned.plan.reason(
        "batch_layout"
    )


def accuracy(outputs, targets):
    return (outputs["kind"].argmax(1) == targets["kind"]).double().mean()


def test_each_loss_is_evaluated_and_can_be_the_monitor(tmp_path):
    more = {"val": {"val": DATA}, "metrics": {"accuracy": accuracy}}
    with tiny.prepare(tmp_path, parts(**more), validation={"metric": "loss_mask"}) as session:
        assert session.plan.validation_metric == "val/loss_mask"
        assert session.plan.validation_mode == "min"
        model, found = session.model, session.evaluate()
    outputs = model(X)
    assert list(found) == ["val/loss", "val/loss_mask", "val/loss_kind", "val/accuracy"]
    assert found["val/loss"] == pytest.approx(found["val/loss_mask"] + found["val/loss_kind"])
    assert found["val/accuracy"] == float(accuracy(outputs, {"kind": Y}))


def test_unknown_loss_name_is_rejected_as_the_monitor():
    with pytest.raises(ConfigError, match=r"Measured: val/loss, val/loss_mask, val/loss_kind\."):
        tiny.plan(parts(val={"val": DATA}), validation={"metric": "loss_msk"})


def test_loss_without_items_in_an_evaluation_is_nan_and_adds_nothing(tmp_path):
    empty = DATA | {"mask": torch.full_like(PLACES, 255)}
    nothing = empty | {"kind": torch.full_like(Y, -100)}
    with tiny.prepare(tmp_path, parts(val={"empty": empty, "nothing": nothing})) as session:
        found = session.evaluate()
    assert math.isnan(found["empty/loss_mask"])
    assert found["empty/loss"] == found["empty/loss_kind"] > 0
    assert math.isnan(found["nothing/loss"])


def test_one_of_several_losses_with_sum_reduction_is_not_divided(tmp_path):
    summed = BOTH | {"kind": nn.CrossEntropyLoss(reduction="sum")}
    logged = []
    for cut in (8, 3):
        folder = tmp_path / str(cut)
        with tiny.prepare(folder, parts(loss=summed), micro_batch_size=cut) as session:
            logged.append(float(next(session.steps()).loss))
    assert logged[0] == pytest.approx(logged[1], rel=1e-6)
    assert logged[0] > 8


def test_named_terms_of_one_loss_are_logged_under_its_name(tmp_path):
    loss = BOTH | {"mask": surestep.losses.dice_ce(ignore_index=255)}
    tiny.fit(tmp_path, parts(loss=loss), max_steps=1)
    (event,) = [each for each in surestep.Run(tmp_path).events() if each["event"] == "steps"]
    terms = [name for name in event["logged"] if name.startswith("mask_")]
    assert len(terms) == 2
    total = sum(event["logged"][name][0] for name in terms)
    assert event["logged"]["loss_mask"][0] == pytest.approx(total)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_named_terms_of_one_of_several_losses_add_up_to_its_logged_loss(tmp_path, reduction):
    def terms(outputs, targets):
        error = {"reduction": reduction}
        return {
            "ce": functional.cross_entropy(outputs, targets, **error),
            "l1": functional.l1_loss(outputs, torch.zeros_like(outputs), **error) / 3,
        }

    task = parts(loss={"mask": MASK, "kind": terms}, reduction={"kind": reduction})
    with torch.no_grad():
        wanted = {key: float(term) for key, term in terms(task["model"](X)["kind"], Y).items()}
    run = tiny.fit(tmp_path, task, max_steps=1, batch_size=20, micro_batch_size=7)
    (event,) = [event for event in run.events() if event["event"] == "steps"]
    logged = {name: values[0] for name, values in event["logged"].items()}
    assert {key: logged[f"kind_{key}"] for key in wanted} == pytest.approx(wanted, rel=1e-5)
    assert logged["loss_kind"] == pytest.approx(sum(wanted.values()), rel=1e-5)


def test_targets_changed_by_a_batch_transform_are_counted_for_each_loss(tmp_path):
    def hide(inputs, targets):
        return inputs, targets | {"mask": torch.full_like(targets["mask"], 255)}

    task = parts(batch_transform=hide)
    with tiny.prepare(tmp_path, task, micro_batch_size=3) as session:
        result = next(session.steps())
    assert [part.name for part in result.logged[:3]] == ["loss_kind"] * 3
    assert result.items == 8


def test_list_of_batches_given_to_train_step_is_one_global_batch(tmp_path):
    cut = [{name: each[rows] for name, each in DATA.items()} for rows in (slice(3), slice(3, 20))]
    outputs = parts()["model"](X)
    wanted = sum(
        functional.cross_entropy(outputs[name], DATA[name], ignore_index=255)
        for name in ("mask", "kind")
    )
    with tiny.prepare(tmp_path, parts()) as session:
        found = session.train_step(cut).loss
    torch.testing.assert_close(found, wanted.detach())


def test_balanced_weights_come_from_all_samples_in_an_overfit_check():
    loss = {"mask": surestep.losses.multiclass(weight="balanced", ignore_index=255)}
    task = tiny.task(**parts(loss=BOTH | loss))
    learned = with_fitted_loss(task, 0).loss
    assert isinstance(learned, dict)
    counts = torch.bincount(PLACES[PLACES != 255], minlength=3)
    torch.testing.assert_close(
        learned["mask"].weights.double(), counts.sum() / (3 * counts.double())
    )
    assert loss["mask"].needs_targets
    assert learned["kind"] is BOTH["kind"]


def test_each_of_several_losses_is_balanced_by_its_own_targets():
    mask, kind = (surestep.losses.multiclass(weight="balanced", **own) for own in (IGNORING, {}))
    planned = tiny.plan(parts(loss={"mask": mask, "kind": kind}))
    found = [part.loss.module.weights.double() for part in planned.loss.components]
    for weights, targets in zip(found, (PLACES[PLACES != 255], Y), strict=True):
        counts = torch.bincount(targets, minlength=3).double()
        torch.testing.assert_close(weights, counts.sum() / (3 * counts))


@pytest.mark.parametrize("given", [DATA, {"x": X}], ids=["with targets", "without"])
def test_predictions_have_the_names_of_the_outputs(tmp_path, given):
    run = tiny.fit(tmp_path, parts(test=given), max_steps=1)
    model = Two()
    run.load_model(model, which="last")
    with tiny.prepare(tmp_path, parts(test=given), max_steps=1) as session:
        found = session.predict("test")
    for name, output in model(X).items():
        torch.testing.assert_close(torch.as_tensor(found[f"output_{name}"]), output.detach())
