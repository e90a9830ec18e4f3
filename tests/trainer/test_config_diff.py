"""Each option declares its effect on resume; one table covers everything else."""

import json
import math

import pytest
import torch
from torch import nn

from surestep.config.config import iter_options, option_info
from surestep.config.optim import Optim
from surestep.config.option import UNKNOWN, ResumeEffect
from surestep.engine.state.state import Progress
from surestep.record.io import dumps
from surestep.trainer.config_diff import (
    NOT_OPTIONS,
    ConfigChange,
    compare,
    may_change_data,
    resume_effect,
)
from surestep.trainer.planning import TaskOrigin
from surestep.trainer.run_identity import DERIVED, run_identity
from tests import tiny
from tests.engine.data.streams import Sized
from tests.engine.losses.test_multi import parts as parts_of_two

RECIPE = {"name": "digits", "path": "/a", "sha256": "0"}
NAMES = [name for name, _ in iter_options()]


def test_every_option_declares_an_effect_with_a_reason():
    effects = {name: option_info(name).resume for name in NAMES}
    assert [name for name, effect in effects.items() if effect is UNKNOWN] == []
    assert [name for name, effect in effects.items() if len(effect.reason.split()) < 4] == []


def test_every_value_that_the_plan_decides_has_an_effect():
    decided = {each.option for each in tiny.plan().plan.decisions} - {*DERIVED, "total_steps"}
    assert [name for name in decided if resume_effect(name) is UNKNOWN] == []


def test_change_of_an_unknown_option_is_blocked():
    assert resume_effect("brand_new").effect == "blocked"
    assert "brand_new" not in NAMES


def test_table_of_other_compared_values_names_no_option():
    assert NOT_OPTIONS.keys().isdisjoint(NAMES)


def test_option_of_one_of_several_optimizers_has_the_same_effect():
    assert resume_effect("optimizers.generator.optim.lr") == Optim.resume


@pytest.mark.parametrize(
    ("name", "effect"),
    [
        *(("logging.every", "safe"), ("checkpoint.every", "safe")),
        *(("data.num_workers", "safe"), ("torch", "not bitwise")),
        *(("device", "not bitwise"), ("threads", "not bitwise")),
        *(("micro_batch_size", "not bitwise"), ("compile", "not bitwise")),
        *(("parallel.strategy", "not bitwise"), ("parallel.ranks", "not bitwise")),
        *(("parallel.shard", "not bitwise"), ("parallel.sync_batchnorm", "blocked")),
        *(("optim.lr", "blocked"), ("schedule.name", "blocked"), ("task.hidden", "blocked")),
        *(("recipe", "blocked"), ("data", "blocked"), ("model", "incompatible")),
        ("code", "not bitwise"),
    ],
)
def test_effects_are_those_that_the_documentation_promises(name, effect):
    assert resume_effect(name).effect == effect


def compared(before, now, *, step=2, taken=None, shared=None):
    """Return what `compare` lists for two setups, each a Task's parts and options, by its effect.

    Only a run that is at `step`, of which `taken` were taken, reads the first from a file.
    """
    (parts, options), (new_parts, new_options) = before, now
    shared = {"max_steps": 8, **(shared or {})}
    identity = run_identity(TaskOrigin(), tiny.plan(parts, **{**shared, **options}))
    planned = tiny.plan(new_parts, **{**shared, **new_options})
    progress = Progress(step, step if taken is None else taken, 0, 8, 8.0)
    rows = compare(
        json.loads(dumps(identity)), run_identity(TaskOrigin(), planned), planned, progress
    )
    return {row.shown: row.resume.effect for row in rows}


