"""All invalid options are reported at once, each with the location where it was set."""

from dataclasses import replace

import pytest

from surestep.base.errors import ConfigError
from surestep.config.config import Config
from surestep.engine.resolve.resolver import resolve
from tests.tiny import FACTS, GIVEN

ORIGINS = {"optim.momentum": "command line", "clip_value": "run.toml:7"}


def faults(options, origins=None):
    config = Config.from_options({"epochs": 1, "batch_size": 8, **options})
    with pytest.raises(ConfigError) as caught:
        resolve(config, FACTS, GIVEN, origins=origins)
    return str(caught.value).splitlines()


def test_every_invalid_option_is_one_line():
    lines = faults(
        {
            **{"precision": "tf32", "max_grad_norm": 1.0, "clip_value": 0.5},
            **{"optim.name": "adamw", "optim.momentum": 0.9, "max_nonfinite_steps": 3},
        }
    )
    assert [line.split("=")[0].split(" ")[0] for line in lines] == [
        *("precision", "max_grad_norm", "max_nonfinite_steps", "optim.momentum"),
    ]


def test_error_that_follows_from_another_error_is_not_shown():
    lines = faults({"on_spike": "rollback", "checkpoint.keep_last": 1, "max_rollbacks": 2})
    assert len(lines) == 1
    assert "Set checkpoint.keep_last=2" in lines[0]


def test_error_names_the_flag_or_the_line_of_the_file():
    lines = faults({"optim.momentum": 0.9, "max_grad_norm": 1.0, "clip_value": 0.5}, ORIGINS)
    assert lines[1].endswith("(optim.momentum: --optim.momentum)")
    assert lines[0].endswith(", clip_value: run.toml:7)")


def test_error_names_the_line_of_python():
    config = Config(epochs=1, batch_size=8, max_grad_norm=1.0, clip_value=0.5)  # this line
    with pytest.raises(ConfigError) as caught:
        resolve(config, FACTS, replace(GIVEN))
    place = f"{__file__.rpartition('/')[2]}:47"
    assert f"max_grad_norm: tests/engine/{place}" in str(caught.value)


def test_line_of_python_is_neither_compared_nor_saved():
    one = Config(epochs=1)
    two = Config(epochs=1)
    assert one.locations() != two.locations()
    assert one == two
    assert "_places" not in one.model_dump()
    assert one.replace_options({"seed": 3}).epochs == 1
