import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from surestep import batch_transforms, derive_seed, set_seed
from surestep.base.errors import TaskError
from surestep.engine.batch import Batch, MicroBatch, as_empty
from surestep.engine.data.apply_transform import BatchTransform, name_of
from surestep.engine.losses.adapt import as_loss
from tests import tiny

CPU = torch.device("cpu")


def batch_of(*parts, kwargs=None):
    """Return a batch of the micro-batches (args, targets)."""
    micros, position = [], 0
    for args, targets in parts:
        named = kwargs is not None
        micros.append(
            MicroBatch(
                () if named else args,
                dict(zip(kwargs, args, strict=True)) if named else {},
                targets,
                float(len(targets)),
                len(targets),
                position,
            )
        )
        position += len(targets)
    items = sum(each.items for each in micros)
    return Batch(tuple(micros), items, position, 0, 0, position, False)


def transform(function, loss=None, *, counted=True, rank=0, ranks=1):
    task = SimpleNamespace(batch_transform=function, step=None, counts_targets=lambda: counted)
    plan = SimpleNamespace(seed=3, device=CPU, parallel_rank=rank, parallel_ranks=ranks)
    return BatchTransform(task, as_loss(loss or nn.CrossEntropyLoss(), "samples"), plan)


X, Y = tiny.data(7)
CUT = [((X[:4],), Y[:4]), ((X[4:],), Y[4:])]


def test_transform_gets_the_full_batch_and_its_result_is_split_again():
    def flipped(inputs, targets):
        return inputs.flip(0), targets.flip(0)

    found = transform(flipped)(batch_of(*CUT), 0)
    assert [each.samples for each in found.micro_batches] == [4, 3]
    assert [each.position for each in found.micro_batches] == [0, 4]
    assert torch.equal(torch.cat([each.args[0] for each in found.micro_batches]), X.flip(0))
    assert torch.equal(torch.cat([each.targets for each in found.micro_batches]), Y.flip(0))


@pytest.mark.parametrize("cut", [CUT, [((X,), Y)]], ids=["cut", "full"])
def test_transform_gets_inputs_in_the_form_the_model_takes(cut):
    seen = []

    def look(inputs, targets):
        seen.append(inputs)
        return inputs, targets

    transform(look)(batch_of(*cut), 0)
    transform(look)(batch_of(*[((a[0], 2 * a[0]), t) for a, t in cut]), 0)
    transform(look)(batch_of(*cut, kwargs=["x"]), 0)
    one, several, named = seen
    assert torch.equal(one, X)
    assert torch.equal(several[1], 2 * X)
    assert torch.equal(named["x"], X)


def test_returned_inputs_are_passed_to_the_model_in_the_same_form():
    named = transform(lambda inputs, targets: ({"x": inputs["x"] + 1}, targets))
    found = named(batch_of(*CUT, kwargs=["x"]), 0).micro_batches[1]
    assert found.args == ()
    assert torch.equal(found.kwargs["x"], X[4:] + 1)


def draws(inputs, targets):
    drawn = [random.random(), float(np.random.rand()), float(torch.rand(()))]
    return inputs + torch.tensor(drawn).sum(), targets


def test_transform_is_seeded_by_step_and_preserves_the_random_state():
    own, batch = transform(draws), batch_of(*CUT)
    torch.manual_seed(1)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    first, again, other = (own(batch, step).micro_batches[0].args[0] for step in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    assert before[2] == np.random.get_state()[1].tolist()
    set_seed(derive_seed("transform", 3, 5))
    assert torch.equal(first, draws(X[:4], None)[0])


def test_transform_with_a_generator_parameter_gets_a_seeded_generator():
    seen = []

    def look(inputs, targets, *, generator):
        seen.append((generator.device, generator.initial_seed()))
        return inputs, targets

    transform(look)(batch_of(*CUT), 9)
    assert seen == [(CPU, derive_seed("generator", derive_seed("transform", 3, 9)))]


def test_transform_runs_without_grad():
    weight = torch.ones(4, requires_grad=True)
    found = transform(lambda inputs, targets: (inputs * weight, targets))(batch_of(*CUT), 0)
    assert not found.micro_batches[0].args[0].requires_grad


def ignoring(inputs, targets):
    targets = targets.clone()
    targets[:2] = -100
    return inputs, targets


def ignoring_in_place(inputs, targets):
    targets[:2] = -100
    return inputs, targets


@pytest.mark.parametrize("function", [ignoring, ignoring_in_place])
@pytest.mark.parametrize("counted", [True, False])
def test_changed_targets_are_counted_again_unless_items_is_a_function(function, counted):
    batch = batch_of(((X[:4],), Y[:4].clone()), ((X[4:],), Y[4:].clone()))
    found = transform(function, counted=counted)(batch, 0)
    assert [each.items for each in found.micro_batches] == ([2, 3] if counted else [4, 3])
    assert found.items == (5 if counted else 7)


def test_unchanged_targets_are_not_counted_again():
    def never(*_):
        raise AssertionError("counted")

    own = transform(lambda inputs, targets: (inputs + 1, targets))
    object.__setattr__(own.loss, "items", never)
    assert own(batch_of(*CUT), 0).items == 7


WIDE = [((X[:4],), Y[:4]), ((torch.zeros(3, 9),), Y[4:])]
SHARED = [((X[:4], torch.zeros(2)), Y[:4]), ((X[4:], torch.zeros(2)), Y[4:])]
NAMES = [((X[:4], "a"), Y[:4]), ((X[4:], "b"), Y[4:])]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (WIDE, r"shapes \(4, 4\), \(3, 9\) cannot be concatenated, .*pad to one length"),
        (SHARED, r"4 samples with tensors of shapes \(2,\), \(2,\) cannot"),
        (NAMES, "hold different str objects"),
    ],
)
def test_micro_batches_that_cannot_be_concatenated_are_rejected(parts, message):
    with pytest.raises(TaskError, match=message):
        transform(draws)(batch_of(*parts), 0)


