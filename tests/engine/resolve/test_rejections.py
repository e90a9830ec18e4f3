from dataclasses import replace

import pytest

from surestep.base.errors import ConfigError
from tests.tiny import FACTS, GPU, LOADED, VALIDATED, decide


@pytest.mark.parametrize(
    "said", [{"batch_size": 10}, {"data.shuffle": False}, {"data.num_workers": 3}]
)
def test_options_that_a_loader_also_sets_are_accepted(said):
    assert decide(said, given=LOADED).batch_size == 10


@pytest.mark.parametrize("said", ["validation.every", "validation.batch_size", "validation.mode"])
def test_validation_without_data_is_rejected(said):
    value = {"validation.every": "1 epoch", "validation.batch_size": 3, "validation.mode": "max"}
    with pytest.raises(ConfigError, match="val"):
        decide({said: value[said]})


@pytest.mark.parametrize(
    ("said", "takes"),
    [
        (
            {"optim.name": "sgd", "optim.amsgrad": True},
            "optim.name='sgd' takes optim.momentum, optim.dampening, optim.nesterov.",
        ),
        ({"schedule.name": "polynomial", "schedule.gamma": 0.5}, "takes schedule.warmup, "),
        ({"average.decay": 0.5}, None),
    ],
)
def test_options_that_the_chosen_class_takes_are_listed(said, takes):
    with pytest.raises(ConfigError, match="requires") as caught:
        decide(said)
    assert (takes or "remove average.decay.") in str(caught.value)
    assert takes is not None or " takes " not in str(caught.value)


@pytest.mark.parametrize(
    ("at_the_end", "beyond", "sentence"),
    [
        ({"profile": "1:10"}, {"profile": "10:11"}, "goes beyond the run of 10 steps"),
        (
            *({"optim.groups": ["a freeze='9 steps'"]}, {"optim.groups": ["a freeze='10 steps'"]}),
            "freezes longer than the run of 10",
        ),
        (
            {"schedule.name": "cosine", "schedule.warmup": "10 steps"},
            {"schedule.name": "cosine", "schedule.warmup": "11 steps"},
            "11 steps are longer than the run of 10 steps",
        ),
        ({"micro_batch_size": 10}, {"micro_batch_size": 11}, "larger than the batch of 10"),
    ],
)
def test_length_may_reach_the_end_and_not_go_beyond(at_the_end, beyond, sentence):
    decide({"batch_size": 10, **at_the_end})
    with pytest.raises(ConfigError, match=sentence):
        decide({"batch_size": 10, **beyond})


def test_device_index_must_exist():
    assert decide({"device": "cuda:0"}, GPU).device.index == 0
    with pytest.raises(ConfigError, match="This machine has: cpu, cuda:0"):
        decide({"device": "cuda:1"}, GPU)


@pytest.mark.parametrize(
    ("wanted", "meant"),
    [
        *(("acc", "accuracy"), ("val_acc", "accuracy"), ("val/acc", "accuracy")),
        *(("Accuracy", "accuracy"), ("val_loss", "loss"), ("eval_loss", "loss")),
    ],
)
def test_metric_by_the_name_that_other_libraries_use_is_recognized(wanted, meant):
    with pytest.raises(ConfigError, match=f"is not measured.* Did you mean '{meant}'"):
        decide({"validation.metric": wanted}, given=VALIDATED)


def test_metric_that_nothing_resembles_is_rejected_without_a_proposal():
    with pytest.raises(ConfigError, match="is not measured") as caught:
        decide({"validation.metric": "f1"}, given=VALIDATED)
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize("wanted", ["score_right", "val/score_right", "f1"])
@pytest.mark.parametrize("objects", [(), ("score",)])
def test_value_of_a_metric_that_may_return_a_dict_is_named_with_how_to_get_it(wanted, objects):
    metrics = {"loss_mask": None, "score": None}
    given = replace(VALIDATED, metrics=metrics, objects=objects)
    if objects and wanted != "f1":
        assert decide({"validation.metric": wanted, "validation.mode": "max"}, given=given)
        return
    with pytest.raises(ConfigError, match="is not measured") as caught:
        decide({"validation.metric": wanted}, given=given)
    wrap = "" if objects else "pass metrics={'score': surestep.whole_set(function)}; "
    assert f"If 'score' returns a dict, {wrap}its values are score_NAME each." in str(caught.value)


@pytest.mark.parametrize(
    ("name", "mode"),
    [("acc", "max"), ("Accuracy", "max"), ("AUROC", "max"), ("RMSE", "min"), ("score", None)],
)
def test_direction_of_a_metric_follows_from_its_usual_names(name, mode):
    given = replace(VALIDATED, metrics={name: None})
    if mode is not None:
        assert decide({"validation.metric": name}, FACTS, given).validation_mode == mode
        return
    with pytest.raises(ConfigError, match="It is not known whether a larger val/score is better"):
        decide({"validation.metric": name}, FACTS, given)
