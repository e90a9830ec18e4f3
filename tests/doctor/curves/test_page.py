"""docs/curves.md and its pictures are those that write_page.py writes."""

import pytest

from surestep.doctor.curves.name import name_curve
from surestep.doctor.curves.state import TITLES
from tests.doctor.curves import write_page

CURVES = write_page.make_curves()


def test_page_is_current():
    assert (write_page.DOCS / "curves.md").read_text(encoding="utf-8") == write_page.render_page()
    assert set(write_page.CONDITIONS) == set(TITLES) == set(CURVES)


@pytest.mark.parametrize("name", CURVES)
def test_picture_is_current_and_its_curve_has_the_state(name):
    drawn = write_page.draw(name, CURVES[name])
    assert (write_page.FOLDER / f"{name}.svg").read_text(encoding="utf-8") == drawn
    assert name_curve(CURVES[name])[0].name == name
