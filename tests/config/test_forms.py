"""Every row of forms.py: input is accepted, or rejected with the correct spelling."""

import datetime
import shlex
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

import surestep
from surestep.base.errors import ConfigError
from surestep.cli.config_file import read_config_file
from surestep.cli.options import read_command_line
from surestep.cli.train import Options
from surestep.config.config import Config
from surestep.config.group import ConfigGroup
from tests.config.forms import ROWS

NAMES = {
    **{name: getattr(surestep, name) for name in surestep.__all__},
    **{"torch": torch, "np": np, "timedelta": datetime.timedelta},
}


def python(typed, _):
    made = eval(typed, dict(NAMES))
    if isinstance(made, Config):
        return made.set_options()
    assert isinstance(made, ConfigGroup)
    return Config(**{made.prefix.rstrip("."): made}).set_options()


def toml(typed, folder):
    (folder / "run.toml").write_text(typed)
    file = read_config_file(Path("run.toml"))
    return Config.from_options(file.options, file.places).set_options()


def cli(typed, _):
    call, own = read_command_line("train", ["digits", *shlex.split(typed)], Options)
    return {
        **{
            name: value
            for name, value in call.config.set_options().items()
            if name in call.set_options
        },
        **{f"extras.{name}": value for name, value in asdict(own).items()},
    }


@pytest.mark.parametrize(
    ("source", "typed", "outcome"), ROWS, ids=[f"{a}: {b}" for a, b, _ in ROWS]
)
def test_input_is_accepted_or_rejected_with_the_correct_spelling(
    source, typed, outcome, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    read = {"python": python, "toml": toml, "cli": cli}[source]
    if isinstance(outcome, str):
        with pytest.raises(ConfigError) as caught:
            read(typed, tmp_path)
        assert outcome in str(caught.value)
        return
    found = read(typed, tmp_path)
    assert {name: found[name] for name in outcome} == outcome
    if source != "cli":  # a recipe sets its own options
        assert found == outcome
    elif not outcome:
        assert typed.split()[0].lstrip("-") not in found


def test_forms_table_is_complete():
    assert len(ROWS) >= 215
    assert len({(source, typed) for source, typed, _ in ROWS}) == len(ROWS)
