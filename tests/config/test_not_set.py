"""None and "not set" are different values."""

import copy
import json
import pickle

import pytest

from surestep.config.config import Config, iter_options
from surestep.config.not_set import NOT_SET, NotSet
from surestep.config.spellings import OFF


def test_not_set_is_a_falsy_singleton_that_survives_copies():
    assert list(NotSet) == [NOT_SET]
    assert copy.deepcopy(NOT_SET) is NOT_SET
    assert pickle.loads(pickle.dumps(NOT_SET)) is NOT_SET
    assert not NOT_SET


def test_every_option_defaults_to_not_set():
    assert {field.default for _, field in iter_options()} == {NOT_SET}


@pytest.mark.parametrize("option", OFF)
@pytest.mark.parametrize("typed", [None, False, "off", "Off"])
def test_option_that_can_be_off_is_turned_off_by_none(option, typed):
    config = Config.from_options({option: typed})
    assert config.set_options() == {option: OFF[option]}
    assert config != Config()


@pytest.mark.parametrize("option", OFF)
def test_off_round_trips_through_json_and_toml_text(option):
    config = Config.from_options({option: None})
    saved = json.loads(json.dumps(config.set_options()))
    assert Config.from_options(saved) == config
    assert Config.from_options({option: "off"}) == config


@pytest.mark.parametrize("option", [name for name, _ in iter_options() if name not in OFF])
def test_none_unsets_an_option_that_cannot_be_off(option):
    assert Config.from_options({option: None}) == Config()


def test_config_rebuilds_from_its_dict():
    config = Config(max_grad_norm=None, epochs=3, optim={"lr": 0.1})
    dumped = dict(config)
    assert Config(**dumped) == config
    assert Config(**{**dumped, "epochs": 4}).set_options() == {
        **config.set_options(),
        "epochs": 4.0,
    }


def test_replace_options_can_set_none():
    config = Config(max_grad_norm=2.0, epochs=3, optim={"lr": 0.1})
    assert config.replace_options({"max_grad_norm": None}).set_options()["max_grad_norm"] is None
    assert "optim.lr" not in config.replace_options({"optim.lr": None}).set_options()
    assert config.replace_options({"max_grad_norm": NOT_SET}).set_options() == {
        "epochs": 3.0,
        "optim.lr": 0.1,
    }


def test_config_distinguishes_none_from_not_set():
    assert Config(max_grad_norm=None).max_grad_norm is None
    assert Config().max_grad_norm is NOT_SET
