"""Samples excluded by index: the order of the rest, and what is rejected."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset, WeightedRandomSampler

import surestep
from surestep.base.errors import ConfigError, DataError
from surestep.engine.data.order import FilteredOrder, excluded_samples
from surestep.engine.losses.base import LossModule
from surestep.engine.plan.batching import DatasetView, epoch_permutation
from surestep.engine.plan.specs import ExcludedSamples
from tests.laws.support.tasks import Augmented, mlp, rows, session_of

SKIPPED = (3, 17, 54)
REST = [index for index in range(55) if index not in SKIPPED]


@pytest.fixture
def folder(tmp_path):
    count = iter(range(1000))
    return lambda: tmp_path / f"run-{next(count)}"


def task_of(train=None, **parts) -> surestep.Task:
    return surestep.Task(mlp(), nn.CrossEntropyLoss(), train or rows(55), **parts)


def session_without(folder, task, **options):
    return session_of(task, folder, exclude_samples=SKIPPED, batch_size=9, max_steps=2, **options)


def epoch_of(session, epoch: int) -> list[int]:
    return session.loop.loader.epoch_order(epoch).tolist()


@pytest.mark.parametrize("epoch", [0, 3])
def test_remaining_samples_keep_their_order_in_the_shuffled_epoch(folder, epoch):
    with session_without(folder(), task_of()) as session:
        whole = epoch_permutation(55, session.plan.seed, epoch).tolist()
        assert epoch_of(session, epoch) == [each for each in whole if each not in SKIPPED]


def test_remaining_samples_keep_the_stored_order(folder):
    with session_without(folder(), task_of(), data={"shuffle": False}) as session:
        assert epoch_of(session, 1) == REST


def test_remaining_samples_keep_a_custom_order(folder):
    order = surestep.samplers.custom(lambda seed, epoch: list(range(55))[::-1])
    with session_without(folder(), task_of(sampler=order)) as session:
        assert epoch_of(session, 0) == REST[::-1]


def test_order_by_length_has_each_remaining_sample_once(folder):
    order = surestep.samplers.by_length(list(range(1, 56)))
    with session_without(folder(), task_of(sampler=order)) as session:
        assert sorted(epoch_of(session, 0)) == REST


def test_dataloader_shuffles_the_remaining_samples(folder):
    loader = DataLoader(Augmented(55), batch_size=9, shuffle=True)
    with session_of(task_of(loader), folder(), exclude_samples=SKIPPED, max_steps=2) as session:
        assert sorted(epoch_of(session, 1)) == REST


def test_plan_reports_the_number_and_source_of_excluded_samples(folder, tmp_path):
    file = tmp_path / "bad.txt"
    file.write_text("3 17\n54\n")
    session = session_of(task_of(), folder(), exclude_samples=file, batch_size=9, epochs=2)
    with session:
        plan = session.plan
    assert str(plan.exclude_samples) == "3 of 55 samples"
    assert str(file) in plan.reason("exclude_samples")
    assert (plan.steps_per_epoch, plan.total_steps) == (6, 12)  # 52 samples, not 55


def test_balanced_class_weights_ignore_excluded_samples(folder):
    def learned(data, skip):
        loss = surestep.losses.multiclass(weight="balanced")
        options = {"batch_size": 9, "max_steps": 2} | skip
        with session_of(surestep.Task(mlp(), loss, data), folder(), **options) as session:
            module = session.loop.context.loss.module
            assert isinstance(module, LossModule)
            return session.plan.loss, module.weights.tolist()

    x, y = rows(55)
    assert learned((x, y), {"exclude_samples": SKIPPED}) == learned((x[REST], y[REST]), {})
    assert learned((x, y), {}) != learned((x[REST], y[REST]), {})


def collate_reversed(samples):
    x, y = torch.utils.data.default_collate(samples)
    return x, y.max() - y


def test_balanced_class_weights_count_what_the_dataloader_collates(folder):
    def learned(data, **skip):
        loss = surestep.losses.multiclass(weight="balanced")
        with session_of(surestep.Task(mlp(), loss, data), folder(), max_steps=2, **skip) as session:
            return session.loop.context.loss.module.weights

    x, y = rows(55)
    loader = DataLoader(TensorDataset(x, y), 55, collate_fn=collate_reversed)
    expected = learned((x[REST], y.max() - y[REST]), batch_size=55)
    assert len(expected.unique()) > 1
    assert torch.equal(learned(loader, exclude_samples=SKIPPED), expected)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ([3, 55], "names sample 55.*0 to 54: 1 of 2 do not exist"),
        ([3, 55, 60], "names sample 60.*0 to 54: 2 of 3 do not exist"),
        (range(55), "leaves out all 55"),
    ],
)
def test_invalid_excluded_indices_are_rejected(said, message):
    with pytest.raises(ConfigError, match=message):
        excluded_samples(task_of(), said, "")


def test_excluded_samples_of_a_bptt_dataset_are_rejected():
    with pytest.raises(ConfigError, match="lanes"):
        excluded_samples(task_of(surestep.BPTTDataset(torch.randn(64, 10), 4, 4)), [1], "")


def test_order_of_a_part_of_the_data_excludes_those_in_it():
    half = surestep.samplers.custom(lambda seed, epoch: range(6 + epoch // 2, 0, -1))
    order = FilteredOrder(half, ExcludedSamples((2, 8), 9)).bind(DatasetView(9, lambda: iter(())))
    assert (len(order), order.indices(0, 1, 1).tolist()) == (5, [6, 5, 4, 3, 1])


@pytest.mark.parametrize("second", [[0, 0, 1, 2, 4], [1, 2, 3, 4, 5]])
def test_order_with_other_samples_in_the_second_epoch_excludes_none(second):
    whole = surestep.samplers.custom(lambda seed, epoch: second if epoch else range(5))
    with pytest.raises(ConfigError, match="draws its samples again"):
        FilteredOrder(whole, ExcludedSamples((0,), 6)).bind(DatasetView(6, lambda: iter(())))


@pytest.mark.parametrize("order", ["weighted", "sampler"])
def test_excluded_samples_with_a_weighted_sampler_are_rejected(folder, order):
    weights = torch.ones(55)
    drawn = {"sampler": surestep.samplers.weighted(weights)}
    task = task_of(**drawn)
    if order == "sampler":
        sampler = WeightedRandomSampler(weights.tolist(), 55)
        task = task_of(DataLoader(Augmented(55), batch_size=9, sampler=sampler))
    with pytest.raises(ConfigError, match="draws its samples again"):
        session_of(task, folder(), exclude_samples=SKIPPED, max_steps=2)


def test_epoch_with_a_different_length_is_an_error():
    whole = surestep.samplers.custom(lambda seed, epoch: range(5) if epoch < 2 else [0, 0, 1, 2, 4])
    samples = DatasetView(5, lambda: iter(()))
    order = FilteredOrder(whole, ExcludedSamples((0,), 5)).bind(samples)
    assert order.indices(0, 0, 1).tolist() == [1, 2, 3, 4]
    with pytest.raises(DataError, match="has 3 samples in epoch 3 and 4 in the first"):
        order.indices(0, 2, 1)


def test_run_with_excluded_samples_equals_a_run_on_the_subset(folder):
    """In the stored order, the remaining samples have equal positions in both runs."""
    options = {"batch_size": 9, "max_steps": 14, "data": {"shuffle": False}}
    states = []
    for data, more in (
        (Augmented(55), {"exclude_samples": SKIPPED}),
        (Subset(Augmented(55), REST), {}),
    ):
        with session_of(task_of(data), folder(), **options, **more) as session:
            list(session.steps())
            states.append(session.model.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
