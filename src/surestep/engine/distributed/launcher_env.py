"""What launchers set in the environment: torchrun, accelerate, deepspeed, mpirun and Slurm's srun.

Sources: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables,
https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES,
https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html,
https://huggingface.co/docs/accelerate/package_reference/cli; what accelerate and deepspeed set was
read from processes that they started.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from surestep.base.errors import ConfigError

NPROC = "--nproc"
BY_NPROC = f"surestep {NPROC}"
NPROC_VARIABLE = "SURESTEP_NPROC"  # in the environment of the processes that it starts
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# What only this launcher sets; accelerate starts through torchrun, so it comes first.
_MARKS = {
    NPROC_VARIABLE: BY_NPROC,
    "ACCELERATE_MIXED_PRECISION": "accelerate launch",
    "TORCHELASTIC_RUN_ID": "torchrun",
    "CROSS_SIZE": "deepspeed",
}
# Rank, size, and both on this machine, as Open MPI and as MPICH and Intel MPI name them.
_MPI_KEYS = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
_MPI = (
    tuple(f"OMPI_COMM_WORLD_{key}" for key in _MPI_KEYS),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
_SLURM_PORTS = 15000  # the first; Slurm sets none
_COMPILE_MODES = ("default", "reduce-overhead", "max-autotune")
_ACCELERATE_ENGINES = {
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
}


@dataclass(frozen=True)
class LaunchInfo:
    """The rank of a process among those that were started with it.

    Attributes:
        rank: of all processes, from 0.
        size: number of processes.
        local_rank: of those on this machine, from 0.
        local_size: number of processes on this machine.
        launcher: what started them; "none" if there is one process.
        address: of the machine of rank 0.
        port: on which the processes find each other.
        shares_store: the launcher keeps the store in which they find each other, and keeps it when
            it restarts them.
        restarts: how often the launcher restarts them after one of them died.
        attempt: how often it has.
        is_simulated: none of them exists; a plan is made for them.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launcher: str = "none"
    address: str = ""
    port: int = 0
    shares_store: bool = False
    restarts: int = 0
    attempt: int = 0
    is_simulated: bool = False

    @property
    def node(self) -> int:
        """The number of this process's machine, if each has as many processes."""
        return self.rank // self.local_size

    @property
    def nodes(self) -> int:
        """The number of machines, if each has as many processes."""
        return max(1, self.size // self.local_size)


ALONE = LaunchInfo()


def read_launched(environment: Mapping[str, str] | None = None) -> LaunchInfo:
    """Read the launcher's variables.

    Raises:
        ConfigError: some of them are missing.
    """
    env = os.environ if environment is None else environment
    if "RANK" in env or "WORLD_SIZE" in env:
        return _read_torchrun(env)
    for names in _MPI:  # before Slurm's, which mpirun in a Slurm job passes to all processes
        is_srun = "SLURM_PROCID" in env and env.get(names[0]) == env["SLURM_PROCID"]  # --mpi=pmi2
        if int(env.get(names[1], "1")) > 1 and not is_srun:
            return _read_mpi(env, *names)
    if "SLURM_PROCID" in env and int(env.get("SLURM_NTASKS", "1")) > 1:
        return _read_slurm(env)
    return ALONE


def _read_torchrun(env: Mapping[str, str]) -> LaunchInfo:
    missing = [name for name in _NEEDED if not env.get(name)]
    if missing:
        raise ConfigError(
            f"The environment has RANK or WORLD_SIZE, but not {', '.join(missing)}. Start with "
            "torchrun, which sets all of them, or unset those."
        )
    size = int(env["WORLD_SIZE"])
    local = int(env.get("LOCAL_WORLD_SIZE") or env.get("LOCAL_SIZE") or size)
    return LaunchInfo(
        rank=int(env["RANK"]),
        size=size,
        local_rank=int(env.get("LOCAL_RANK", int(env["RANK"]) % local)),
        local_size=local,
        launcher=next((name for mark, name in _MARKS.items() if mark in env), "a launcher"),
        address=env["MASTER_ADDR"],
        port=int(env["MASTER_PORT"]),
        shares_store=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        restarts=int(env.get("TORCHELASTIC_MAX_RESTARTS", "0")),
        attempt=int(env.get("TORCHELASTIC_RESTART_COUNT", "0")),
    )


def _read_mpi(
    env: Mapping[str, str], rank: str, size: str, local_rank: str, local_size: str
) -> LaunchInfo:
    """Read mpirun's variables, given their names; the address of rank 0 is not among them."""
    missing = [name for name in (rank, "MASTER_ADDR", "MASTER_PORT") if not env.get(name)]
    if missing:
        raise ConfigError(
            f"mpirun started {env[size]} processes, and the environment lacks "
            f"{', '.join(missing)}: without them, each would train a separate run. Set the "
            f"address of rank 0: mpirun -n {env[size]} -x MASTER_ADDR=HOST -x MASTER_PORT=29500 "
            "python -m surestep train RECIPE, or start with torchrun or srun."
        )
    local = int(env.get(local_size) or env[size])
    return LaunchInfo(
        rank=int(env[rank]),
        size=int(env[size]),
        local_rank=int(env.get(local_rank) or int(env[rank]) % local),
        local_size=local,
        launcher="mpirun",
        address=env["MASTER_ADDR"],
        port=int(env["MASTER_PORT"]),
    )


def _read_slurm(env: Mapping[str, str]) -> LaunchInfo:
    """Read srun's variables; rank 0 is on the first machine of the job."""
    size, local = int(env["SLURM_NTASKS"]), int(env.get("SLURM_NTASKS_PER_NODE", "0"))
    job = int(env.get("SLURM_JOB_ID", "0"))
    return LaunchInfo(
        rank=int(env["SLURM_PROCID"]),
        size=size,
        local_rank=int(env.get("SLURM_LOCALID", "0")),
        local_size=local or max(1, size // int(env.get("SLURM_NNODES", "1"))),
        launcher="srun",
        address=env.get("MASTER_ADDR") or first_host(env.get("SLURM_NODELIST", "localhost")),
        port=int(env.get("MASTER_PORT") or _SLURM_PORTS + job % 10_000),
    )


def first_host(nodes: str) -> str:
    """Return the first machine of Slurm's list, such as "n[003-007,9]" or "a1,b2"."""
    before, bracket, rest = nodes.partition("[")
    if not bracket or "," in before:
        return nodes.partition(",")[0]
    return before + re.split(r"[-,\]]", rest, maxsplit=1)[0]


@dataclass(frozen=True)
class AccelerateConfig:
    """The answers of `accelerate config` that a Plan depends on, as `accelerate launch` sets them.

    Attributes:
        mixed_precision: "no", "fp16", "bf16" or "fp8".
        use_cpu: train on the CPU even if there are GPUs.
        dynamo: the backend of torch.compile in small letters; "no" compiles nothing.
        dynamo_mode: torch.compile's mode.
        engine: what shards the state: "FSDP", "DeepSpeed", "Megatron-LM"; "" if the model is
            copied.
    """

    mixed_precision: str = "no"
    use_cpu: bool = False
    dynamo: str = "no"
    dynamo_mode: str = "default"
    engine: str = ""

    @property
    def compile_mode(self) -> str | None:
        """The value of `compile` that means the same; None if there is none."""
        if self.dynamo == "no":
            return "off"
        is_known = self.dynamo == "inductor" and self.dynamo_mode in _COMPILE_MODES
        return self.dynamo_mode if is_known else None


def read_accelerate(environment: Mapping[str, str] | None = None) -> AccelerateConfig | None:
    """Read what `accelerate launch` set; None if it did not start this process."""
    env = os.environ if environment is None else environment
    if "ACCELERATE_MIXED_PRECISION" not in env:
        return None

    def is_on(name: str) -> bool:
        return env.get(name, "false").lower() in ("1", "true", "yes")

    return AccelerateConfig(
        mixed_precision=env["ACCELERATE_MIXED_PRECISION"].lower(),
        use_cpu=is_on("ACCELERATE_USE_CPU"),
        dynamo=env.get("ACCELERATE_DYNAMO_BACKEND", "no").lower(),
        dynamo_mode=env.get("ACCELERATE_DYNAMO_MODE", "default"),
        engine=next((name for key, name in _ACCELERATE_ENGINES.items() if is_on(key)), ""),
    )
