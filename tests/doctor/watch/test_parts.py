"""Evaluations of one part of the data, in a group of one process."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives, distributed_c10d
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from surestep.doctor.rules import ss409_evaluation_on_every_rank_unreduced as rule
from surestep.doctor.watch.hooks import Monitor

DATA = TensorDataset(torch.ones(16, 4), torch.zeros(16).long())


@pytest.fixture(autouse=True)
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def observe(script):
    """Run a script, and return what the rule says."""
    watcher = rule.EvaluationOnEveryRankUnreducedWatcher()
    monitor = Monitor({"SS409": watcher})
    with monitor.installed():
        script()
    assert monitor.listeners.failures == {}
    return list(watcher.observe(monitor.run))


def batches():
    return DataLoader(DATA, batch_size=4, sampler=DistributedSampler(DATA, 2, 0))


def evaluate(model, *, is_added=False):
    with torch.no_grad():
        total = sum(nn.functional.cross_entropy(model(x), y) for x, y in batches())
    if is_added:
        dist.all_reduce(total)


def train(model):
    nn.functional.cross_entropy(model(DATA.tensors[0]), DATA.tensors[1]).backward()


def test_evaluation_that_nothing_adds_is_reported():
    model = nn.Linear(4, 3)
    (found,) = observe(lambda: (evaluate(model), train(model), evaluate(model)))
    assert found.evidence == {"evaluations": 2, "parts": 2}


def test_line_that_is_added_at_least_once_is_not_reported():
    model = nn.Linear(4, 3)
    assert observe(lambda: (evaluate(model), train(model), evaluate(model, is_added=True))) == []


def test_comparison_with_one_class_is_no_evaluation():
    def count_zeros():
        model = nn.Linear(4, 3)
        with torch.no_grad():
            for x, y in batches():
                print((model(x).argmax(1) == y[:1]).sum())

    assert observe(count_zeros) == []


def test_comparison_while_training_is_no_evaluation():
    def train_and_count():
        model = nn.Linear(4, 3)
        for x, y in batches():
            print((model(x).argmax(1) == y).sum())

    assert observe(train_and_count) == []


def test_metrics_of_the_training_are_no_evaluation():
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = batches()

    def fit():
        for _ in range(2):
            for x, y in loader:
                outputs = model(x)
                with torch.no_grad():
                    print((outputs.argmax(1) == y).sum())
                optimizer.zero_grad()
                nn.functional.cross_entropy(outputs, y).backward()
                optimizer.step()

    assert observe(fit) == []
    (found,) = observe(lambda: (fit(), evaluate(model)))
    assert found.evidence["evaluations"] == 1


@pytest.mark.parametrize(
    "add",
    [
        lambda total: distributed_c10d.all_reduce(total),
        lambda total: _functional_collectives.wait_tensor(
            _functional_collectives.all_reduce(total, "sum", dist.group.WORLD)
        ),
    ],
    ids=["c10d", "functional"],
)
def test_other_names_of_collectives_are_heard(add):
    model = nn.Linear(4, 3)

    def script():
        evaluate(model)
        add(torch.ones(1))

    assert observe(script) == []


def test_operations_between_two_ranks_are_made_as_alone():
    """Torch compares the function of such an operation by identity."""

    def script():
        for operation in (dist.isend, dist.irecv):
            dist.P2POp(operation, torch.ones(2), 0)

    script()
    assert observe(script) == []


def test_script_that_fails_may_not_have_come_to_the_sum():
    watcher, model = rule.EvaluationOnEveryRankUnreducedWatcher(), nn.Linear(4, 3)
    monitor = Monitor({"SS409": watcher})

    def fail():
        evaluate(model)
        raise ValueError

    with pytest.raises(ValueError), monitor.installed():  # noqa: PT011
        fail()
    assert list(watcher.observe(monitor.run)) == []
