import os

import pytest

from surestep.base.errors import RunError
from surestep.tuning.slots import Slot, count_cores, list_gpus, share_gpus, share_threads


def test_each_live_worker_has_its_own_number(tmp_path):
    with Slot.take(tmp_path) as first, Slot.take(tmp_path) as second:
        assert (first.number, second.number) == (0, 1)
        assert first.count_workers() == second.count_workers() == 2
    with Slot.take(tmp_path) as third:
        assert third.number == 0


def test_study_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "workers").write_text("a file where the folder should be")
    with pytest.raises(RunError, match="cannot be written"):
        Slot.take(tmp_path)


@pytest.mark.parametrize(("workers", "nproc"), [(1, 1), (2, 1), (1, 2), (2, 2), (1000, 1)])
def test_processes_share_the_cores(workers, nproc):
    threads = share_threads(workers, nproc)
    assert threads >= 1
    assert threads == 1 or threads * workers * nproc <= count_cores() <= os.cpu_count()


@pytest.mark.parametrize(
    ("slot", "nproc", "visible"),
    [(0, 1, "0"), (3, 1, "3"), (4, 1, "0"), (0, 2, "0,1"), (1, 2, "2,3"), (2, 2, "0,1")],
)
def test_workers_have_gpus_of_their_own_while_there_are_enough(slot, nproc, visible):
    assert share_gpus(["0", "1", "2", "3"], slot, nproc) == {"CUDA_VISIBLE_DEVICES": visible}


@pytest.mark.parametrize("slot", range(3))
def test_worker_never_has_fewer_gpus_than_processes(slot):
    assert share_gpus(["0", "1", "2"], slot, 2) == {"CUDA_VISIBLE_DEVICES": "0,1"}


@pytest.mark.parametrize("gpus", [[], ["0"]])
def test_a_single_gpu_is_shared_by_all_workers(gpus):
    assert share_gpus(gpus, 1, 1) == {}


def test_visible_gpus_are_those_of_the_environment():
    assert list_gpus({"CUDA_VISIBLE_DEVICES": "2, GPU-5d1"}) == ["2", "GPU-5d1"]
    assert list_gpus({"CUDA_VISIBLE_DEVICES": ""}) == []
