import json

import pytest

import surestep
from surestep.base.errors import ConfigError
from surestep.config.param_groups import ParamGroup, parse_param_group


@pytest.mark.parametrize(
    ("text", "group", "canonical"),
    [
        ("head.* lr=1e-3", ParamGroup("head.*", lr=1e-3), "head.* lr=0.001"),
        ("type:LayerNorm decay=0", ParamGroup("type:LayerNorm", weight_decay=0), None),
        ("a weight_decay=.5", ParamGroup("a", weight_decay=0.5), "a decay=0.5"),
        ("encoder.* freeze", ParamGroup("encoder.*", freeze=True), None),
        ("encoder.* freeze=no", ParamGroup("encoder.*", freeze=False), None),
        ("a freeze='2 epochs'", ParamGroup("a", freeze="2 epochs"), None),
        ("a freeze=500 steps", ParamGroup("a", freeze="500 steps"), "a freeze='500 steps'"),
        (
            "a  freeze=1 epoch lr=.1x",
            ParamGroup("a", "0.1x", None, "1 epoch"),
            "a lr=0.1x freeze='1 epoch'",
        ),
    ],
)
def test_text_and_python_give_the_same_group(text, group, canonical):
    assert parse_param_group(text) == group
    assert str(group) == (canonical or text)
    assert parse_param_group(str(group)) == group


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("head.*", r"'head\.\*' has no setting\. Add lr, decay or freeze"),
        ("", "'' is not a pattern"),
        ("type: lr=1", "'type:' is not a pattern"),
        ("head rate=1", "'rate=1' in 'head rate=1' cannot be read"),
        ("head lr", "'lr' in 'head lr' cannot be read"),
        ("head lr=1 tail", "'tail' in 'head lr=1 tail' cannot be read"),
        ("head lr=0", "lr='0' of 'head' is not allowed: a rate above zero"),
        ("head lr=fast", "lr='fast' of 'head' is not allowed"),
        ("head lr=inf", "lr='inf' of 'head' is not allowed"),
        ("head decay=-1", "decay='-1' of 'head' is not allowed: a number that is not below zero"),
        ("head freeze=2", "freeze='2' of 'head' is not allowed: must be an amount and a unit"),
        ("head freeze='2 hours'", "freeze='2 hours' of 'head' is not allowed"),
    ],
)
def test_invalid_group_text_is_rejected(text, sentence):
    with pytest.raises(ConfigError, match=sentence):
        surestep.Config(optim={"groups": [text]})


def test_config_stores_groups_as_text_for_json():
    config = surestep.Config(
        optim=surestep.Optim(
            groups=[surestep.ParamGroup("head", lr=0.1), "type:BatchNorm2d  freeze"]
        )
    )
    options = config.set_options()
    assert options == {"optim.groups": ("head lr=0.1", "type:BatchNorm2d freeze")}
    assert surestep.Config.from_options(json.loads(json.dumps(options))) == config
    assert hash(config.optim)


def test_one_group_needs_no_list():
    assert surestep.Optim(groups="head freeze").groups == ("head freeze",)


@pytest.mark.parametrize("groups", [3, 4.5])
def test_groups_that_are_not_a_list_are_rejected(groups):
    with pytest.raises(ConfigError, match=r"optim\.groups=.* it must be a list of text, such as"):
        surestep.Optim(groups=groups)


@pytest.mark.parametrize("decay", [0, 1.5, -1])
def test_layerwise_lr_decay_is_between_0_and_1(decay):
    with pytest.raises(ConfigError, match=r"optim\.layerwise_lr_decay=.* is not allowed"):
        surestep.Optim(layerwise_lr_decay=decay)
