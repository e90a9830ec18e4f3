"""What each module of `knobs/` declares."""

import pytest

from surestep.tuning.speed.knob import PARTS
from surestep.tuning.speed.list_knobs import list_knobs

KNOBS = list_knobs()


@pytest.mark.parametrize("name", KNOBS)
def test_knob_has_a_title_and_parts_of_the_time(name):
    knob = KNOBS[name]
    assert knob.title.endswith(".")
    assert len(knob.title) <= 88
    assert knob.shares
    assert set(knob.shares) <= set(PARTS)
