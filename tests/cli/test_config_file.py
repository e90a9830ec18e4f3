"""The file of --config: its lines are named, and other formats are answered with TOML."""

from pathlib import Path

import pytest

from surestep.base.errors import ConfigError
from surestep.cli.config_file import read_config_file

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


def test_every_option_has_the_line_it_is_on():
    Path("run.toml").write_text(TEXT)
    assert read_config_file(Path("run.toml")).places == {
        **{"epochs": "run.toml:1", "optim.lr": "run.toml:2", "schedule.name": "run.toml:5"},
        **{"schedule.warmup": "run.toml:6", "average.kind": "run.toml:9"},
        "early_stop.patience": "run.toml:11",
    }


def test_an_option_in_an_inline_table_is_where_the_table_is():
    Path("run.toml").write_text("epochs = 1\noptim = { lr = 0.1 }\n")
    assert read_config_file(Path("run.toml")).places["optim.lr"] == "run.toml:2"


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("run.yaml", "epochs: 5\n", "epochs = 5"),
        ("run.yml", "# ours\n---\noptim:\n  lr: 1e-3  # peak\n", "optim.lr = 1e-3"),
        ("run.yaml", "compile: true\n", "compile = true"),
        ("run.yaml", "optim: adamw\n", 'optim = "adamw"'),
        ("run.yaml", "max_grad_norm: null\n", 'max_grad_norm = "off"'),
        ("run.yaml", "optim:\n  betas: [0.9, 0.95]\n", "optim.betas = [0.9, 0.95]"),
        ("run.json", '{"optim": {"lr": 0.001}, "epochs": 5}', "optim.lr = 0.001"),
        ("run.json", '{"precision": "bf16"}', 'precision = "bf16"'),
        ("run.json", '{"compile": true}', "compile = true"),
    ],
)
def test_yaml_and_json_are_answered_with_their_first_line_in_toml(name, text, line):
    Path(name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_config_file(Path(name))
    assert str(caught.value).endswith(f"Write them to run.toml, which begins with: {line}")


def test_what_is_neither_is_not_toml():
    Path("run.toml").write_text("epochs = \n")
    with pytest.raises(ConfigError, match=r"--config run\.toml is not TOML: Invalid value"):
        read_config_file(Path("run.toml"))


def test_the_line_in_toml_is_read_as_it_is():
    Path("run.toml").write_text('max_grad_norm = "off"\noptim.betas = [0.9, 0.95]\n')
    assert read_config_file(Path("run.toml")).options["optim.betas"] == [0.9, 0.95]


def test_all_faults_of_file_and_command_line_are_shown_at_once(surestep, recipe):
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


def test_a_fault_of_the_recipe_names_its_line(surestep, recipe):
    text = "import surestep\n\nconfig = surestep.Config(\n    epochs=1, optim={'lr': 'fast'}\n)\n"
    answer = surestep("plan", recipe(text))
    assert answer.code == 2
    assert "mine.py:3: optim.lr='fast' is not allowed" in answer.err


def test_a_fault_of_the_plan_names_the_flag_and_the_line(surestep, recipe):
    Path("run.toml").write_text("clip_value = 0.5\n")
    answer = surestep("plan", recipe(), "--config", "run.toml", "--max-grad-norm", "1")
    assert answer.code == 2
    assert "(max_grad_norm: --max-grad-norm, clip_value: run.toml:1)" in answer.err
