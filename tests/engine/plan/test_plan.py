import ast
import re
from copy import deepcopy
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

import surestep
from surestep.config import metric_direction
from surestep.config.config import Config
from surestep.engine.plan.context import PlanContext
from surestep.engine.plan.not_checked import NotChecked, not_checked
from surestep.engine.plan.plan import Plan, ResolvedOption
from surestep.engine.resolve.validation import (
    better_direction,
    measured_names,
)
from tests.tiny import FACTS, GIVEN, GPU, VALIDATED, decide


def known(said=None, given=GIVEN, **chosen):
    found = PlanContext(Config.from_options(said or {}), FACTS, given)
    found.chosen.update({name.replace("__", "."): value for name, value in chosen.items()})
    return found


def test_plan_gives_the_reason_for_each_option():
    plan = decide({"optim.lr": 0.5}, origins={"optim.lr": "run.toml"})
    assert plan.reason("optim.lr") == "set in run.toml"
    assert plan.reason("optim.eps") == "torch's default"
    assert [plan.reason(each.option) for each in plan.decisions] == [
        each.reason for each in plan.decisions
    ]


def test_plan_is_immutable():
    with pytest.raises(AttributeError, match=r"Use plan.replace\(batch_size=...\)"):
        decide().batch_size = 3


def test_plan_fields_are_its_decisions():
    plan = decide({"optim.betas": (0.5, 0.6), "micro_batch_size": 16, "seed": 4})
    for option, value, _ in plan.decisions:
        name = option.replace(".", "_")
        if option.removeprefix("optim.") in plan.optim_options:
            assert plan.optim_options[option.removeprefix("optim.")] == value
        elif not name.startswith(("schedule_", "average_")):
            assert getattr(plan, name) == value
    assert plan.optim_options == {"betas": (0.5, 0.6), "eps": 1e-8, "amsgrad": False}


@pytest.mark.parametrize(("system", "on_gpu"), [(FACTS, False), (GPU, True)])
def test_on_gpu_follows_the_planned_device(system, on_gpu):
    found = known(device=decide(system=system).device)
    assert (found.on_gpu, found.device) == (on_gpu, "cuda" if on_gpu else "cpu")


def test_metrics_are_prefixed_with_their_validation_set():
    weights = {"validation__weights": "raw"}
    assert measured_names(known(given=VALIDATED, **weights)) == [
        *("val/loss", "val/accuracy", "val/score"),
        *("far/loss", "far/accuracy", "far/score"),
    ]
    assert measured_names(known(**weights)) == []


@pytest.mark.parametrize(
    ("said", "metric"),
    [("accuracy", "val/accuracy"), ("far/accuracy", "far/accuracy"), ("loss", "val/loss")],
)
def test_metric_without_a_set_belongs_to_the_first_set(said, metric):
    assert decide({"validation.metric": said}, given=VALIDATED).validation_metric == metric


@pytest.mark.parametrize(
    ("metric", "declared", "mode"),
    [
        ("val/accuracy", None, "max"),
        ("far/loss", None, "min"),
        ("val/score", None, None),
        ("val/score", "max", "max"),
        ("val/accuracy", "min", "min"),
        (None, None, "min"),
    ],
)
def test_direction_of_a_metric_is_declared_or_known_by_name(metric, declared, mode):
    given = replace(VALIDATED, metrics={"accuracy": declared, "score": declared})
    assert better_direction(known(given=given, validation__metric=metric)) == mode


def test_no_metric_name_has_both_directions():
    assert not metric_direction.LARGER_IS_BETTER & metric_direction.SMALLER_IS_BETTER


@pytest.mark.parametrize(
    ("duration", "steps"), [("3 steps", 3), ("2 epochs", 14), ("2.5 epochs", 17.5)]
)
def test_duration_in_steps_may_be_fractional(duration, steps):
    assert known(steps_per_epoch=7).steps(duration) == steps


@pytest.mark.parametrize(
    ("length", "steps"), [("10%", 7), ("5 steps", 5), ("1 epoch", 7), ("0%", 0), ("100%", 70)]
)
def test_duration_may_be_a_percentage_of_the_run(length, steps):
    found = known(steps_per_epoch=7, total_steps=70)
    assert found.length_in_steps(length) == pytest.approx(steps)


@pytest.mark.parametrize(
    ("said", "origin"),
    [({"epochs": 3.0}, "epochs"), ({"epochs": None, "max_steps": 9}, "max_steps")],
)
def test_reason_of_total_steps_names_where_the_length_was_set(said, origin):
    plan = decide(said, origins={origin: "command line"})
    assert "command line" in plan.reason("total_steps")


def test_replace_does_not_change_the_original_plan():
    plan = decide()
    assert plan.replace(batch_size=3).batch_size == 3
    assert plan.batch_size == 64
    with pytest.raises(AssertionError):
        plan.replace(bach_size=3)


def test_plan_of_a_process_that_reads_everything_has_no_ranks_and_no_limit():
    plan = decide({"limit_val_batches": 2}, given=VALIDATED)
    single = plan.replace(parallel_rank=1, parallel_ranks=2).single_process()
    assert (single.parallel_rank, single.parallel_ranks, single.limit_val_batches) == (0, 1, None)


def test_first_reason_why_something_is_not_checked_is_kept():
    collected = NotChecked()
    for what, why in (("loss", "first"), ("metrics", "other"), ("loss", "second")):
        not_checked(what, why)
    collected.close()
    not_checked("padding", "too late")
    assert collected.notes == {"loss": "first", "metrics": "other"}


def test_deepcopy_of_a_plan_has_the_same_fields():
    plan = decide()
    assert vars(deepcopy(plan)).keys() == vars(plan).keys()
    assert deepcopy(plan).batch_size == plan.batch_size


def test_every_plan_attribute_used_in_the_source_is_decided():
    """Type checkers cannot see this: the attributes follow from the options."""
    known = set(vars(decide())) | set(dir(Plan))
    source = Path(surestep.__file__).parent
    read = {
        (str(file.relative_to(source)), node.attr)
        for file in source.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute)
        and (getattr(node.value, "id", "") == "plan" or getattr(node.value, "attr", "") == "plan")
    }
    assert len(read) > 200
    read.discard(("record/checkpoint/retention.py", "get"))  # a different kind of plan
    assert {each for each in read if each[1] not in known} == set()


def test_table_for_notebooks_has_the_same_rows_and_escapes_them():
    plan = decide({"optim.lr": 0.5})
    hostile = "<b onclick='x'>\x1b[31m"
    plan = plan.replace(
        decisions=(*plan.decisions, ResolvedOption(hostile, hostile, f"set {hostile}"))
    )
    html = plan._repr_html_()
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    cells = [
        [unescape(cell) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)] for row in rows
    ]
    assert cells[0] == ["option", "value", "reason"]
    shown = "<b onclick='x'>\\x1b[31m"
    assert cells[-1] == [shown, shown, f"set {shown}"]
    assert cells[1:-1] == [[name, str(value), why] for name, value, why in plan.relevant()[:-1]]
    assert "<b " not in html
    assert str(plan).splitlines()[-1] in unescape(html)
