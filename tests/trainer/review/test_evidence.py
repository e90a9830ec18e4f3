"""What each rule measures of the data and of the steps: the exact numbers and samples."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from surestep.doctor.limits import ENOUGH_TO_NORMALIZE, FEWEST_ROWS
from surestep.engine.schedule.lr import PlateauState
from surestep.engine.state.state import Progress
from surestep.trainer.review.case import Observed
from surestep.trainer.review.data_case import ReadSplit
from surestep.trainer.review.of_data import ss505, ss601, ss608, ss609, ss610, ss615
from surestep.trainer.review.of_run import ss116, ss203, ss204, ss307
from tests import tiny


def split(inputs=None, targets=None, *, name="train", every=2, count=None):
    """Return a split of which every second sample was read, or so."""
    read = len(targets if inputs is None else inputs)
    given = [None if tensor is None else (tensor,) for tensor in (inputs, targets)]
    return ReadSplit(name, count or read * every, [at * every for at in range(read)], [], *given)


def data(train, *others, model=None, layout=None, plan=None, **more):
    """Return what the rules take of the data of a run; `plan` has the values of some options."""
    loader = SimpleNamespace(layout=layout, is_ready=False, loss=SimpleNamespace(kind="function"))
    loop = SimpleNamespace(loader=loader, state=SimpleNamespace(model=model or nn.Linear(4, 3)))
    options = {"data_shuffle": False, "data_shuffle_buffer": None, "batch_size": 8, **(plan or {})}
    usual = {"task": SimpleNamespace(sampler=None, train=None, keep_eval=()), "classes": 3}
    options["steps_per_epoch"] = 3
    return SimpleNamespace(
        **{"train": train, "others": others, "loop": loop, "plan": SimpleNamespace(**options)},
        **{"ignored_class": -100, **usual, **more},
    )


def evidence(rule, found):
    return [problem.evidence for problem in rule.find(found)]


def test_targets_without_an_output_are_named_by_their_samples():
    targets = torch.tensor([0, 3, -1, -100, 2])
    found = data(split(targets=targets[:1]), split(targets=targets, name="val"))
    assert evidence(ss505, found) == [{"part": "val", "samples": [2, 4], "classes": 3}]
    several = torch.tensor([[0, 1], [2, 3], [-100, 2]])
    assert evidence(ss505, data(split(targets=several)))[0]["samples"] == [2]
    assert evidence(ss505, data(split(targets=targets), classes=None)) == []


LABELS = torch.arange(4).repeat_interleave(5)


@pytest.mark.parametrize(
    ("labels", "more", "at_random"),
    [
        (LABELS, {}, 16),  # 4 times as many runs as there are
        (torch.tensor([0] * 12 + [1] * 12), {}, 13),
        (LABELS, {"plan": {"batch_size": 19}}, 16),
        (LABELS, {"plan": {"batch_size": 20}}, None),  # all are in one batch
        (LABELS, {"plan": {"data_shuffle": True}}, None),
        (LABELS, {"task": SimpleNamespace(sampler=[1], train=None)}, None),
        (LABELS[1:], {}, None),
        (torch.cat([LABELS, LABELS[:5]]), {}, None),
    ],
)
def test_labels_in_order_are_compared_with_a_random_order(labels, more, at_random):
    found = evidence(ss601, data(split(targets=labels), **more))
    runs = len(labels.unique())
    expected = {"labels": len(labels), "runs": runs, "at_random": at_random}
    assert found == ([] if at_random is None else [expected])


@pytest.mark.parametrize(
    ("samples", "batch", "micro", "rest"),
    [(21, 10, 10, 1), (22, 10, 4, 2), (13, 10, 4, None), (20, 10, 4, None), (23, 10, 10, None)],
)
def test_last_samples_that_are_normalized_are_counted(samples, batch, micro, rest):
    layout = SimpleNamespace(samples=samples, batch_size=batch, micro_batch_size=micro, ranks=1)
    layout.drop_last, layout.limit = False, None
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    known = {"samples": samples, "rest": rest, "layers": ["0"]}

    def found():
        return evidence(ss608, data(split(targets=LABELS), model=model, layout=layout))

    assert found() == ([] if rest is None else [known])
    layout.drop_last = True
    assert found() == []
    layout.drop_last = False
    model.eval()
    assert found() == []


def test_columns_are_compared_without_samples_that_are_not_finite():
    """Two columns have one value or two; that of samples with NaN is none of them."""
    torch.manual_seed(0)
    table = torch.randn(FEWEST_ROWS + 1, 4) * torch.tensor([1.0, 1e6, 1.0, 1.0])
    table[:, 2] = (torch.arange(len(table)) % 2) * 1e9
    table[:, 3] = 7.0
    table[3, 0] = math.nan
    known = table[table.isfinite().all(1)].double().std(0)
    nan, scales = evidence(ss609, data(split(table)))
    assert nan == {"part": "train", "samples": [6]}
    assert scales["columns"] == [1, 0]
    assert scales["largest"] == pytest.approx(float(known[1]))
    assert scales["smallest"] == pytest.approx(float(known[0]))
    complete = evidence(ss609, data(split(table, every=1)))
    assert complete[1:] == [{"columns": [3]}, scales]
    similar = table.nan_to_num() * torch.tensor([10.0, 0.03, 10.0, 0.0])
    assert [each.get("samples") for each in evidence(ss609, data(split(similar)))] == []
    fewer = evidence(ss609, data(split(table[: FEWEST_ROWS - 1])))
    assert [each.get("samples") for each in fewer] == [[6]]


@pytest.mark.parametrize(("usual", "share"), [(49, 0.98), (48, None)])
def test_usual_class_is_named_by_its_index(usual, share):
    labels = torch.tensor([7] * usual + [2] * (50 - usual))
    found = evidence(ss610, data(split(targets=labels)))
    assert found == ([] if share is None else [{"share": share, "class": 7, "labels": 50}])


@pytest.mark.parametrize("rare", [0, 30])
def test_column_that_is_the_target_is_found_if_the_target_varies(rare):
    torch.manual_seed(0)
    values = torch.zeros(60)
    values[:rare] = torch.randn(rare)
    table = torch.stack([torch.randn(60), values], 1)
    table[::2, 0] = values[::2]  # half of them are not enough
    found = evidence(ss615, data(split(table, values)))
    assert found == ([{"columns": [1], "samples": 60}] if rare else [])
    assert evidence(ss615, data(split(table[:, None], values))) == []


def case(**more):
    return SimpleNamespace(task=SimpleNamespace(keep_eval=(), step=None), **more)


@pytest.mark.parametrize(
    ("batch", "micro", "is_found"),
    [
        (8, 4, True),
        (8, 8, False),
        (10**6, ENOUGH_TO_NORMALIZE, False),
        (10**6, ENOUGH_TO_NORMALIZE - 1, True),
    ],
)
def test_micro_batches_that_are_large_enough_to_normalize_are_not_reported(batch, micro, is_found):
    layout = SimpleNamespace(batch_size=batch, micro_batch_size=micro)
    state = SimpleNamespace(model=nn.Sequential(nn.BatchNorm1d(4)))
    loop = SimpleNamespace(loader=SimpleNamespace(layout=layout), state=state)
    known = {"layers": ["0"], "micro_batch_size": micro, "batch_size": batch}
    assert evidence(ss116, case(loop=loop)) == ([known] if is_found else [])


def test_parameters_that_no_optimizer_updated_are_named():
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(3)))
    optimizers = {str(at): torch.optim.SGD(model[at].parameters(), 0.1) for at in range(3)}
    for at in (0, 1):
        for parameter in model[at].parameters():
            optimizers[str(at)].state[parameter] = {}
    loop = SimpleNamespace(
        state=SimpleNamespace(optimizers=optimizers),
        context=SimpleNamespace(strategy=SimpleNamespace(has_param_grads=True)),
    )
    observed = SimpleNamespace(steps=20, no_gradient=dict(model.named_parameters()))
    (found,) = evidence(ss203, case(loop=loop, observed=observed))
    assert found == {"parameters": ["2.weight", "2.bias"], "layers": ["2"], "steps": 20}
    observed.steps = 19
    assert evidence(ss203, case(loop=loop, observed=observed)) == []


class Hiding(nn.Module):
    """Has layers in lists and dicts: two to train, a frozen one, and one that is registered."""

    def __init__(self):
        super().__init__()
        self.own = nn.Linear(2, 2)
        self.layers, self.deep = [nn.Linear(2, 2)], {"a": [(nn.Linear(2, 2), "b")]}
        self.again, self.teacher = [self.own], [nn.Linear(2, 2).requires_grad_(False)]


@pytest.mark.parametrize("severity", ["error", "warning"])
def test_hidden_layers_are_an_error_if_one_has_a_gradient(severity):
    model = Hiding()
    if severity == "error":
        model.layers[0].weight.grad = torch.ones(2, 2)
    optimizers = {"": torch.optim.SGD(model.parameters(), 0.1)}
    loop = SimpleNamespace(state=SimpleNamespace(model=model, optimizers=optimizers))
    (found,) = ss204.find(case(loop=loop))
    assert (found.evidence, found.severity) == ({"attributes": ["layers", "deep"]}, severity)
    optimizers["b"] = torch.optim.SGD(model.layers[0].parameters(), 0.1)
    (found,) = ss204.find(case(loop=loop))
    assert (found.evidence, found.severity) == ({"attributes": ["deep"]}, "warning")


@pytest.mark.parametrize(("taken", "is_found"), [(0, False), (10, True), (38, False), (40, False)])
def test_last_rate_is_compared_with_that_of_the_last_planned_step(taken, is_found):
    plan = tiny.plan(max_steps=40, schedule={"name": "cosine", "warmup": 0}).plan
    state = SimpleNamespace(progress=Progress(40, taken, 0, 0, 0.0), plateau=PlateauState())
    loop = SimpleNamespace(plan=plan, state=state, requests=SimpleNamespace(stopping=None))
    loop.stopping = None
    found = case(loop=loop, is_finished=True)
    found.task.schedule = None
    if not is_found:
        assert evidence(ss307, found) == []
        return
    (known,) = evidence(ss307, found)
    last, end = ((1 + math.cos(math.pi * step / 40)) / 2 for step in (9, 39))
    assert (known["steps"], known["planned"], known["skipped"]) == (10, 40, 30)
    assert (known["last"], known["end"]) == (pytest.approx(last), pytest.approx(end))


def test_log_points_are_added_up_without_the_time_of_the_first():
    model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(3)))
    observed = Observed(model, SimpleNamespace(max_grad_norm=2.0))
    names = []
    for at, norms in enumerate(([1.0, 2.0, 3.0], [4.0, None], [math.inf, math.nan, 1.0])):
        model[0].weight.grad = torch.ones(2, 2) if at == 1 else None
        model[2].weight.requires_grad_(at < 2)
        observed(
            SimpleNamespace(loss=[0.5] * len(norms), seconds=3.0, data_wait_s=at, grad_norm=norms)
        )
        names.append(list(observed.no_gradient))
    assert (observed.steps, observed.timed_steps) == (8, 5)
    assert (observed.seconds, observed.data_wait_s, list(observed.ratios)) == (6.0, 3, [1.5, 2.0])
    assert names == [
        ["0.weight", "1.weight", "2.weight"],
        ["1.weight", "2.weight"],
        ["1.weight"],
    ]


def test_share_of_a_split_leaves_out_what_is_excluded():
    found = ReadSplit("train", 10, [0, 1, 2, 3], [], n_excluded=2)
    assert (found.share, found.is_complete) == (0.5, False)
    assert ReadSplit("val", None, [0], []).share is None
    targets = (torch.zeros(4, 1),)
    values = ReadSplit("val", 4, [0, 1, 2, 3], [], targets=targets)
    assert (values.values.shape, values.labels) == ((4,), None)
    assert ReadSplit("val", 2, [0, 1], [], targets=targets).values is None
