import json
import re
from pathlib import Path

import pytest

from surestep.engine.losses.registry import BUILT_IN, loss_doc, loss_names

TABLE = [loss_doc(name) for name in loss_names()]
PAGE = Path(__file__).parents[2] / "docs" / "losses.md"


def test_table_shows_every_loss_with_every_column_of_the_guide(surestep):
    answer = surestep("losses")
    assert (answer.code, answer.err) == (0, "")
    for row in TABLE:
        for part in ("call", "formula", "divides_by", "source"):
            assert row[part] in " ".join(answer.out.split())


def test_json_output_equals_the_loss_table(surestep):
    assert json.loads(surestep("losses", "--json").out) == TABLE


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_cell_of_the_loss_table_is_filled(name):
    row = loss_doc(name)
    assert all(isinstance(part, str) and part for part in row.values())
    assert re.search(r"https://\S+", row["source"])


def test_single_loss_can_be_shown(surestep):
    out = surestep("losses", "quantile").out
    assert "quantile(quantiles=(0.1, 0.5, 0.9))" in out
    assert "huber" not in out


def test_unknown_loss_is_rejected_with_the_nearest_names(surestep):
    answer = surestep("losses", "hubber")
    assert answer.code == 2
    assert "There is no loss 'hubber'. Did you mean 'huber'?" in answer.err


def test_page_has_the_table_row_of_every_loss():
    wanted = [page_row(row) for row in TABLE]
    found = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert found == wanted


def page_row(row):
    cells = [f"`{row['call']}`", row["task"], row["outputs"], row["targets"]]
    cells += [f"`{row['formula']}`", row["divides_by"], row["source"]]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