def test_inputs_equal_in_all_micro_batches_are_preserved():
    found = transform(lambda inputs, targets: (inputs, targets))(
        batch_of(((X[:4], "a", None), Y[:4]), ((X[4:], "a", None), Y[4:])), 0
    )
    assert found.micro_batches[1].args[1:] == ("a", None)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda inputs, targets: inputs, "returned a Tensor. Return"),
        (lambda inputs, targets: (inputs[:2], targets), r"inputs of shape \(2, 4\) for 7 samples"),
        (lambda inputs, targets: (inputs, targets[:2]), r"targets of shape \(2,\) for 7 samples"),
        (lambda inputs, targets: (None, targets), "inputs of NoneType for 7 samples"),
    ],
)
def test_transform_result_that_is_not_a_batch_is_rejected(function, message):
    with pytest.raises(TaskError, match=message):
        transform(function)(batch_of(*CUT), 0)


def test_name_of_a_transform_is_its_function_or_class():
    assert name_of(None) is None
    assert name_of(draws) == "draws"
    assert name_of(nn.Identity()) == "Identity"
    assert name_of(batch_transforms.mixup(0.2, classes=3)) == "mixup(0.2, classes=3)"
    assert name_of(batch_transforms.cutmix()) == "cutmix(1)"


def decision(parts):
    plan = tiny.plan(parts).plan
    return plan.batch_transform, plan.reason("batch_transform")


def test_plan_reports_the_batch_transform():
    assert decision({}) == (None, "the Task has none")
    said = (
        "mixup(0.2, classes=3)",
        "the Task's: of each global batch in training, seeded by step",
    )
    assert decision({"batch_transform": batch_transforms.mixup(0.2, classes=3)}) == said


def test_batch_transform_that_is_not_a_function_is_rejected():
    with pytest.raises(TaskError, match=r"batch_transform is a float\. Give"):
        tiny.task(batch_transform=0.2)


def test_transform_is_applied_only_in_training(tmp_path):
    seen = []

    def look(inputs, targets):
        seen.append(len(targets))
        return inputs, targets

    parts = {"batch_transform": look, "val": tiny.data(5), "loss": nn.CrossEntropyLoss()}
    with tiny.prepare(tmp_path / "run", parts, max_steps=3) as session:
        assert seen == [8]  # the start-up check
        list(session.steps())
        assert seen == [8, 8, 8, 4]
        session.evaluate()
        session.evaluate("train")
        assert seen == [8, 8, 8, 4]
        session.train_step([tiny.data(6)])
        assert seen == [8, 8, 8, 4, 6]


@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_keeps_its_shard_of_the_transformed_batch(rank):
    mixup = batch_transforms.mixup(0.4, classes=tiny.CLASSES)
    whole = transform(mixup)(batch_of(*CUT), 5)
    kept = transform(mixup, rank=rank, ranks=2)(batch_of(*CUT), 5)
    (micro,) = kept.micro_batches
    assert torch.equal(micro.args[0], whole.micro_batches[rank].args[0])
    for own, full in zip(micro.targets, whole.micro_batches[rank].targets, strict=True):
        assert torch.equal(own, full)
    assert (kept.items, kept.samples) == (whole.micro_batches[rank].items, whole.samples)


def test_rank_without_samples_keeps_a_row_that_does_not_count():
    batch = batch_of(((X,), Y))
    nothing = as_empty(batch.micro_batches[0]._replace(position=7))
    batch = batch._replace(micro_batches=(*batch.micro_batches, nothing))
    (micro,) = transform(lambda x, y: (x.flip(0), y), rank=1, ranks=2)(batch, 0).micro_batches
    assert (micro.items, micro.samples) == (0, 0)
    assert len(micro.args[0])
