"""`surestep new slurm RECIPE`: an sbatch file that trains a recipe, and requeues itself.

`surestep new project NAME` is in new_project.py.

Source: https://slurm.schedmd.com/sbatch.html (signal, requeue, open-mode).
"""

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
from surestep.cli import new_project, train
from surestep.cli.options import read_command_line
from surestep.cli.output import write_new_file
from surestep.cli.parse import parse_known
from surestep.engine.distributed.launcher_env import LaunchInfo

if TYPE_CHECKING:  # torch is imported once the command line is checked
    from surestep.engine.plan.system import SystemInfo

WARNING_S = 120  # from the signal to the time limit: a step, and a save of many GB
# Minutes, or [days-]hours[:minutes[:seconds]], as sbatch reads them.
_TIME = re.compile(r"\d+|\d+:\d\d(:\d\d)?|\d+-\d+(:\d\d){0,2}")
_TEXT = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={nproc}
{gpus}#SBATCH --time={time}
#SBATCH --output={name}-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR1@{warning_s}
# Add what your cluster needs, such as --partition, --account and --cpus-per-task.

# {warning_s} s before the time limit, Slurm sends SIGUSR1 to every process that srun started. They
# finish their step, save, and record in the run folder that the run can be resumed.
set -u
run={run}
# Each node needs surestep and torch for this Python: pip install 'surestep[torch]'
python={python}

MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((15000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT

status() {{ cat "$run/status.json" 2>/dev/null; }}
before=$(status)
srun --kill-on-bad-exit=1 "$python" -m surestep train {words} --run "$run"
code=$?

# The status of the run decides: a run that is finished or failed is not queued again, nor one that
# no process has touched.
case $(status) in
"$before") ;;
*'"resumable": true'*)
    echo "$run can be resumed: job $SLURM_JOB_ID is queued again."
    scontrol requeue "$SLURM_JOB_ID"
    ;;
esac
exit "$code"
"""


@dataclass(frozen=True)
class Options:
    """Write an sbatch file that trains a recipe under Slurm.

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
    if words[:1] == ["project"]:
        return new_project.run(words[1:])
    if words[:1] == ["slurm"]:
        words = ["--slurm", *words[1:]]
    parsed, more = parse_known(Options, words, "surestep new")
    _check(parsed)
    call, _ = read_command_line("train", [parsed.recipe, *more], train.Options)
    from surestep.trainer.planning import plan_task

    name, config = call.recipe.name, call.config
    system = _system_of_job(parsed, on_gpus=parsed.gpus or str(config.device).startswith("cuda"))
    plan_task(call.task(system), config, origin=call.origin, system=system)
    out = Path(parsed.out or f"{name}.sbatch")
    text = _TEXT.format(
        name=name,
        nodes=parsed.nodes,
        nproc=parsed.nproc,
        gpus=f"#SBATCH --gpus-per-node={parsed.nproc}\n" if parsed.gpus else "",
        time=parsed.time,
        warning_s=WARNING_S,
        run=shlex.quote(parsed.run or f"runs/{name}"),
        python=shlex.quote(sys.executable),
        words=shlex.join((parsed.recipe, *more)),
    )
    write_new_file(out, text)
    print_escaped(f"{out} is written: SIGUSR1 comes {WARNING_S} s before the time limit.")
    print_escaped(f"Next: sbatch {shlex.quote(str(out))}")
    return 0


def _system_of_job(parsed: Options, *, on_gpus: bool) -> SystemInfo:
    """Return what a process of the job will find; this machine knows only a part of it."""
    from surestep.engine.plan.system import read_system

    size = parsed.nodes * parsed.nproc
    gpus = (parsed.nproc if parsed.gpus else 8) if on_gpus else 0
    return replace(
        read_system(),
        launched=LaunchInfo(size=size, local_size=parsed.nproc, launcher="srun", is_simulated=True),
        has_own_gpu=False,
        cuda_devices=("a GPU",) * gpus,
        cuda_memory=(0,) * gpus,
        cuda_ids=(),
        bf16_native=on_gpus,
        tf32=on_gpus,
    )


def _check(parsed: Options) -> None:
    if not parsed.slurm:
        raise ConfigError(
            "surestep new project NAME writes a project. For an sbatch file, type surestep new "
            f"--slurm {shlex.quote(parsed.recipe)}."
        )
    for name, value in (("nodes", parsed.nodes), ("nproc", parsed.nproc)):
        if value < 1:
            raise ConfigError(f"--{name} {value} is not allowed: pass a number of at least 1.")
    if not _TIME.fullmatch(parsed.time):
        raise ConfigError(f"--time {parsed.time} is not a time of Slurm. Pass one such as 8:00:00.")
