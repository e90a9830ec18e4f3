"""Each option has a verdict with a reason, in one table."""

import pytest

from surestep.config.config import iter_options
from surestep.trainer.resume_effects import UNKNOWN, VERDICTS, resume_effect
from surestep.trainer.run_identity import DERIVED
from tests import tiny

NAMES = [name for name, _ in iter_options()]


@pytest.mark.parametrize("name", NAMES)
def test_every_option_has_a_verdict_with_a_reason(name):
    assert resume_effect(name) is not UNKNOWN, f"Say in verdicts.py what a change of {name} means."
    assert len(resume_effect(name).reason.split()) > 3


def test_everything_that_is_decided_is_judged_or_follows_from_something_else():
    decided = {each.option for each in tiny.plan().plan.decisions} - {*DERIVED, "total_steps"}
    assert [name for name in decided if resume_effect(name) is UNKNOWN] == []


def test_an_option_that_nobody_thought_of_is_refused():
    assert resume_effect("brand_new").effect == "refused"
    assert "brand_new" not in NAMES


def test_no_verdict_is_left_over():
    groups = {name.partition(".")[0] + "." for name in NAMES if "." in name}
    of_a_run = {
        "task.",
        "recipe",
        "recipe.path",
        "code",
        "data",
        "loss",
        "model",
        "modules",
        "settings",
        "torch",
        "surestep",
    }
    decided = {"threads", "data.sampler", "batch_transform", "optim.implementation"}
    assert set(VERDICTS) <= {*NAMES, *groups, *of_a_run, *decided}


def test_an_option_of_one_of_several_optimizers_is_judged_as_the_option():
    assert resume_effect("optimizers.generator.optim.lr") == VERDICTS["optim."]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("logging.every", "harmless"), ("checkpoint.every", "harmless")),
        *(("data.num_workers", "harmless"), ("torch", "not bit for bit")),
        *(("device", "not bit for bit"), ("threads", "not bit for bit")),
        *(("micro_batch_size", "not bit for bit"), ("compile", "not bit for bit")),
        *(("parallel.strategy", "not bit for bit"), ("parallel.ranks", "not bit for bit")),
        *(("parallel.shard", "not bit for bit"), ("parallel.sync_batchnorm", "refused")),
        *(("optim.lr", "refused"), ("schedule.name", "refused"), ("task.hidden", "refused")),
        *(("recipe", "refused"), ("data", "refused"), ("model", "impossible")),
        ("code", "not bit for bit"),
    ],
)
def test_what_is_promised(name, kind):
    assert resume_effect(name).effect == kind
