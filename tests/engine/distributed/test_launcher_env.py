import pytest

from surestep.base.errors import ConfigError
from surestep.engine.distributed.launcher_env import (
    ALONE,
    first_host,
    read_launched,
)

TORCHRUN = {
    **{"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"},
    **{"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "x"},
}


def test_single_process_without_a_launcher_is_alone():
    assert read_launched({}) == ALONE
    assert read_launched({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}) == ALONE


def test_rank_and_sizes_are_read_from_torchrun():
    found = read_launched(TORCHRUN)
    assert (found.rank, found.size, found.local_rank, found.local_size) == (5, 8, 1, 4)
    assert (found.nodes, found.launcher, found.address, found.port) == (
        2,
        "torchrun",
        "10.0.0.1",
        29500,
    )
    without = {name: value for name, value in TORCHRUN.items() if name != "LOCAL_RANK"}
    assert read_launched(without) == found
    assert not found.shares_store
    assert read_launched({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"}).shares_store


def test_accelerate_launch_is_recognized_on_top_of_torchrun():
    found = read_launched({**TORCHRUN, "ACCELERATE_MIXED_PRECISION": "no"})
    assert (found.rank, found.launcher) == (5, "accelerate launch")


def test_local_rank_and_sizes_are_read_from_the_deepspeed_launcher():
    said = {name: value for name, value in TORCHRUN.items() if name[:4] in ("RANK", "WORL", "MAST")}
    own = {"LOCAL_RANK": "1", "LOCAL_SIZE": "4", "CROSS_RANK": "1", "CROSS_SIZE": "2"}
    found = read_launched({**said, **own})
    assert (found.local_rank, found.local_size, found.nodes) == (1, 4, 2)
    assert (found.launcher, found.shares_store) == ("deepspeed", False)


def test_number_of_restarts_is_read_from_torchrun():
    assert read_launched(TORCHRUN).restarts == 0
    assert read_launched({**TORCHRUN, "TORCHELASTIC_MAX_RESTARTS": "3"}).restarts == 3


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
def test_missing_torchrun_variable_is_named_in_the_error(name):
    with pytest.raises(ConfigError, match=rf"no {name}\. Start with torchrun"):
        read_launched({key: value for key, value in TORCHRUN.items() if key != name})


def test_rank_and_sizes_are_read_from_slurm():
    said = {
        **{"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_NNODES": "2"},
        **{"SLURM_JOB_ID": "1234567", "SLURM_NODELIST": "gpu[07-08]"},
    }
    found = read_launched(said)
    assert (found.rank, found.size, found.local_rank, found.local_size) == (3, 4, 1, 2)
    assert (found.launcher, found.address, found.port) == ("srun", "gpu07", 15000 + 4567)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        *(("one", "one"), ("a,b", "a"), ("n[003-007,9]", "n003"), ("n[5,7]", "n5")),
        *(("a1,n[2-3]", "a1"), ("gpu-[12]", "gpu-12")),
    ],
)
def test_first_host_is_parsed_from_the_slurm_node_list(nodes, first):
    assert first_host(nodes) == first


MASTER = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
OPEN_MPI = {
    **{"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"},
    **{"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
}
INTEL_MPI = {
    **{"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
}
IN_A_JOB = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_NODELIST": "gpu07"}


@pytest.mark.parametrize("mpi", [OPEN_MPI, INTEL_MPI])
@pytest.mark.parametrize("job", [{}, IN_A_JOB])
def test_rank_and_sizes_are_read_from_mpirun(mpi, job):
    found = read_launched({**mpi, **MASTER, **job})
    assert (found.rank, found.size, found.local_rank, found.local_size) == (3, 4, 1, 2)
    assert (found.nodes, found.launcher, found.address, found.port) == (
        2,
        "mpirun",
        "10.0.0.1",
        29500,
    )


@pytest.mark.parametrize("mpi", [OPEN_MPI, INTEL_MPI])
def test_mpirun_without_a_master_address_is_rejected(mpi):
    with pytest.raises(ConfigError, match=r"no MASTER_ADDR, MASTER_PORT.*mpirun -n 4 -x MASTER"):
        read_launched(mpi)


def test_single_process_of_mpirun_is_alone():
    assert read_launched({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "1"}) == ALONE
    assert read_launched({**INTEL_MPI, "PMI_SIZE": "1"}) == ALONE


def test_srun_with_mpi_variables_is_recognized_as_srun():
    said = {**INTEL_MPI, **IN_A_JOB, "SLURM_PROCID": "3", "SLURM_LOCALID": "1"}
    assert read_launched(said).launcher == "srun"


def test_attempt_is_read_from_the_torchelastic_restart_count():
    said = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert read_launched(said).attempt == 0
    assert read_launched({**said, "TORCHELASTIC_RESTART_COUNT": "2"}).attempt == 2
