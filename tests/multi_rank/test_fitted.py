"""micro_batch_size="fit" on two ranks: found before the first step, and recorded if not.

One launch runs all cases; each test checks one of them.
"""

from pathlib import Path

import pytest
import torch
from torch import nn

import surestep
from surestep.record.run import Run
from tests.laws.support.tasks import rows, session_of
from tests.multi_rank import forked
from tests.multi_rank.fitted import CASES, LATER, OPTIONS, Limited
from tests.multi_rank.starter import start
from tests.multi_rank.torchrun import check_ended_well

pytestmark = pytest.mark.slow("launches several processes")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("fitted")
    check_ended_well(start("fitted", folder))
    return folder


def sizes_of(folder: Path, name: str) -> list[tuple[int, int]]:
    events = Run(folder / "runs" / name).events()
    return [(e["step"], e["size"]) for e in events if e["event"] == "micro_batch"]


def test_size_is_found_on_all_ranks_before_the_first_step(folder):
    case = forked.ended(folder / "limited", CASES)["trial"]
    assert case.codes == [0, 0], case.wrote
    assert sizes_of(folder, "trial") == [(1, 2)]


@pytest.mark.parametrize("name", LATER)
def test_rank_that_runs_out_later_ends_the_run_which_resumes_in_smaller_ones(folder, name):
    rank = CASES[name][0]
    case = forked.ended(folder / "limited", CASES)[name]
    assert case.codes == [1, 1]
    assert "the run continues in micro-batches of 4 from step 3 on" in case.wrote[rank]
    assert sizes_of(folder, name) == [(1, 8), (3, 4)]
    resumed = forked.ended(folder / "resumed", LATER)[name]
    assert resumed.codes == [0, 0], resumed.wrote
    assert max(case.seconds) < 60


@pytest.mark.parametrize("name", CASES)
def test_weights_are_those_of_one_process(folder, tmp_path, name):
    torch.set_num_threads(1)
    task = surestep.Task(Limited(0, 0, 99), nn.CrossEntropyLoss(), rows(64))
    with session_of(task, tmp_path / "run", **OPTIONS) as session:
        list(session.steps())
    model = Limited(0, 0, 99)
    Run(folder / "runs" / name).load_model(model, which="last")
    values = session.model.state_dict()
    for key, found in model.state_dict().items():
        expected = values[key]
        assert float((found - expected).norm() / expected.norm()) < 1e-6
