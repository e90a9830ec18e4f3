import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from surestep.base.errors import ConfigError, RunError
from surestep.tuning.methods import PRUNERS, complete_method
from surestep.tuning.result import RESULT
from surestep.tuning.settings import STUDY_FILE, read_settings, record_settings
from surestep.tuning.space import Space
from tests.tuning.studies_on_disk import make_settings


def test_settings_are_the_same_after_a_file(tmp_path):
    settings = make_settings(seed=3, threads=2, nproc=4, sampler="gp", storage="sqlite:///x.db")
    recorded = record_settings(tmp_path / "new" / "study", settings)
    assert replace(recorded, name="") == settings
    read = read_settings(tmp_path / "new" / "study")
    assert read.as_json() == recorded.as_json()
    assert read.space == settings.space
    assert read.objectives == settings.objectives


def test_name_is_that_of_the_folder_and_unique(tmp_path):
    names = [record_settings(tmp_path / run / "lr", make_settings()).name for run in "ab"]
    assert all(name.startswith("lr-") for name in names)
    assert names[0] != names[1]
    assert record_settings(tmp_path / "a" / "lr", make_settings()).name == names[0]


def test_workers_that_start_together_record_one_study(tmp_path):
    start = threading.Barrier(6)

    def record(number):
        start.wait()
        return record_settings(tmp_path, make_settings(trials=10 + number))

    with ThreadPoolExecutor(6) as pool:
        futures = [pool.submit(record, number) for number in range(6)]
    recorded = [future.result() for future in futures if future.exception() is None]
    assert len({settings.name for settings in recorded}) == 1
    assert read_settings(tmp_path).trials == 15


OTHERS = {
    "sampler": ({"sampler": "gp"}, "sampler is 'tpe' in .*, and now 'gp'"),
    "pruner": ({"pruner": "none"}, "pruner is 'percentile:25' in .*, and now 'none'"),
    "seed": ({"seed": 1}, "seed is 0 in .*, and now 1"),
    "threads": ({"threads": 2}, "threads is 1 in .*, and now 2"),
    "objectives": (
        {"objectives": (("val/loss", "max"),)},
        r"objectives is \[\['val/loss', 'min'\]\] in .*, and now \[\['val/loss', 'max'\]\]",
    ),
    "storage": ({"storage": "sqlite:///x.db"}, "storage is not set in .*, and now 'sqlite"),
    "fixed": ({"fixed": {"epochs": "4"}}, r"(?s)fixed\.epochs is '3' .*fixed\.optim\.betas is"),
    "space": (
        {"space": Space.from_json({"lr": "log(1e-5, 1)", "b": "int(1, 8)"})},
        r"(?s)space\.lr is 'log\(1e-05, 0\.1\)' .*, and now .*space\.name is .* now not set",
    ),
    "recipe": (
        {"recipe": {"name": "formula", "path": "/b.py", "sha256": "1"}},
        r"/b\.py was changed since the study in .* started",
    ),
    "trials": ({"trials": 3}, r"is a study of 12 trials, and --trials 3 is less.*Set --trials 12"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_settings_than_recorded_are_rejected(name, tmp_path):
    change, message = OTHERS[name]
    record_settings(tmp_path, make_settings())
    with pytest.raises(ConfigError, match=message):
        record_settings(tmp_path, replace(make_settings(), **change))
    assert read_settings(tmp_path).trials == 12


def test_all_differences_are_reported_at_once(tmp_path):
    record_settings(tmp_path, make_settings())
    with pytest.raises(ConfigError) as error:
        record_settings(tmp_path, make_settings(seed=1, sampler="gp", trials=1))
    assert len(str(error.value).splitlines()) == 4


def test_recipe_may_be_in_another_folder(tmp_path):
    settings = make_settings()
    record_settings(tmp_path, settings)
    moved = replace(settings, recipe={**settings.recipe, "path": "/else.py"})
    assert record_settings(tmp_path, moved).recipe["path"] == "/else.py"  # what is typed is run


@pytest.mark.parametrize(
    ("pruner", "now"),
    [
        ("median", "median:startup=5,warmup=0"),
        ("percentile:10,warmup=2", "percentile:keep=10,startup=5,warmup=2"),
        ("wilcoxon", "wilcoxon:p=0.1,warmup=2"),
        ("none", "none"),
    ],
)
def test_study_of_format_1_prunes_as_before(pruner, now, tmp_path):
    record_settings(tmp_path, make_settings())
    path = tmp_path / STUDY_FILE
    found = json.loads(path.read_text(encoding="utf-8"))
    old = {"format": 1, "sampler": "tpe", "pruner": pruner}
    path.write_text(json.dumps(found | old), encoding="utf-8")
    read = read_settings(tmp_path)
    assert (read.pruner, read.sampler) == (now, "tpe:startup=10")
    assert record_settings(tmp_path, replace(read, trials=20)).pruner == now
    assert read_settings(tmp_path).pruner == now  # in the new format


def test_pruner_of_format_1_is_named_as_it_is_typed(tmp_path):
    recorded = record_settings(tmp_path, make_settings(pruner="median:startup=5,warmup=0"))
    typed = complete_method("pruner", "median", PRUNERS)
    with pytest.raises(ConfigError, match=r"and now '.*auto'\. .*pass --pruner (\S+)") as error:
        record_settings(tmp_path, replace(recorded, pruner=typed))
    named = re.search(r"pass --pruner (\S+)", str(error.value))[1]
    assert complete_method("pruner", named, PRUNERS) == recorded.pruner


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 4}, r"study\.json has format 4, and this surestep reads up to 3"),
        ({"format": 1, "pruner": "medan"}, r"study\.json cannot be read: There is no pruner"),
        ({"space": {"lr": "log(0, 1)"}}, r"study\.json cannot be read: lr: .*logarithm"),
        ({"objectives": [["loss", "least"]]}, r"objectives"),
        ({"trials": "many"}, r"it\.trials is 'many'"),
        ({"recipe": None}, r"it\.recipe is None"),
    ],
)
def test_damaged_file_is_explained(change, message, tmp_path):
    record_settings(tmp_path, make_settings())
    path = tmp_path / STUDY_FILE
    found = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(found | change), encoding="utf-8")
    with pytest.raises(RunError, match=message):
        read_settings(tmp_path)


@pytest.mark.parametrize("content", ["{x", "[]", '{"format": 1, "winner": {}, "test": {}}', None])
def test_damaged_result_is_found_before_a_trial_is_trained(content, tmp_path):
    record_settings(tmp_path, make_settings())
    path = tmp_path / RESULT
    path.symlink_to("elsewhere") if content is None else path.write_text(content, encoding="utf-8")
    with pytest.raises(
        RunError, match=r"result\.json .*Put a copy of it back, or delete it"
    ) as found:
        record_settings(tmp_path, make_settings(trials=99))
    assert "--run" not in str(found.value)
    path.unlink()
    assert record_settings(tmp_path, make_settings(trials=99)).trials == 99


def test_folder_that_cannot_be_written_is_explained(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(RunError, match=r"could not be written: .* folder with --study"):
        record_settings(tmp_path / "file" / "study", make_settings())
