"""`surestep new --slurm RECIPE`."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from surestep.base.errors import ConfigError
from surestep.base.text import print_escaped
from surestep.cli.options import read_command_line
from surestep.cli.parse import parse_known
from surestep.cli.slurm import WARNING_S, SlurmJob
from surestep.cli.train import EXTRAS, check_extras
from surestep.engine.distributed.launcher_env import LaunchInfo

if TYPE_CHECKING:  # torch is imported once the command line is checked
    from surestep.engine.plan.system import SystemInfo

# Minutes, or [days-]hours[:minutes[:seconds]], as sbatch reads them.
_TIME = re.compile(r"\d+|\d+:\d\d(:\d\d)?|\d+-\d+(:\d\d){0,2}")


@dataclass(frozen=True)
class Options:
    """Write a starting file; with --slurm an sbatch file that trains a recipe.

    Other options are those of `surestep train`; they are written into the file.

    Attributes:
        recipe: The recipe to train.
        slurm: Write an sbatch file.
        run: Run folder, visible to all machines; the default is runs/RECIPE.
        nodes: Number of machines.
        nproc: Processes per machine.
        gpus: Give each process one GPU.
        time: Time limit of one job, such as 8:00:00; the job is requeued until the run is done.
        out: File to write; the default is RECIPE.sbatch.
    """

    recipe: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")]
    slurm: bool = False
    run: Annotated[str | None, tyro.conf.arg(metavar="FOLDER")] = None
    nodes: int = 1
    nproc: int = 1
    gpus: bool = False
    time: Annotated[str, tyro.conf.arg(metavar="TIME")] = "1:00:00"
    out: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None


def run(words: list[str]) -> int:
    """Write the file, and print what to type next."""
    said, more = parse_known(Options, words, "surestep new")
    _check(said)
    asked = read_command_line("train", [said.recipe, *more], EXTRAS, check=check_extras)
    from surestep.trainer.planning import plan_task

    facts = _of_the_job(said, on_gpus=said.gpus or str(asked.config.device).startswith("cuda"))
    task = asked.recipe.build(asked.parameters, asked.config, facts=facts)
    plan_task(task, asked.config, origin=asked.origin, facts=facts)
    name = asked.recipe.name
    out = Path(said.out or f"{name}.sbatch")
    job = SlurmJob(
        name=name,
        words=(said.recipe, *more),
        run=said.run or f"runs/{name}",
        python=sys.executable,
        nodes=said.nodes,
        nproc=said.nproc,
        gpus=said.gpus,
        time=said.time,
    )
    _write(out, job.text())
    print_escaped(f"{out} is written: SIGUSR1 comes {WARNING_S} s before the time is up.")
    print_escaped(f"Next: sbatch {shlex.quote(str(out))}")
    return 0


def _of_the_job(said: Options, *, on_gpus: bool) -> SystemInfo:
    """Return what a process of the job will find, of which this machine knows only a part."""
    from surestep.engine.plan.system import read_facts

    size = said.nodes * said.nproc
    launched = LaunchInfo(size=size, local_size=said.nproc, launcher="srun", is_simulated=True)
    facts = replace(read_facts(), launched=launched, one_gpu_each=False)
    gpus = (said.nproc if said.gpus else 8) if on_gpus else 0
    return replace(
        facts,
        cuda_devices=("a GPU",) * gpus,
        cuda_memory=(0,) * gpus,
        cuda_ids=(),
        bf16_native=on_gpus,
        tf32=on_gpus,
    )


def _check(said: Options) -> None:
    if not said.slurm:
        raise ConfigError(
            f"surestep new writes an sbatch file: say surestep new --slurm "
            f"{shlex.quote(said.recipe)}."
        )
    for name, value in (("nodes", said.nodes), ("nproc", said.nproc)):
        if value < 1:
            raise ConfigError(f"--{name} {value} is not allowed: say how many, such as 1.")
    if not _TIME.fullmatch(said.time):
        raise ConfigError(f"--time {said.time} is not a time of Slurm's. Say one such as 8:00:00.")


def _write(out: Path, text: str) -> None:
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{out} is there already. Say --out FILE, or delete it.") from None
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}. Say --out FILE.") from error
