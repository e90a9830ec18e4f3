import json
import subprocess
import sys

import pytest

from surestep.config.schedule import Schedule
from surestep.engine.schedule.registry import BUILT_IN, OWN
from tests.cli.conftest import environment
from tests.laws.test_registries import names_in


def test_table_shows_the_purpose_of_every_schedule(surestep):
    answer = surestep("schedules")
    assert (answer.code, answer.err) == (0, "")
    for name, entry in BUILT_IN.items():
        takes = ", ".join(entry.takes) or "none"
        said = f" {name} for {entry.purpose} options {takes} factor on the peak {entry.formula}"
        assert f"{said} equal to {entry.source}" in f" {' '.join(answer.out.split())}"


def test_catalog_matches_the_allowed_names_and_options():
    assert set(BUILT_IN) - {OWN} == names_in(Schedule.model_fields["name"].annotation)
    taken = {option for entry in BUILT_IN.values() for option in entry.takes}
    assert taken == Schedule.model_fields.keys() - {"name"}


@pytest.mark.parametrize("name", BUILT_IN)
def test_single_schedule_is_shown_with_its_options(surestep, name):
    answer = surestep("schedules", name)
    for option, default in BUILT_IN[name].takes.items():
        said = f" schedule.{option} {Schedule.model_fields[option].description}"
        assert f"{said} {default.value}: {default.reason}" in answer.out


def test_json_output_equals_the_schedule_table(surestep):
    found = json.loads(surestep("schedules", "--json").out)
    assert [each["name"] for each in found] == list(BUILT_IN)
    step = json.loads(surestep("schedules", "step", "--json").out)
    assert step["options"]["gamma"]["default"] == 0.1


def test_unknown_schedule_is_rejected_with_the_nearest_names(surestep):
    answer = surestep("schedules", "cosin")
    assert answer.code == 2
    assert "There is no schedule 'cosin'. Did you mean 'cosine'" in answer.err


def test_schedule_guide_does_not_import_torch():
    code = "import sys; from surestep.cli.main import main; main(['schedules']); "
    done = subprocess.run(
        [sys.executable, "-c", f"{code}print('torch' in sys.modules, file=sys.stderr)"],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.strip() == "False"