@pytest.mark.parametrize(
    ("before", "now", "rows"),
    [
        ({"parameters": {"a": 1}}, {"parameters": {"a": 1, "b": 2}}, {"--task.b": "blocked"}),
        ({"parameters": {"a": 1, "b": 2}}, {"parameters": {"a": 1}}, {"--task.b": "blocked"}),
        ({"parameters": {"a": 1}}, {"parameters": {"a": 2}}, {"--task.a": "blocked"}),
        ({"recipe": RECIPE}, {"recipe": {**RECIPE, "sha256": "1"}}, {"recipe file": "blocked"}),
        ({"recipe": RECIPE}, {"recipe": {**RECIPE, "path": "/b"}}, {"recipe.path": "safe"}),
        ({"recipe": RECIPE}, {}, {"recipe file": "blocked"}),
        ({"recipe": RECIPE, "study": "a"}, {"recipe": RECIPE, "name": "b"}, {}),
    ],
)
def test_origin_of_a_task_is_compared(before, now, rows):
    planned = tiny.plan(max_steps=8)
    known, new = (run_identity(TaskOrigin(**origin), planned) for origin in (before, now))
    found = compare(json.loads(dumps(known)), new, planned, Progress())
    assert {row.shown: row.resume.effect for row in found} == rows


class Holding(nn.Linear):
    """A root module with an attribute, and a buffer of some size."""

    def __init__(self, value, size=1):
        super().__init__(4, 3)
        self.value = value
        self.register_buffer("memory", torch.zeros(size))


def holding(*arguments):
    return {"model": Holding(*arguments)}, {}


@pytest.mark.parametrize(
    ("before", "now"),
    [
        *((1.0, 2.0), (True, False), ((0, 0), (1, 0)), ([0], [0, 0]), ("a", "b"), (0, 0.5)),
        *((math.inf, -math.inf), (math.inf, math.nan), ((1, (2,)), (1, (3,)))),
        *((nn.functional.relu, nn.functional.gelu), (None, 1)),
    ],
)
def test_setting_of_a_module_is_compared_whatever_plain_value_it_has(before, now):
    row = {"model: (the model).value": "not bitwise"}
    assert compared(holding(before), holding(now)) == row
    assert compared(holding(now), holding(before)) == row


@pytest.mark.parametrize(
    "value", [math.inf, math.nan, (True, 0.5), [1, (2,)], torch.zeros(1), {1}, None, max]
)
def test_setting_that_is_the_same_is_no_change_after_it_was_read_from_a_file(value):
    assert compared(holding(value), holding(value)) == {}


class Shifted(Sized):
    def sample(self, index):
        x, y = super().sample(index)
        return x + 1, y


def test_length_that_follows_from_other_data_is_not_listed():
    options = {"max_steps": None, "epochs": 2}
    found = compared(({}, {}), ({"train": tiny.data(12)}, {}), shared=options)
    assert found == {"train samples": "blocked"}


def test_private_attribute_of_a_module_is_no_setting():
    models = [Holding(1), Holding(1)]
    models[1]._calls = 3
    assert compared(*(({"model": model}, {}) for model in models)) == {}


class Scaling(nn.CrossEntropyLoss):
    """A loss with several tensors."""

    def __init__(self, *values):
        super().__init__()
        for name, value in zip("abc", values, strict=False):
            self.register_buffer(name, torch.tensor(value))


