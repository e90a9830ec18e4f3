from dataclasses import replace

import pytest

from surestep.config.config import Config, option_info
from surestep.engine.distributed.launcher_env import LaunchInfo
from surestep.engine.optim.registry import BUILT_IN as OPTIMIZERS
from surestep.engine.optim.registry import options_of
from surestep.engine.resolve import RESOLVERS
from surestep.engine.resolve.resolver import plan_options, resolve_seed
from tests.tiny import FACTS, GIVEN, GPU, LOADED, OLD_GPU, VALIDATED, decide

SAID = {
    **{"epochs": 3.0, "batch_size": 7, "micro_batch_size": 2, "seed": 5, "deterministic": True},
    **{"device": "cpu", "precision": "bf16", "clip_value": 0.5, "on_nonfinite": "skip"},
    **{"max_nonfinite_steps": 3, "optim.name": "adamw", "optim.lr": 0.2, "optim.weight_decay": 0.3},
    **{"optim.betas": (0.5, 0.6), "optim.eps": 1e-5, "schedule.name": "cosine"},
    **{"schedule.warmup": "3 steps", "schedule.min_lr_ratio": 0.1, "schedule.min_lr_mode": "cut"},
    **{"schedule.interval": "2 steps", "data.num_workers": 2, "data.pin_memory": False},
    **{"data.persistent_workers": False, "data.prefetch_factor": 3, "data.drop_last": True},
    **{"data.shuffle": False, "validation.every": "2 epochs", "validation.batch_size": 9},
    **{"validation.metric": "far/score", "validation.mode": "max", "early_stop.patience": 4},
    **{"early_stop.min_delta": 0.1, "checkpoint.every": "10 minutes", "checkpoint.keep_last": 5},
    **{"checkpoint.keep_best": 0, "logging.every": "5 items", "logging.progress": "bar"},
}


@pytest.mark.parametrize("system", [FACTS, GPU, OLD_GPU], ids=["cpu", "gpu", "old gpu"])
@pytest.mark.parametrize(
    "given",
    [GIVEN, LOADED, VALIDATED, replace(GIVEN, own_optimizer=True), replace(GIVEN, is_stream=True)],
)
def test_every_decision_has_a_reason(system, given):
    found = decide({}, system, given)
    decided = [each.option for each in found.decisions]
    assert decided == [option for option in plan_options() if option in decided]
    every_option = {option for known in OPTIMIZERS.values() for option in known.options}
    # Only options of other optimizers are undecided; all of the chosen one are decided.
    assert {option for option in plan_options() if option not in decided} == {
        "optim.split",
        *(f"optim.{option}" for option in every_option if option not in found.optim_options),
    }
    assert set(found.optim_options) == set(options_of(found.optim_name))
    assert all(each.reason and "{" not in each.reason for each in found.decisions)


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("data.sampler", replace(GIVEN, is_stream=True)),
        ("batch_transform", replace(GIVEN, batch_transform="mixup(0.2)")),
    ],
)
def test_reason_states_that_each_rank_loads_all_data(option, given):
    ranks = replace(FACTS, launched=LaunchInfo(rank=1, size=2, local_size=2))
    assert (
        decide({}, ranks, given)
        .reason(option)
        .endswith("; each of 2 ranks loads all of it, and keeps its share")
    )
    assert "ranks" not in decide({}, FACTS, given).reason(option)


def test_manual_step_reason_names_where_gradients_are_summed():
    ranks = replace(FACTS, launched=LaunchInfo(rank=1, size=2, local_size=2))
    found = decide({}, ranks, replace(GIVEN, own_step=True))
    assert found.reason("parallel.strategy").endswith("manual_step.step sums the gradients")


def test_every_option_has_a_declared_default_or_a_rule():
    """An undeclared default would be None, "not set"."""
    for option in plan_options():
        assert option in RESOLVERS or option_info(option).default[1] != "not set", option


@pytest.mark.parametrize("option", [name for name in SAID if name != "epochs"])
def test_set_value_is_used_and_its_origin_is_the_reason(option):
    found = decide(SAID, given=VALIDATED, origins={option: "command line"})
    decision = next(each for each in found.decisions if each.option == option)
    assert str(decision.value) == str(SAID[option])
    assert decision.reason == "set on the command line"


def test_schedule_durations_are_converted_to_steps():
    said = {"epochs": 5.0, "schedule.warmup": "20%", "schedule.interval": "0.5 epochs"}
    shape = decide({**said, "batch_size": 10}).schedule
    assert (shape.total, shape.warmup, shape.interval) == (50, 10, 5)
    assert decide({**said, "schedule.warmup": "1.5 epochs", "batch_size": 10}).schedule.warmup == 15


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"name": "inverse_sqrt", "warmup": "7 steps"}, {"timescale": 7.0}),
        ({"name": "inverse_sqrt"}, {"timescale": 10_000.0}),
        ({"name": "inverse_sqrt", "timescale": "30%"}, {"timescale": 15.0}),
        (
            {"name": "cyclic", "step_size_up": "8 steps"},
            {"step_size_up": 8.0, "step_size_down": 8.0},
        ),
        (
            {"name": "cyclic", "step_size_up": "8 steps", "step_size_down": "1 epoch"},
            {"step_size_up": 8.0, "step_size_down": 10.0},
        ),
        ({"name": "multi_step", "milestones": ("50%", "4 epochs")}, {"milestones": (25.0, 40.0)}),
    ],
)
def test_lengths_of_a_curve_follow_from_others(said, expected):
    options = {f"schedule.{name}": value for name, value in said.items()}
    curve = decide({"epochs": 5.0, "batch_size": 10, **options}).schedule.curve_options
    assert {name: curve[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("said", "ratio"),
    [
        ({"name": "cosine"}, 0.0),
        ({"name": "cosine", "min_lr": 0.01}, 0.1),
        ({"name": "one_cycle"}, 1 / (25 * 1e4)),
        ({"name": "one_cycle", "div_factor": 10, "final_div_factor": 100}, 1e-3),
        ({"name": "one_cycle", "min_lr_ratio": 0.25}, 0.25),
    ],
)
def test_lowest_rate_is_a_share_of_the_peak(said, ratio):
    options = {f"schedule.{name}": value for name, value in said.items()}
    assert decide({"optim.lr": 0.1, **options}).schedule.min_lr_ratio == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"kind": "swa"}, (30, 10.0, 30, True)),
        ({"kind": "swa", "start": "27 steps"}, (27, 10.0, 20, True)),
        ({"kind": "swa", "start": "27 steps", "every": "3 steps"}, (27, 3.0, 27, False)),
        ({"kind": "ema", "start": "15%", "every": "0.05 epochs"}, (6, 1.0, 0, True)),
    ],
)
def test_average_has_its_lengths_in_steps(said, expected):
    options = {f"average.{name}": value for name, value in said.items()}
    found = decide({"epochs": 4.0, "batch_size": 10, **options}).average
    assert (found.start, found.interval, found.counted_from, found.by_epochs) == expected


def test_average_has_no_update_before_its_start():
    swa = {"epochs": 4.0, "batch_size": 10, "average.kind": "swa"}
    spec = decide({**swa, "average.lr": 0.1, "average.anneal": "14%"}).average
    assert (spec.lr, spec.anneal) == (0.1, 6)
    assert [spec.count_updates(steps) for steps in (0, 12, 30, 39, 40)] == [0, 0, 0, 0, 1]


def test_seed_is_resolved_before_the_plan():
    assert resolve_seed(Config()) == decide().seed
    assert resolve_seed(Config(seed=9)) == decide({"seed": 9}).seed == 9
