"""The page of a tuning, in a browser."""

import pytest

from surestep.tuning.speed.write import write_page
from tests.browser import open_browser
from tests.tuning.speed.fakes import FakeMeasurer, climb, make_knob


@pytest.mark.slow("opens a browser")
def test_page_shows_both_tables_and_the_losses_and_makes_no_request(tmp_path):
    candidates = {"a": [{"a": 1}, {"a": 2}], "b": [{"b": "<b>"}], "c": "no <GPU>"}
    fake = FakeMeasurer({"a=1": 0.5, "b=<b>": 0.8}, candidates)
    knobs = make_knob("a"), make_knob("b", keeps_numbers=False), make_knob("c")
    found = climb(fake, *knobs, seconds=1200.0)
    path = write_page(tmp_path, found.result)
    with open_browser() as browser:
        browser.open(path)
        assert browser.read_requests() == [path.resolve().as_uri()]
        assert browser.read_console() == []
        text = browser.run("return document.querySelector('main').innerText")
        for part in (
            "a=1",
            "b=<b>",
            "bitwise the same",
            "Knobs that change the numbers",
            "Loss with",
            "Nothing to try here: c (no <GPU>).",
            "Time a step with each rung",
        ):
            assert part in text
        assert browser.run("return document.querySelectorAll('svg').length") == 2
        count = "return document.querySelectorAll('svg path.{}').length"
        assert browser.run(count.format("line")) == 6 + 1 + 4  # losses, what is kept, intervals
        assert [browser.run(count.format(kind)) for kind in ("dot", "cross")] == [3, 1]