SOME = {"exclude_samples": [1, 2]}
CHANGES = {
    "a buffer of another shape": (holding(1), holding(1, 2), {"model": "incompatible"}),
    "a wider layer": (
        ({}, {}),
        ({"model": nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 3))}, {}),
        {"model": "incompatible"},
    ),
    "other excluded samples": (({}, SOME), ({}, {"exclude_samples": [1, 3]}), "exclude_samples"),
    "more excluded samples": (({}, SOME), ({}, {"exclude_samples": [1, 2, 3]}), "exclude_samples"),
    "fewer samples": (({}, {}), ({"train": tiny.data(19)}, {}), {"train samples": "blocked"}),
    "other samples": (({}, {}), ({"train": tiny.data(seed=1)}, {}), {"some samples": "blocked"}),
    "weights of losses": (
        (parts_of_two(), {}),
        (parts_of_two(loss_weights={"mask": 0.5}), {}),
        {"loss": "blocked"},
    ),
    "a tensor of the loss": (
        ({"loss": Scaling(1.0, 2.0)}, {}),
        ({"loss": Scaling(1.0, 3.0)}, {}),
        {"loss": "blocked"},
    ),
    "mode of the loss": (({}, {}), ({"loss": nn.CrossEntropyLoss().eval()}, {}), {}),
    "more workers of a stream": (
        ({"train": Sized()}, {"data": {"num_workers": 1}}),
        ({"train": Sized()}, {"data": {"num_workers": 2}}),
        {"data.num_workers": "blocked"},
    ),
    "a worker of a stream": (
        ({"train": Sized()}, {"data": {"num_workers": 0}}),
        ({"train": Sized()}, {"data": {"num_workers": 1}}),
        {},
    ),
    "other samples of a validation stream": (
        ({"val": {"far": Sized(), "near": Sized()}}, {}),
        ({"val": {"far": Shifted(), "near": Sized()}}, {}),
        {"far: first samples": "not bitwise"},
    ),
    "evaluations": (
        ({"val": tiny.data(4)}, {}),
        ({"val": tiny.data(4)}, {"validation": {"every": "2 steps"}}),
        {"validation.every": "safe"},
    ),
    "evaluations that are counted": (
        ({"val": tiny.data(4)}, {"early_stop": {"patience": 2}}),
        (
            {"val": tiny.data(4)},
            {"early_stop": {"patience": 2}, "validation": {"every": "2 steps"}},
        ),
        {"validation.every": "not bitwise"},
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_change_is_listed_once_by_what_changed(name):
    before, now, rows = CHANGES[name]
    assert compared(before, now) == ({rows: "blocked"} if isinstance(rows, str) else rows)


COSINE = {"schedule": {"name": "cosine"}}
SWA = {
    "schedule": {"name": "constant", "warmup": 0},
    "average": {"kind": "swa", "start": "75%", "every": "1 step"},
}


@pytest.mark.parametrize(
    ("options", "steps", "taken", "effect"),
    [
        *(({}, 16, None, "safe"), ({}, 2, None, "safe"), ({}, 1, None, "incompatible")),
        *((COSINE, 16, None, "blocked"), (COSINE, 16, 1, "safe"), (COSINE, 16, 0, "safe")),
        *((SWA, 16, 5, "safe"), (SWA, 16, 6, "safe"), (SWA, 16, 7, "blocked")),
    ],
)
def test_other_length_is_compared_by_the_steps_so_far(options, steps, taken, effect):
    """Of 8 steps the average begins after the sixth, and of 16 after the twelfth."""
    step = 2 if taken is None else max(2, taken)
    found = compared(({}, {}), ({}, {"max_steps": steps}), step=step, taken=taken, shared=options)
    assert found == {"max_steps": effect}


@pytest.mark.parametrize("differing", [0, 1, 23, 39, 40])
def test_custom_schedule_is_compared_at_each_step_so_far(differing):
    def schedule(taken, total):
        return total / 90 if taken == differing else 1.0

    parts, longer = {"schedule": schedule}, {"max_steps": 90}
    found = compared((parts, {"max_steps": 60}), (parts, longer), step=40)
    assert found == {"max_steps": "safe" if differing == 40 else "blocked"}


@pytest.mark.parametrize(
    ("name", "effect", "may"),
    [
        *(("seeds", "not bitwise", True), ("code", "not bitwise", True), ("data", "allowed", True)),
        *(("torch", "not bitwise", False), ("logging.every", "safe", False)),
    ],
)
def test_data_may_change_with_what_is_allowed_or_with_code_and_seeds(name, effect, may):
    change = ConfigChange(name, 1, 2, ResumeEffect(effect, "as it is"), name)
    assert may_change_data([change]) is may
