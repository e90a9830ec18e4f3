"""What the checks of a proof decide from records, without training."""

import pickle
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import ConfigError, TaskError
from surestep.laws import prove
from surestep.laws.checks import checkpoint, plain_torch, precision, ranks, splitting
from surestep.laws.checks.order import find_problem
from surestep.laws.checks.resuming import Kill, keep_common_gradients, list_chains
from surestep.laws.evaluation_layers import EvaluationLayers
from surestep.laws.explain import explain_failure
from surestep.laws.prove import CHECKS, import_check
from surestep.laws.recipe_task import RecipeTask
from surestep.laws.record import Digest, RunRecord, StepRecord
from surestep.laws.run import Recorded
from surestep.laws.runner import RunFailedError, drop_names, start_at
from surestep.laws.trace import ModuleCall, find_line, find_module
from surestep.recipes.load import call_recipe, load
from tests import tiny

ONE, OTHER = Digest("float32", (1,), "a"), Digest("float32", (1,), "b")


def calls(*rows):
    return [
        ModuleCall(name, "Linear", "net.py:3", (got,), (returned,)) for name, got, returned in rows
    ]


def test_module_with_equal_inputs_and_other_outputs_is_found():
    first = calls(("a", ONE, ONE), ("b", ONE, ONE), ("", ONE, ONE))
    second = calls(("a", ONE, ONE), ("b", ONE, OTHER), ("", ONE, OTHER))
    assert find_module(first, second) == "b (Linear), net.py:3"
    assert find_module(first, first) == ""


def test_inputs_that_differ_are_those_of_the_module_around_it():
    first = calls(("a.b", ONE, ONE), ("a", ONE, ONE))
    second = calls(("a.b", OTHER, OTHER), ("a", ONE, OTHER))
    assert find_module(first, second) == "a (Linear), net.py:3"


def test_module_that_only_one_run_calls_is_found():
    assert "which only one of the runs called" in find_module(calls(("a", ONE, ONE)), [])


def test_line_is_known_for_custom_code_only():
    assert find_line(calls).startswith(f"{__file__}:")
    assert find_line(nn.Linear.forward) == ""


def orders(*lists, **more):
    return {"orders": list(map(torch.tensor, lists)), "is_drawn": False, "is_shuffled": True} | more


GOOD = ([0, 1, 2, 3, 4, 5], [5, 1, 2, 3, 4, 0], [1, 0, 2, 3, 4, 5])


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (orders(*GOOD), ""),
        (orders([0, 0, 2, 3, 4, 5], *GOOD[1:]), "Sample 0 is in epoch 1 2 times"),
        (orders(GOOD[0], [5, 1, 2, 3, 4, 6], GOOD[2]), "Epoch 1 has other samples"),
        (orders(GOOD[0], GOOD[0], GOOD[2]), "The order is the same"),
        (orders(GOOD[0], GOOD[1], GOOD[0]), "The order is the same"),
        (orders(GOOD[0], GOOD[0], GOOD[0], is_shuffled=False), ""),
        (orders([0, 0, 2, 3, 4, 5], *GOOD[1:], is_drawn=True), ""),
    ],
)
def test_faults_of_orders_are_found(found, problem):
    text = find_problem(found, found)
    assert text.startswith(problem)
    assert bool(text) is bool(problem)


def test_order_of_another_process_is_compared():
    other = orders(GOOD[1], *GOOD[1:])
    assert "is different in a second process" in find_problem(orders(*GOOD), other)


def test_runs_are_killed_at_every_moment():
    chains = list_chains(10, 4, evaluates=True, loads_in_workers=True)
    kills = [kill for chain in chains for kill in chain.kills]
    assert {kill.moment for kill in kills} == {"step", "save", "evaluation"}
    assert Kill("step", 4) in kills
    assert ("data.num_workers", 2) in chains[1].changes


def test_kills_after_the_last_step_are_left_out():
    chains = list_chains(2, 2, evaluates=True, loads_in_workers=False)
    assert [chain.kills for chain in chains] == [(Kill("step", 1),)]


