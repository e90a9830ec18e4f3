"""A pattern in --run is filled in or rejected, and never the name of a folder."""

import pytest

from surestep import Trainer
from surestep.base.errors import ConfigError
from surestep.record.run import Run
from tests import tiny


def folders(folder):
    return sorted(path.name for path in folder.iterdir() if (path / "config.json").is_file())


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("{recipe}-{optim.lr}", "mine-0.05"),
        ("{task.hidden}-{task.act}", "6-tanh"),
        ("{batch-size}", "8"),
        ("{schedule.warmup}", "2-steps"),
    ],
)
def test_pattern_is_filled_in_with_the_options_of_the_run(surestep, recipe, folder, pattern, name):
    words = ["train", recipe(), "--run", pattern, "--optim.lr", "0.05", "--task.hidden", "6"]
    assert surestep(*words).code == 0
    assert folders(folder) == [name]
    again = surestep(*words)
    assert again.code == 0
    assert f"{name} is finished" in again.err
    assert Run(name).status["status"] == "finished"


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("{optim.lrr}", "{optim.lrr} is not an option. Did you mean 'optim.lr'"),
        ("{seed}", "seed is not set, so surestep chooses its value. Set --seed"),
        ("{}", "{} is not an option."),
        ("{task.depths}", "Did you mean 'task.depth'"),
    ],
)
def test_pattern_that_cannot_be_filled_in_is_rejected(surestep, recipe, folder, pattern, message):
    answer = surestep("train", recipe(), "--run", pattern)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
    assert folders(folder) == []


def test_value_that_is_not_the_name_of_a_folder_is_rejected(surestep, recipe, folder):
    words = ["train", recipe(), "--run", "{task.act}", "--task.act", "../out"]
    answer = surestep(*words)
    assert answer.code in (1, 2)
    assert folders(folder.parent) == folders(folder) == []


def test_folder_that_exists_under_its_literal_name_is_used(surestep, recipe, folder):
    (folder / "{old}").mkdir()
    assert surestep("train", recipe(), "--run", "{old}").code == 0
    assert folders(folder) == ["{old}"]


def test_pattern_in_python_is_rejected(tmp_path):
    with pytest.raises(ConfigError, match=r"run=f'runs/\{name\}'"):
        Trainer(tiny.task(), tiny.config(), run=tmp_path / "{lr}")
    assert list(tmp_path.iterdir()) == []
