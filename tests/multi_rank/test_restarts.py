"""torchrun restarts killed processes: the weights equal those of a run never killed."""

from pathlib import Path

import pytest
import torch

from surestep.record.run import Run
from tests.multi_rank.killed_recipe import config
from tests.multi_rank.torchrun import (
    UNHARMED,
    check_ended_well,
    last_weights,
    launch,
    resumed_from,
)


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> Path:
    """Run two ranks: killed three times, stopped by SIGTERM, and resumed.

    Before it, run a sharded model, killed once.
    """
    folder = tmp_path_factory.mktemp("restarts")
    again = ["2", "--max-restarts", "4", "-m", "tests.multi_rank.restarted_runs", str(folder)]
    deaths = {"DEATHS": "- 1@3 0+1@7 save@8 SIGTERM@9", "PART_DEATHS": "part@6"}
    stopped = launch(*again, **deaths, SLOW_SAVES="0.3")
    (folder / "status").write_text(Run(folder / "killed").status["status"])
    assert stopped.returncode == 1, stopped.stderr[-4000:]
    check_ended_well(launch(*again, **UNHARMED))
    return folder


def test_run_killed_repeatedly_ends_with_the_weights_of_one_never_killed(killed):
    assert Run(killed / "killed").status["step"] == config.max_steps
    assert torch.equal(last_weights(killed / "killed"), last_weights(killed / "whole"))


def test_save_in_progress_is_finished_when_another_rank_is_killed(killed):
    assert resumed_from(killed / "killed")[0] == 2


def test_each_restart_resumes_from_the_newest_checkpoint(killed):
    _, both_killed, killed_in_save, stopped = resumed_from(killed / "killed")
    assert both_killed in (4, 6)  # both were killed during the save of step 6
    assert killed_in_save == 6
    assert stopped in (9, 10)


def test_sigterm_to_torchrun_saves_and_reports_that_the_run_is_resumable(killed):
    assert (killed / "status").read_text() == "stopped"


def test_rank_killed_while_it_writes_its_shard_costs_only_that_checkpoint(killed):
    assert resumed_from(killed / "shared killed") == [4]
    assert torch.equal(
        last_weights(killed / "shared killed"), last_weights(killed / "shared whole")
    )