def test_resumed_run_is_compared_from_its_first_state():
    values = {"data": {"x": ONE}, "parameters": {"w": ONE}}
    found = start_at(RunRecord([StepRecord(step, values) for step in range(4)]), 2)
    assert [step for step, _ in found.steps] == [2, 3]
    assert found.steps[0].values == {"parameters": {"w": ONE}}
    assert found.steps[1].values == values


def test_only_the_rest_of_a_checkpoint_is_left_out_by_name():
    values = {"parameters": {"best.w": ONE}, "other state": {"best.step": ONE, "cycle": ONE}}
    (step,) = drop_names(RunRecord([StepRecord(1, values)]), "best.").steps
    assert step.values == {"parameters": {"best.w": ONE}, "other state": {"cycle": ONE}}


@pytest.mark.parametrize("name", CHECKS)
def test_every_check_has_a_name_and_an_explanation(name):
    module = import_check(name)
    assert module.LAW.startswith(("law ", "check"))
    assert all(explain_failure(module.NAME, ""))


def test_dropout_and_batch_norm_are_those_of_evaluations():
    layers = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5)).train()
    x = torch.randn(8, 4)
    with EvaluationLayers():
        inside = layers(x)
    assert torch.equal(inside, layers.eval()(x))
    assert not layers[0].running_mean.any()


def test_dropout_of_attention_is_off():
    q = torch.randn(1, 2, 4)
    with EvaluationLayers():
        found = nn.functional.scaled_dot_product_attention(q, q, q, None, 0.9, True)
    assert torch.equal(found, nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True))


def test_recipe_is_imported_again_by_a_new_interpreter():
    made = RecipeTask(call_recipe(load("spiral"), {"optim.lr": 0.5}, {}))
    assert isinstance(pickle.loads(pickle.dumps(made))(), surestep.Task)


def test_task_that_exists_already_is_rejected():
    with pytest.raises(TaskError, match="Pass a function that makes the task"):
        surestep.prove_laws(tiny.task(), tiny.config())


def test_config_that_is_a_dict_is_rejected():
    with pytest.raises(ConfigError, match="config is a dict"):
        surestep.prove_laws(tiny.task, {"epochs": 1})


