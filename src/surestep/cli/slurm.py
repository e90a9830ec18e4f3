"""The file that Slurm's sbatch takes: it trains a recipe, and requeues itself while it can go on.

Source: https://slurm.schedmd.com/sbatch.html (signal, requeue, open-mode).
"""

import shlex
from dataclasses import dataclass

WARNING_S = 120  # before the time is up: a step, and a save of many GB

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
# Add what your cluster wants, such as --partition, --account and --cpus-per-task.

# {warning_s} s before the time is up Slurm sends SIGUSR1 to every process that srun started. They
# finish their step, save, and write into the run folder that the run can go on.
set -u
run={run}
python={python}

MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((15000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT

mark() {{ cat "$run/status.json" 2>/dev/null; }}
before=$(mark)
srun --kill-on-bad-exit=1 "$python" -m surestep train {words} --run "$run"
code=$?

# The run's own mark decides: one that is finished or failed is not queued again, nor one that no
# process has touched.
case $(mark) in
"$before") ;;
*'"resumable": true'*)
    echo "$run can go on: job $SLURM_JOB_ID is queued again."
    scontrol requeue "$SLURM_JOB_ID"
    ;;
esac
exit "$code"
"""


@dataclass(frozen=True)
class SlurmJob:
    """What a job of Slurm's is to train, and with how much.

    Attributes:
        name: of the job.
        words: the recipe and its options, as `surestep train` takes them.
        run: the run folder.
        python: that has surestep.
        nodes: how many machines.
        nproc: processes on each machine.
        gpus: whether each process gets a GPU.
        time: limit of one start, as Slurm writes it.
    """

    name: str
    words: tuple[str, ...]
    run: str
    python: str
    nodes: int
    nproc: int
    gpus: bool
    time: str

    def text(self) -> str:
        """Return the file."""
        return _TEXT.format(
            name=self.name,
            nodes=self.nodes,
            nproc=self.nproc,
            gpus=f"#SBATCH --gpus-per-node={self.nproc}\n" if self.gpus else "",
            time=self.time,
            warning_s=WARNING_S,
            run=shlex.quote(self.run),
            python=shlex.quote(self.python),
            words=shlex.join(self.words),
        )
