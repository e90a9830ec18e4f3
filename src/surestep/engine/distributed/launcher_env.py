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
from pathlib import Path

from surestep.base.errors import ConfigError

NPROC = "--nproc"
BY_NPROC = f"surestep {NPROC}"
NPROC_VARIABLE = "SURESTEP_NPROC"  # in the environment of the processes that it starts
RESTART_VARIABLE = "SURESTEP_RESTART_FILE"  # a path: `--nproc` starts them again if it exists
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_KEYS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
# What only this launcher sets; accelerate starts through torchrun, so it comes first.
_MARKS = {
    NPROC_VARIABLE: BY_NPROC,
    "ACCELERATE_MIXED_PRECISION": "accelerate launch",
    "TORCHELASTIC_RUN_ID": "torchrun",
    "CROSS_SIZE": "deepspeed",
}
_MPI = (  # `_KEYS` as Open MPI, and as MPICH and Intel MPI name them
    tuple(f"OMPI_COMM_WORLD_{key}" for key in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
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
        rank, size, *_ = names
        is_srun = "SLURM_PROCID" in env and env.get(rank) == env["SLURM_PROCID"]  # --mpi=pmi2
        if int(env.get(size, "1")) > 1 and not is_srun:
            keys = zip(_KEYS, names, strict=True)
            own = {key: env[name] for key, name in keys if env.get(name)}
            return _read_torchrun({**env, **own}, "mpirun")
    if "SLURM_PROCID" in env and int(env.get("SLURM_NTASKS", "1")) > 1:
        return _read_torchrun({**env, **_translate_slurm(env)}, "srun")
    return ALONE


def _read_torchrun(env: Mapping[str, str], launcher: str = "") -> LaunchInfo:
    missing = [name for name in _NEEDED if not env.get(name)]
    if missing:
        raise ConfigError(
            f"This is one of several processes, but its environment has no {', '.join(missing)}. "
            "Start with torchrun or srun, which set all of them; or set the address of rank 0: "
            "mpirun -n 4 -x MASTER_ADDR=HOST -x MASTER_PORT=29500 python -m surestep train RECIPE; "
            "or start one process, and unset RANK and WORLD_SIZE."
        )
    rank, size = int(env["RANK"]), int(env["WORLD_SIZE"])
    local = int(env.get("LOCAL_WORLD_SIZE") or env.get("LOCAL_SIZE") or size)
    marked = (name for mark, name in _MARKS.items() if mark in env)
    return LaunchInfo(
        rank=rank,
        size=size,
        local_rank=int(env.get("LOCAL_RANK") or rank % local),
        local_size=local,
        launcher=launcher or next(marked, "a launcher"),
        address=env["MASTER_ADDR"],
        port=int(env["MASTER_PORT"]),
        shares_store=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        restarts=int(env.get("TORCHELASTIC_MAX_RESTARTS", "0")),
        attempt=int(env.get("TORCHELASTIC_RESTART_COUNT", "0")),
    )


def _translate_slurm(env: Mapping[str, str]) -> dict[str, str]:
    """Return torchrun's variables for srun's; rank 0 is on the first machine of the job."""
    size, nodes = env["SLURM_NTASKS"], env.get("SLURM_NNODES", "1")
    port = _SLURM_PORTS + int(env.get("SLURM_JOB_ID", "0")) % 10_000
    return {
        "RANK": env["SLURM_PROCID"],
        "WORLD_SIZE": size,
        "LOCAL_RANK": env.get("SLURM_LOCALID", "0"),
        "LOCAL_WORLD_SIZE": env.get("SLURM_NTASKS_PER_NODE") or str(int(size) // int(nodes) or 1),
        "MASTER_ADDR": env.get("MASTER_ADDR") or first_host(env.get("SLURM_NODELIST", "localhost")),
        "MASTER_PORT": env.get("MASTER_PORT") or str(port),
    }


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


def request_restart() -> None:
    """Have `surestep --nproc` start its processes again when they have ended; others do nothing."""
    if path := os.environ.get(RESTART_VARIABLE):
        Path(path).touch()
