from dataclasses import replace

import pytest

from surestep.base.errors import ConfigError
from surestep.config.duration import Duration
from tests.tiny import FACTS, GIVEN, GPU, VALIDATED, decide

SIZED = replace(GIVEN, is_stream=True)
UNSIZED = replace(VALIDATED, is_stream=True, train_samples=None)
STEPS = {"epochs": None, "max_steps": 50}
SWA = {**STEPS, "average.kind": "swa"}


@pytest.mark.parametrize(
    ("option", "options", "system", "given", "value", "reason"),
    [
        ("data.shuffle", STEPS, FACTS, UNSIZED, False, "a stream has its own order"),
        ("data.shuffle", {}, FACTS, SIZED, False, "a stream has its own order"),
        ("data.shuffle_buffer", {}, FACTS, SIZED, None, "not set: the stream keeps its own order"),
        ("data.shuffle_buffer", {"data.shuffle_buffer": 9}, FACTS, SIZED, 9, "set in Python"),
        ("data.shuffle_buffer", {}, FACTS, GIVEN, None, "the data is not a stream"),
        ("data.num_workers", {}, FACTS, SIZED, 0, "on a CPU"),
        ("data.num_workers", {}, GPU, SIZED, 1, "loading beside the GPU; more workers would each"),
        ("steps_per_epoch", {}, FACTS, SIZED, 2, "100 samples in batches of 64"),
        (
            "steps_per_epoch",
            STEPS,
            FACTS,
            UNSIZED,
            None,
            "the training data is a stream",
        ),
        (
            "average.every",
            {**STEPS, "average.kind": "swa"},
            FACTS,
            UNSIZED,
            Duration(1, "steps"),
            "the number",
        ),
        ("total_steps", STEPS, FACTS, UNSIZED, 50, "set in Python"),
    ],
)
def test_unset_option_of_a_stream_is_decided_by_its_rule(
    option, options, system, given, value, reason
):
    found = decide(options, system, given)
    assert next(each.value for each in found.decisions if each.option == option) == value
    assert found.reason(option).startswith(reason)


@pytest.mark.parametrize(
    ("options", "given", "sentence"),
    [
        ({"epochs": 3.0}, UNSIZED, r"epochs=3 needs a length .* Set max_steps=1000"),
        ({"epochs": None}, UNSIZED, r"The length of the run is not set"),
        ({"data.shuffle": True}, SIZED, r"with positions.* Use data\.shuffle_buffer=1000"),
        (
            {"data.shuffle_buffer": 5},
            GIVEN,
            r"shuffle_buffer=5 requires a stream .* Use data\.shuffle=True",
        ),
        ({**STEPS, "schedule.warmup": "1 epoch"}, UNSIZED, r"'1 epoch' has no length in steps"),
        ({**STEPS, "schedule.interval": "2 epochs"}, UNSIZED, r"'2 epochs' has no length in steps"),
        ({**STEPS, "validation.every": "0.5 epochs"}, UNSIZED, r"validation\.every='0.5 .* whole"),
        ({**STEPS, "checkpoint.every": "1.5 epochs"}, UNSIZED, r"checkpoint\.every='1.5 .* whole"),
        (
            {**STEPS, "logging.every": "0.1 epochs"},
            UNSIZED,
            r"logging\.every='0.1 epochs' has no length",
        ),
    ],
)
def test_option_that_a_stream_does_not_support_is_rejected(options, given, sentence):
    with pytest.raises(ConfigError, match=sentence):
        decide(options, given=given)


@pytest.mark.parametrize("duration", ["2 epochs", "0.5 epochs"])
def test_stream_with_a_length_has_known_epochs(duration):
    options = {"epochs": 9.0, "checkpoint.every": duration, "schedule.warmup": duration}
    assert decide(options, given=SIZED).schedule.warmup == float(duration.split()[0]) * 2
