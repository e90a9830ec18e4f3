"""Each option declares its effect on resume; one table covers everything else."""

import pytest

from surestep.config.config import iter_options, option_info
from surestep.config.optim import Optim
from surestep.config.option import UNKNOWN
from surestep.trainer.config_diff import NOT_OPTIONS, resume_effect
from surestep.trainer.run_identity import DERIVED
from tests import tiny

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