def test_ctrl_c_returns_what_is_known(monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(prove, "_start_runner", interrupt)
    proof = surestep.prove_laws(tiny.task, tiny.config())
    assert (proof.stopped, list(proof.rows)) == ("Ctrl-C", [])


STEP = splitting.Step({}, {"a": [torch.ones(2, 3)]}, {"a": "net.py:3"}, torch.ones(()))


def split_off_by(error, dtype=torch.float32):
    """Return the first step of a run in micro-batches, whose output differs in one element."""
    output = torch.ones(2, 3, dtype=dtype)
    output[1, 2] += error
    return replace(STEP, outputs={"a": list(output.split(1))}, loss=STEP.loss.to(dtype))


class Widened:
    """Trains in float64: the second run differs by a number, or both fail."""

    facts = SimpleNamespace(batch_size=2)

    def __init__(self, error):
        self.error = error

    def train_all(self, variants):
        if self.error is None:
            raise RunFailedError("It has float32 inside.")
        steps = [split_off_by(error, torch.float64) for error in (0.0, self.error)]
        joined = replace(steps[0], outputs={"a": [torch.cat(steps[0].outputs["a"])]})
        return [Recorded(RunRecord(), notes=[step]) for step in (joined, steps[1])]


@pytest.mark.parametrize(
    ("error", "error_of_float64", "is_rounding"),
    [
        (1e-4, 1e-13, True),  # it shrinks with the precision
        (1e-4, 1e-4, False),
        (1e-4, 0.0, True),
        (1e-4, None, None),  # small, and the program has no float64
        (1e-2, None, False),
    ],
)
def test_difference_that_shrinks_in_float64_is_rounding(error, error_of_float64, is_rounding):
    (difference,) = splitting.find_differences(STEP, split_off_by(error))
    assert not difference.is_rounding
    assert splitting._is_rounding(Widened(error_of_float64), 1, difference) is is_rounding


def test_difference_of_sums_in_another_order_is_rounding():
    (difference,) = splitting.find_differences(STEP, split_off_by(1e-6))
    assert difference.is_rounding


def test_first_step_is_the_same_in_another_process():
    found = pickle.loads(pickle.dumps(split_off_by(0.5)))
    assert [len(tensor) for tensor in found.outputs["a"]] == [1, 1]
    (difference,) = splitting.find_differences(STEP, found)
    assert difference.place.name == "a"
    assert found.lines == {"a": "net.py:3"}


def test_gradients_that_an_earlier_step_left_are_not_compared():
    one = StepRecord(2, {"loss": {"sum": ONE}, "gradients": {"a": ONE, "stale": OTHER}})
    other = StepRecord(2, {"loss": {"sum": ONE}, "gradients": {"a": OTHER}})
    first, second = keep_common_gradients(one, other)
    assert first.values == {"loss": {"sum": ONE}, "gradients": {"a": ONE}}
    assert second.values == other.values


def step(number, rate, dtype="float32"):
    rates = {"model, group 0": Digest("value", (), rate)}
    loss = {"sum over the items": Digest(dtype, (), "a")}
    return StepRecord(number, {"learning rate": rates, "loss": loss})


def test_schedule_that_advances_on_a_skipped_step_is_found():
    base = RunRecord([step(1, "0.1"), step(2, "0.2"), step(3, "0.3")])
    held = RunRecord([step(1, "0.1"), step(2, "0.2"), step(3, "0.2")])
    assert precision.find_advance(base, held) == ""
    assert (
        precision.find_advance(base, base) == "model, group 0 is 0.3 in step 3, and 0.2 was skipped"
    )


def test_sum_of_losses_in_16_bits_is_found():
    assert precision.find_sum(RunRecord([step(1, "0.1")])) == ""
    assert precision.find_sum(RunRecord([step(1, "0.1", "bfloat16")])) == "bfloat16"


def test_shares_of_ranks_are_uneven():
    assert [ranks._choose_batch_size(size) for size in (8, 7, 2)] == [7, 7, 2]


@pytest.mark.parametrize("is_swapped", [False, True])
def test_outputs_of_ranks_are_compared_if_they_had_the_samples_in_order(is_swapped):
    whole = splitting.Step({"": [torch.arange(3.0)]}, {"": [torch.arange(3.0)]})
    shares = [torch.arange(2.0), torch.tensor([2.0])]
    if is_swapped:
        shares.reverse()
    steps = [splitting.Step({"": [share]}, {"": [share * 2]}, loss=ONE) for share in shares]
    joined = ranks._join(whole, steps)
    assert list(joined.outputs) == ([] if is_swapped else [""])
    assert joined.loss is ONE


@pytest.mark.parametrize(
    ("which", "evaluated", "is_measured"),
    [
        ("best", "average", True),
        ("last", "weights", True),
        ("last", "average", False),
        ("average", "average", True),
        ("average", "weights", False),
    ],
)
def test_metrics_are_compared_with_the_weights_that_they_are_of(which, evaluated, is_measured):
    assert checkpoint._is_measured(which, evaluated) is is_measured


def test_weights_of_a_script_are_compared_by_the_names_that_it_has():
    values = {"parameters": {"a": ONE, "b": ONE}, "loss": {"sum": ONE}}
    script = RunRecord([StepRecord(1, {"parameters": {"a": OTHER}})])
    (found,) = plain_torch._select(
        RunRecord([StepRecord(1, values), StepRecord(2, values)]), script
    ).steps
    assert found == StepRecord(1, {"parameters": {"a": ONE}})


def test_micro_batches_of_batch_norm_have_two_samples_or_more():
    assert splitting.choose_sizes(8, has_batch_norm=False) == [4, 3, 1]
    assert splitting.choose_sizes(8, has_batch_norm=True) == [4, 3, 2]
    assert splitting.choose_sizes(7, has_batch_norm=True) == []
    assert splitting.choose_sizes(1, has_batch_norm=False) == []


def test_outputs_of_other_lengths_are_not_compared():
    whole = splitting.Step(outputs={"": [torch.ones(4, 6)]})
    padded = splitting.Step(outputs={"": [torch.ones(2, 6), torch.ones(2, 5)]})
    assert list(splitting.find_differences(whole, padded)) == []
