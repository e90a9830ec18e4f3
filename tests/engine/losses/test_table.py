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


def test_every_registered_loss_has_a_case():
    assert {case.loss.name for case in CASES.values()} == set(BUILT_IN)


@known
@types
def test_sum_divided_by_its_items_equals_an_independent_formula(case, dtype, tolerance):
    outputs, leaves = leaves_of(as_type(case.outputs, dtype))
    targets = as_type(case.targets, dtype)
    wide, wide_leaves = leaves_of(case.outputs)
    mean = case.mean(wide, case.targets)
    total, items = sum_and_items(case, outputs, targets)
    assert off(total / items, mean) <= tolerance
    assert off(gradient(total / items, leaves), gradient(mean, wide_leaves)) <= tolerance


@splitting
@types
def test_uneven_micro_batches_add_up_to_the_mean_and_its_gradient(case, dtype, tolerance):
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
def test_gradient_matches_finite_differences(case):
    outputs, leaves = leaves_of(case.outputs)

    def value(*given):
        return sum_and_items(case, given if isinstance(outputs, tuple) else given[0], case.targets)[
            0
        ]

    assert torch.autograd.gradcheck(value, leaves, fast_mode=True)


@known
def test_calling_a_loss_returns_its_mean(case):
    mean = case.mean(case.outputs, case.targets)
    assert off(case.loss(case.outputs, case.targets), mean) <= 1e-12


@known
def test_half_precision_losses_are_summed_in_fp32(case):
    outputs = as_type(case.outputs, torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        total, items = sum_and_items(case, outputs, as_type(case.targets, torch.float32))
    assert total.dtype is torch.float32
    assert math.isclose(
        float(total) / items, float(case.mean(case.outputs, case.targets)), rel_tol=0.1
    )


def test_losses_that_are_not_separable_are_declared():
    declared = {case.loss.name for case in CASES.values() if not case.loss.is_separable}
    assert declared == {"contrastive", "contrastive_pairs", "dice"}


@pytest.mark.parametrize("name", BUILT_IN)
def test_loss_name_gives_the_loss_with_default_options(name):
    assert repr(as_loss(name, "samples").module) == repr(getattr(surestep.losses, name)())
    assert repr(getattr(surestep.losses, name)()).startswith(f"{name}(")


def test_losses_module_exports_every_registered_loss():
    assert set(surestep.losses.__all__) == set(BUILT_IN)
    for name, each in BUILT_IN.items():
        assert getattr(surestep.losses, name) is each
        assert each.name == name


@pytest.mark.parametrize("name", ["contrastive", "contrastive_pairs"])
def test_plan_names_a_loss_that_is_not_separable(name):
    task = surestep.Task(model=tiny.model(), loss=name, train=tiny.data())
    plan = plan_task(task, tiny.config(micro_batch_size=3)).plan
    assert plan.reason("batch_layout").startswith(f"splitting changes the numbers here: {name}(")
    assert "compares samples of a micro-batch with each other" in plan.reason("batch_layout")


@pytest.mark.parametrize("name", BUILT_IN)
def test_label_of_a_loss_shows_only_its_own_options(name):
    shown = repr(BUILT_IN[name]())
    options = re.findall(r"(\w+)=", shown)
    assert set(options) <= set(inspect.signature(BUILT_IN[name]).parameters)


class Copies(TorchDispatchMode):
    """Counts how many tensors are copied."""

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
def test_logits_are_not_copied_for_any_class_dimension(loss, shape):
    logits, targets = torch.randn(shape, requires_grad=True), torch.zeros(4, 5, dtype=torch.long)
    with Copies() as copies:
        loss.total(logits, targets).backward()
    assert copies.found == []


def test_unsupported_class_dimension_is_rejected():
    with pytest.raises(TaskError, match="class_dim=2 is not supported"):
        surestep.losses.multiclass(class_dim=2)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("alpha", [None, "set"])
@pytest.mark.parametrize("kind", ["indices", "masks"])
def test_focal_of_a_certain_and_correct_example_has_a_gradient_of_zero(gamma, alpha, kind):
    """In fp32 its probability is 1: the power of 0 has no finite derivative below 1."""
    weights = {"indices": [0.25, 0.75], "masks": 0.25}[kind] if alpha else None
    loss = as_loss(surestep.losses.focal(gamma=gamma, alpha=weights), "samples")
    outputs, targets = torch.tensor([[-200.0, 200.0], [0.5, 0.1]]), torch.tensor([1, 0])
    if kind == "masks":
        targets = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    outputs.requires_grad_()
    loss.value(outputs, targets).backward()
    assert outputs.grad[0].tolist() == [0.0, 0.0]
    assert (outputs.grad[1].isfinite() & (outputs.grad[1] != 0)).all()
