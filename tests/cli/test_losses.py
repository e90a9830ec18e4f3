import json
import re
from pathlib import Path

import pytest

from surestep.engine.losses.registry import BUILT_IN, loss_docs

PAGE = Path(__file__).parents[2] / "docs" / "losses.md"


def test_the_table_shows_every_loss_with_all_that_the_guide_asks(surestep):
    answer = surestep("losses")
    assert (answer.code, answer.err) == (0, "")
    for row in loss_docs():
        for part in ("call", "formula", "divides_by", "source"):
            assert row[part] in " ".join(answer.out.split())


def test_json_is_the_table(surestep):
    assert json.loads(surestep("losses", "--json").out) == loss_docs()


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_part_of_every_row_says_something(name):
    row = next(row for row in loss_docs() if row["name"] == name)
    assert all(isinstance(part, str) and part for part in row.values())
    assert re.search(r"https://\S+", row["source"])


def test_one_loss_is_shown_alone(surestep):
    out = surestep("losses", "quantile").out
    assert "quantile(quantiles=(0.1, 0.5, 0.9))" in out
    assert "huber" not in out


def test_an_unknown_loss_is_refused_with_those_that_are_near(surestep):
    answer = surestep("losses", "hubber")
    assert answer.code == 2
    assert "There is no loss 'hubber'. Did you mean 'huber'?" in answer.err


def test_the_page_has_a_row_for_each_loss_as_the_table_says():
    wanted = [page_row(row) for row in loss_docs()]
    found = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert found == wanted


def page_row(row):
    cells = [f"`{row['call']}`", row["task"], row["outputs"], row["targets"]]
    cells += [f"`{row['formula']}`", row["divides_by"], row["source"]]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
