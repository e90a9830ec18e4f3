"""Proofs find the fault of each planted program, and none in a correct one."""

import pytest

from surestep.laws.checks import plain_torch
from surestep.laws.prove import prove_laws
from surestep.laws.recipe_task import RecipeTask
from surestep.recipes.load import call_recipe, load
from tests import tiny
from tests.laws.support.more_planted_programs import MORE
from tests.laws.support.planted_programs import CORRECT, PLANTED

# Of the others, `python -m tests.laws.proofs` proves all; these are of checks that have no other.
PROVED = PLANTED | {
    name: MORE[name]
    for name in (
        "a mean of the batch, on ranks",
        "a metric that is not reset",
        "autocast that is off",
    )
}
pytestmark = pytest.mark.slow("trains each program several times")


def prove(make_task, laws, callbacks=(), **options):
    config = tiny.config(**options)
    return prove_laws(make_task, config, callbacks=callbacks, laws=laws)


@pytest.mark.parametrize("name", PROVED)
def test_fault_is_found_with_its_step_and_value(name):
    planted = PROVED[name]
    (row,) = prove(planted.make_task, [planted.law], planted.callbacks, **planted.options).rows
    assert row.status == "fails", row
    assert (row.step, row.kind) == (planted.step, planted.kind), row
    assert row.value.startswith(planted.value)
    assert planted.source in row.source
    assert row.cause
    assert row.mend


@pytest.mark.parametrize("name", CORRECT)
def test_correct_program_has_no_failed_law(name):
    # All are proved by `python -m tests.laws.proofs correct`.
    laws = ("resuming", "splitting", "skipping", *["ranks"] * ("generator" in name))
    rows = prove(CORRECT[name], None if name == "a plain program" else laws).rows
    assert [row for row in rows if row.status == "fails"] == []
    untested = {"splitting", "ranks"} if "generator" in name else set()  # its forward draws
    assert {row.name for row in rows if row.status == "not tested"} == untested


@pytest.mark.parametrize("is_changed", [False, True])
def test_ejected_script_trains_the_weights_of_its_recipe(monkeypatch, is_changed):
    printed = plain_torch.print_script

    def print_changed(call, origin):
        text = printed(call, origin)
        assert "loss = sum_loss(" in text
        return text.replace("loss = sum_loss(", "loss = 2 * sum_loss(")

    if is_changed:
        monkeypatch.setattr(plain_torch, "print_script", print_changed)
    call = call_recipe(load("spiral"), {"optim.name": "sgd", "optim.lr": 0.1}, {})
    (row,) = prove_laws(RecipeTask(call), call.config, laws=["plain PyTorch"]).rows
    if is_changed:
        assert (row.status, row.step, row.kind) == ("fails", 1, "parameters"), row
    else:
        assert (row.status, row.text) == (
            "holds",
            "the weights of the script of surestep eject, after each of 10 steps",
        )


def test_script_that_cannot_be_printed_is_left_out():
    call = call_recipe(load("gan"), {}, {})
    (row,) = prove_laws(RecipeTask(call), call.config, laws=["plain PyTorch"]).rows
    assert row.status == "does not apply"
    assert row.text.startswith("eject prints no script: ")
