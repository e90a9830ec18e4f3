import inspect
import math
import re

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import surestep
from surestep.base.errors import TaskError
from surestep.engine.losses.adapt import as_loss
from surestep.engine.losses.registry import BUILT_IN
from surestep.trainer.planning import plan_task
from tests import tiny
from tests.engine.losses.table import CASES, Case, N, as_type, rows

known = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
splitting = pytest.mark.parametrize(
    "case",
    [case for case in CASES.values() if case.loss.is_separable],
    ids=[name for name, case in CASES.items() if case.loss.is_separable],
)
types = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)], ids=["fp32", "fp64"]
)


def sum_and_items(case: Case, outputs, targets) -> tuple[Tensor, float]:
    loss = as_loss(case.loss, "samples")
    items = loss.items((outputs, targets) if targets is not None else outputs, targets)
    total, _ = loss.to_sum(loss.value(outputs, targets), items)
    return total, items


def gradient(value: Tensor, leaves: list[Tensor]) -> Tensor:
    return torch.cat([each.flatten() for each in torch.autograd.grad(value, leaves)])


def leaves_of(outputs):
    if isinstance(outputs, Tensor):
        leaf = outputs.clone().requires_grad_()
        return leaf, [leaf]
    leaves = [each.clone().requires_grad_() for each in outputs]
    return tuple(leaves), leaves


def off(a: Tensor, b: Tensor) -> float:
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).norm() / b.norm())


def test_every_loss_of_the_table_has_a_case():
    assert {case.loss.name for case in CASES.values()} == set(BUILT_IN)


@known
@types
def test_the_sum_divided_by_its_items_is_the_mean_of_another_formula(case, dtype, tolerance):
    outputs, leaves = leaves_of(as_type(case.outputs, dtype))
    targets = as_type(case.targets, dtype)
    wide, wide_leaves = leaves_of(case.outputs)
    mean = case.mean(wide, case.targets)
    total, items = sum_and_items(case, outputs, targets)
    assert off(total / items, mean) <= tolerance
    assert off(gradient(total / items, leaves), gradient(mean, wide_leaves)) <= tolerance


@splitting
@types
def test_uneven_parts_add_up_to_the_mean_and_its_gradient(case, dtype, tolerance):
    outputs, leaves = leaves_of(as_type(case.outputs, dtype))
    targets = as_type(case.targets, dtype)
    wide, wide_leaves = leaves_of(case.outputs)
    mean = case.mean(wide, case.targets)
    parts = [
        sum_and_items(case, rows(outputs, a, b), rows(targets, a, b))
        for a, b in ((0, 1), (1, 2), (2, 6), (6, N))
    ]
    total, items = sum(total for total, _ in parts), sum(items for _, items in parts)
    assert off(total / items, mean) <= tolerance
    assert off(gradient(total / items, leaves), gradient(mean, wide_leaves)) <= tolerance


@known
def test_the_gradient_is_that_of_the_value(case):
    outputs, leaves = leaves_of(case.outputs)

    def value(*given):
        return sum_and_items(case, given if isinstance(outputs, tuple) else given[0], case.targets)[
            0
        ]

    assert torch.autograd.gradcheck(value, leaves, fast_mode=True)


@known
def test_called_it_returns_its_mean(case):
    mean = case.mean(case.outputs, case.targets)
    assert off(case.loss(case.outputs, case.targets), mean) <= 1e-12


@known
def test_half_precision_is_summed_in_more_digits(case):
    outputs = as_type(case.outputs, torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        total, items = sum_and_items(case, outputs, as_type(case.targets, torch.float32))
    assert total.dtype is torch.float32
    assert math.isclose(
        float(total) / items, float(case.mean(case.outputs, case.targets)), rel_tol=0.1
    )


def test_what_does_not_split_is_declared():
    declared = {case.loss.name for case in CASES.values() if not case.loss.is_separable}
    assert declared == {"contrastive", "contrastive_pairs", "dice"}


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_name_is_the_loss_with_its_defaults(name):
    assert repr(as_loss(name, "samples").module) == repr(getattr(surestep.losses, name)())
    assert repr(getattr(surestep.losses, name)()).startswith(f"{name}(")


def test_the_module_offers_what_the_table_holds():
    assert set(surestep.losses.__all__) == set(BUILT_IN)
    for name, each in BUILT_IN.items():
        assert getattr(surestep.losses, name) is each
        assert each.name == name


@pytest.mark.parametrize("name", ["contrastive", "contrastive_pairs"])
def test_the_plan_names_a_loss_that_does_not_split(name):
    task = surestep.Task(model=tiny.model(), loss=name, train=tiny.data())
    plan = plan_task(task, tiny.config(micro_batch_size=3)).plan
    assert plan.reason("batch_layout").startswith(f"splitting changes the numbers here: {name}(")
    assert "compares samples of a micro-batch with each other" in plan.reason("batch_layout")


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_loss_is_shown_with_its_own_options_alone(name):
    shown = repr(BUILT_IN[name]())
    options = re.findall(r"(\w+)=", shown)
    assert set(options) <= set(inspect.signature(BUILT_IN[name]).parameters)


class Copies(TorchDispatchMode):
    """Counts the tensors that are copied."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten.clone, torch.ops.aten.copy_):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("loss", "shape"),
    [
        (surestep.losses.multiclass(class_dim=-1), (4, 5, 3)),
        (surestep.losses.next_token(targets="shifted"), (4, 5, 3)),
        (surestep.losses.masked_tokens(class_dim=1), (4, 3, 5)),
    ],
)
def test_logits_are_not_copied_wherever_the_classes_are(loss, shape):
    logits, targets = torch.randn(shape, requires_grad=True), torch.zeros(4, 5, dtype=torch.long)
    with Copies() as copies:
        loss.total(logits, targets).backward()
    assert copies.found == []


def test_a_class_dimension_that_is_not_supported_is_an_error():
    with pytest.raises(TaskError, match="class_dim=2 is not supported"):
        surestep.losses.multiclass(class_dim=2)
