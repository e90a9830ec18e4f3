"""The doctor reports mistakes that are planted in correct scripts, and not the correct ones."""

import random
import subprocess
from pathlib import Path

import pytest

from tests.doctor.planted.corpus import plant, plant_all
from tests.doctor.planted.planters import PLANTERS
from tests.doctor.planted.recall import count, examine
from tests.doctor.planted.run import check
from tests.doctor.planted.scripts import list_bases, load_base, read_base
from tests.doctor.planted.vary import vary
from tests.doctor.planted.view import View
from tests.warm import warm_python

ROOT = Path(__file__).parents[2]
SAMPLE = ("accumulation", "trainer_class", "functions")
RUN = ("accumulation", "functions", "gan", "resume", "tagger", "vae", "wgan_gp")


def alarms_in(files):
    return [found for found in check(files).found if found["severity"] in ("error", "warning")]


@pytest.mark.parametrize("base", list_bases())
def test_correct_script_is_not_reported(base):
    assert alarms_in(read_base(base)) == []
    script = load_base(base).copy()
    vary(script, random.Random(base))
    assert alarms_in(script.write()) == []


@pytest.mark.parametrize("base", SAMPLE)
def test_check_finds_planted_mistakes(base):
    planters = [p for p in PLANTERS if p.fits(base) and p.rule < "SS2" and "S" in p.by]
    mutants = [mutant for planter in planters for mutant in plant(base, planter, 2)]
    assert len(mutants) > 10
    total = count(examine(mutants, 1, runs=False))
    assert total.check >= 0.7 * total.planted


def test_every_planter_fits_a_script():
    views = {name: View(load_base(name)) for name in list_bases()}
    unused = [
        planter.name
        for planter in PLANTERS
        if not any(any(planter.plant(view)) for base, view in views.items() if planter.fits(base))
    ]
    assert unused == []


def run(*words):
    command = [warm_python(), "-m", "tests.doctor.planted", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_no_correct_script_is_reported_while_it_runs():
    done = run("--correct")
    assert done.returncode == 0, done.stdout + done.stderr


def test_planted_mistakes_are_found():
    # Each kind of mistake in three scripts; docs/rules/recall.md has the figures of all.
    done = run("--bases", *RUN, "--most", "3", "--least", "0.95", "--least-of-watch", "0.95")
    assert done.returncode == 0, done.stdout + done.stderr


def test_variations_depend_on_the_seed_alone():
    first, second = (list(plant_all(["vae"], ["SS101"], 3)) for _ in range(2))
    assert [m.files for m in first] == [m.files for m in second]
    assert first[0].files != first[1].files
