"""What a launcher tells a process: torchrun, accelerate, deepspeed, mpirun or Slurm's srun.

Sources: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables,
https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES,
https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html; what accelerate and deepspeed
set was read from processes that they started.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from surestep.base.errors import ConfigError

NPROC = "--nproc"
BY_NPROC = f"surestep {NPROC}"
NPROC_SAID = "SURESTEP_NPROC"  # in the environment of the processes that are started by it
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# What only this launcher sets; accelerate starts through torchrun, so that it comes first.
_MARKS = {
    NPROC_SAID: BY_NPROC,
    "ACCELERATE_MIXED_PRECISION": "accelerate launch",
    "TORCHELASTIC_RUN_ID": "torchrun",
    "CROSS_SIZE": "deepspeed",
}
# Rank, size, and both on this machine, as Open MPI and as MPICH and Intel MPI name them.
_MPI = (
    (
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        *("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
_PORTS = 15000  # from here on, for jobs of Slurm, which names none


@dataclass(frozen=True)
class LaunchInfo:
    """Where a process stands among those that were started with it.

    Attributes:
        rank: of all processes, from 0.
        size: how many there are.
        local_rank: of those on this machine, from 0.
        local_size: how many there are on this machine.
        by: what started them; "nobody" where there is one.
        address: of the first process's machine.
        port: on which the processes find each other.
        shares_store: the launcher keeps the store in which they find each other, and keeps it when
            it starts them again.
        restarts: how often the launcher starts them again after one of them died.
        attempt: how often it has.
        imagined: none of them is there; a plan is made for them.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launcher: str = "nobody"
    address: str = ""
    port: int = 0
    shares_store: bool = False
    restarts: int = 0
    attempt: int = 0
    is_simulated: bool = False

    @property
    def node(self) -> int:
        """The number of this process's machine, where each has as many processes."""
        return self.rank // self.local_size

    @property
    def nodes(self) -> int:
        """How many machines there are, where each has as many processes."""
        return max(1, self.size // self.local_size)


ALONE = LaunchInfo()


def read_launched(said: Mapping[str, str] | None = None) -> LaunchInfo:
    """Read what the launcher said in the environment.

    Raises:
        ConfigError: it said a part only.
    """
    said = os.environ if said is None else said
    if "RANK" in said or "WORLD_SIZE" in said:
        return _of_torchrun(said)
    for names in _MPI:  # before Slurm's, which mpirun within a job of Slurm hands on to all alike
        if int(said.get(names[1], "1")) > 1 and not _is_sruns(said, names[0]):
            return _of_mpi(said, names)
    if "SLURM_PROCID" in said and int(said.get("SLURM_NTASKS", "1")) > 1:
        return _of_slurm(said)
    return ALONE


def _of_torchrun(said: Mapping[str, str]) -> LaunchInfo:
    lacks = [name for name in _NEEDED if not said.get(name)]
    if lacks:
        raise ConfigError(
            f"The environment has RANK or WORLD_SIZE, but not {', '.join(lacks)}. Start with "
            "torchrun, which sets all of them, or unset those."
        )
    size = int(said["WORLD_SIZE"])
    local = int(said.get("LOCAL_WORLD_SIZE") or said.get("LOCAL_SIZE") or size)
    return LaunchInfo(
        rank=int(said["RANK"]),
        size=size,
        local_rank=int(said.get("LOCAL_RANK", int(said["RANK"]) % local)),
        local_size=local,
        launcher=next((name for mark, name in _MARKS.items() if mark in said), "a launcher"),
        address=said["MASTER_ADDR"],
        port=int(said["MASTER_PORT"]),
        shares_store=said.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        restarts=int(said.get("TORCHELASTIC_MAX_RESTARTS", "0")),
        attempt=int(said.get("TORCHELASTIC_RESTART_COUNT", "0")),
    )


def missing_ranks_warning(said: Mapping[str, str] | None = None) -> str | None:
    """Return what to warn of where a launcher was asked for more than the one that it started.

    On a CPU accelerate says where several processes meet, and starts one: it wants mpirun there.
    """
    said = os.environ if said is None else said
    asked = {"ACCELERATE_MIXED_PRECISION", "MASTER_ADDR", "MASTER_PORT"} <= said.keys()
    if not asked or read_launched(said).size > 1 or "WORLD_SIZE" in said:
        return None
    return (
        "accelerate launch was asked for several processes, and has started this one alone: on a "
        "CPU it needs MPI. Say --multi_gpu, or start them with surestep train RECIPE --nproc 2."
    )


def _is_sruns(said: Mapping[str, str], rank: str) -> bool:
    """Say whether srun set the variables of MPI, as it does with `--mpi=pmi2`."""
    return "SLURM_PROCID" in said and said.get(rank) == said["SLURM_PROCID"]


def _of_mpi(said: Mapping[str, str], names: tuple[str, ...]) -> LaunchInfo:
    """Read what mpirun says; where the processes meet it does not know."""
    rank, size, local_rank, local_size = names
    lacks = [name for name in (rank, "MASTER_ADDR", "MASTER_PORT") if not said.get(name)]
    if lacks:
        raise ConfigError(
            f"mpirun started {said[size]} processes, and the environment lacks {', '.join(lacks)}, "
            "so that they cannot find each other: each would train a run of its own. Say where "
            f"the first one is: mpirun -n {said[size]} -x MASTER_ADDR=HOST -x MASTER_PORT=29500 "
            "python -m surestep train RECIPE, or start with torchrun or srun."
        )
    of_here = int(said.get(local_size) or said[size])
    return LaunchInfo(
        rank=int(said[rank]),
        size=int(said[size]),
        local_rank=int(said.get(local_rank) or int(said[rank]) % of_here),
        local_size=of_here,
        launcher="mpirun",
        address=said["MASTER_ADDR"],
        port=int(said["MASTER_PORT"]),
    )


def _of_slurm(said: Mapping[str, str]) -> LaunchInfo:
    """Read what srun says; the processes meet on the first machine of the job."""
    size, local = int(said["SLURM_NTASKS"]), int(said.get("SLURM_NTASKS_PER_NODE", "0"))
    job = int(said.get("SLURM_JOB_ID", "0"))
    return LaunchInfo(
        rank=int(said["SLURM_PROCID"]),
        size=size,
        local_rank=int(said.get("SLURM_LOCALID", "0")),
        local_size=local or max(1, size // int(said.get("SLURM_NNODES", "1"))),
        launcher="srun",
        address=said.get("MASTER_ADDR") or first_host(said.get("SLURM_NODELIST", "localhost")),
        port=int(said.get("MASTER_PORT") or _PORTS + job % 10_000),
    )


def first_host(nodes: str) -> str:
    """Return the first machine of Slurm's list, such as "n[003-007,9]" or "a1,b2"."""
    before, bracket, rest = nodes.partition("[")
    if not bracket or "," in before:
        return nodes.partition(",")[0]
    first = re.split(r"[-,\]]", rest, maxsplit=1)[0]
    return before + first
