"""The doctor reports mistakes that are planted in correct scripts, and not the correct ones."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doctor.planted.run import check
from tests.doctor.planted.scripts import list_bases, load_base, read_base
from tests.doctor.planted.vary import vary

ROOT = Path(__file__).parents[2]


def alarms_in(files):
    return [found for found in check(files).found if found["severity"] in ("error", "warning")]


@pytest.mark.parametrize("base", list_bases())
def test_correct_script_is_not_reported(base):
    assert alarms_in(read_base(base)) == []
    for seed in range(2):
        script = load_base(base).copy()
        vary(script, random.Random(f"{base} {seed}"))
        assert alarms_in(script.write()) == []


def test_no_correct_script_is_reported_while_it_runs():
    command = [sys.executable, "-m", "tests.doctor.planted", "--correct"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
