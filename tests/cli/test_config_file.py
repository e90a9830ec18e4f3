"""The file of --config: errors name its lines."""

import json
from pathlib import Path

import pytest

from surestep.base.errors import ConfigError
from surestep.cli.config_file import read_config_file
from surestep.record.run import Run

TEXT = """\
epochs = 3  # passes
optim.lr = 0.1

[schedule]
name = "cosine"
warmup = "10%"

[average]
kind = "ema"
[early_stop]
patience = 3
"""


@pytest.fixture(autouse=True)
def _here(folder):
    return folder


def test_every_option_has_its_line_number():
    Path("run.toml").write_text(TEXT)
    assert read_config_file(Path("run.toml")).places == {
        **{"epochs": "run.toml:1", "optim.lr": "run.toml:2", "schedule.name": "run.toml:5"},
        **{"schedule.warmup": "run.toml:6", "average.kind": "run.toml:9"},
        "early_stop.patience": "run.toml:11",
    }


def test_option_in_an_inline_table_has_the_line_of_the_table():
    Path("run.toml").write_text("epochs = 1\noptim = { lr = 0.1 }\n")
    assert read_config_file(Path("run.toml")).places["optim.lr"] == "run.toml:2"


def test_array_of_tables_has_its_line_and_not_that_of_the_table_before(surestep, recipe):
    Path("run.toml").write_text("epochs = 1\n[optim]\nlr = 0.1\n[[schedule]]\nname = 'cosine'\n")
    assert read_config_file(Path("run.toml")).places["schedule"] == "run.toml:4"
    answer = surestep("plan", recipe(), "--config", "run.toml")
    assert (answer.code, "run.toml:4: schedule" in answer.err) == (2, True), answer.err


@pytest.mark.parametrize("text", ["epochs = \n", "epochs: 5\n", '{"precision": "bf16"}'])
def test_file_that_is_not_toml_is_rejected_with_an_example(text):
    Path("run.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"--config run\.toml is not TOML: .*optim\.lr = 1e-3"):
        read_config_file(Path("run.toml"))


def test_all_errors_of_file_and_command_line_are_shown_together(surestep, recipe):
    Path("run.toml").write_text("[optim]\nlr = 'fast'\n\n[schedule]\neta_min = 0.1\n")
    answer = surestep(
        "plan", recipe(), "--config", "run.toml", "--learning-rate", "3", "--optim.betas", "0.9"
    )
    assert answer.code == 2
    lines = answer.err.removeprefix("ConfigError: ").splitlines()
    assert [line.split(" ")[0] for line in lines] == [
        *("There", "run.toml:2:", "--optim.betas:", "run.toml:5:")
    ]
    assert "'--learning-rate'" in lines[0]


def test_error_in_the_recipe_names_its_line(surestep, recipe):
    text = "import surestep\n\nconfig = surestep.Config(\n    epochs=1, optim={'lr': 'fast'}\n)\n"
    text += "def task(): ...\n"
    answer = surestep("plan", recipe(text))
    assert answer.code == 2
    assert "mine.py:3: optim.lr='fast' is not allowed" in answer.err


def test_error_in_the_plan_names_the_flag_and_the_line(surestep, recipe):
    Path("run.toml").write_text("clip_value = 0.5\n")
    answer = surestep("plan", recipe(), "--config", "run.toml", "--max-grad-norm", "1")
    assert answer.code == 2
    assert "(max_grad_norm: --max-grad-norm, clip_value: run.toml:1)" in answer.err


def test_options_of_a_run_can_be_used_for_another_one(surestep, recipe, folder):
    words = ("--optim.lr", "0.05", "--task.hidden", "6", "--checkpoint.mirror", folder / "mirror")
    assert surestep("train", recipe(), "--run", "a", *words).code == 0
    config = ("--config", "a/config.json")
    assert surestep("train", recipe(), "--run", "b", *config, "--optim.lr", "0.01").code == 0
    first, second = (json.loads(Path(run, "config.json").read_text()) for run in "ab")
    assert second["task"] == first["task"]
    assert second["task"]["hidden"] == 6
    expected = {**first["config"], "optim.lr": 0.01}
    assert expected.pop("checkpoint.mirror") == str(folder / "mirror")
    assert second["config"] == expected
    assert surestep("train", recipe(), "--run", "c", *config).code == 0
    same = [weights_of(run) for run in "ac"]
    assert same[0] == same[1]


def weights_of(run):
    return (Run(run).last.path / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "config.json cannot be read"),
        ("epochs = 3", "config.json cannot be read"),
        (None, "config.json is missing"),
    ],
)
def test_json_that_is_not_of_a_run_is_rejected(surestep, recipe, text, message):
    if text is not None:
        Path("config.json").write_text(text)
    answer = surestep("train", recipe(), "--config", "config.json")
    assert answer.code == 2
    assert message in answer.err
    assert "Pass the config.json of a run folder, or TOML." in answer.err
