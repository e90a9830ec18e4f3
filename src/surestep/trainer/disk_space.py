"""Whether the checkpoints of a run fit on its disk, told before it trains and after its first save.

Before it, a size is counted from the parameters and the optimizer's options, and what an optimizer
of the user's own keeps is not known.
"""

import shutil
from pathlib import Path

from surestep.base.errors import RunError
from surestep.base.text import format_bytes
from surestep.engine.optim.param_groups import parameters_of
from surestep.engine.optim.state_size import state_bytes
from surestep.engine.plan.plan import Plan
from surestep.engine.profile.memory_estimate import tensor_bytes
from surestep.engine.schedule.lr import cycle_ends
from surestep.engine.state.state import State, trainable_parameters
from surestep.record.checkpoint.discovery import list_checkpoints
from surestep.record.checkpoint.inspect import size_on_disk

FILLS_UP = "THE DISK MAY FILL UP"


def check_disk_space(folder: Path, plan: Plan, state: State) -> str | None:
    """Return what to tell where the checkpoints will not all fit, before a run trains.

    Args:
        folder: of the run.
        plan: says how many stay.
        state: what each will hold.

    Raises:
        RunError: not even one fits beside what is there.
    """
    there = list_checkpoints(folder / "checkpoints")
    size = size_on_disk(there[-1]) if there else estimate_checkpoint_bytes(plan, state)
    free = _free(folder)
    if free is not None and size > free:
        raise RunError(
            f"A checkpoint of this run takes about {format_bytes(size)}, and "
            f"{format_bytes(free)} are "
            f"free on the disk of {folder}: none could be saved. Free some space, or choose "
            "another folder with --run (run= in Python)."
        )
    return disk_space_warning(folder, plan, size)


def disk_space_warning(folder: Path, plan: Plan, size: int) -> str | None:
    """Return what to tell where as many checkpoints of this size as will stay do not fit."""
    free = _free(folder)
    counts = _most(plan)
    count = sum(counts.values())
    there = sum(map(size_on_disk, list_checkpoints(folder / "checkpoints")))
    if free is None or count * size <= free + there:
        return None
    parts = ", ".join(f"{number} {name}" for name, number in counts.items() if number)
    return (
        f"{FILLS_UP}: checkpoints of about {format_bytes(size)}, up to {count} at once "
        f"({parts}), take {format_bytes(count * size)}, and {format_bytes(free + there)} are "
        "there for "
        f"them on the disk of {folder}. Say a smaller checkpoint.keep_last, keep_best or a longer "
        "keep_every, free some space, or choose another folder with --run (run= in Python)."
    )


def estimate_checkpoint_bytes(plan: Plan, state: State) -> int:
    """Return what the tensors of a checkpoint will take, once the optimizers have their state."""
    trained = list(trainable_parameters(state.model).values())
    whole = plan.checkpoint_weights == "all"
    total = tensor_bytes(state.model.parameters()) if whole else tensor_bytes(trained)
    total += tensor_bytes(state.model.buffers())
    for name, optimizer in state.optimizers.items():
        own = plan.optimizers.get(name, plan)
        if own.optim_name != "own":
            moved = list(parameters_of(optimizer))
            total += state_bytes(own.optim_name, own.optim_options, state.model, moved)
    return total + (0 if state.average is None else tensor_bytes(state.average.tensors.values()))


def _most(plan: Plan) -> dict[str, int]:
    """Return how many lie on the disk at once at most, by why; no more than steps can be saved."""
    every = plan.checkpoint_keep_every
    best = plan.checkpoint_keep_best if plan.validation_metric else 0
    counts = {
        "last": plan.checkpoint_keep_last,
        "best": best,
        "best before": 1 if best and plan.on_spike == "rollback" else 0,
        "milestones": 0
        if every is None
        else int(plan.total_steps / every.steps(plan.steps_per_epoch)),
        "cycles": len(cycle_ends(plan.schedule)),
        "being written": 1,
    }
    left = plan.total_steps
    for name in counts:
        counts[name] = min(counts[name], left)
        left -= counts[name]
    return counts


def _free(folder: Path) -> int | None:
    """Return the free bytes of a disk; None where it does not say."""
    try:
        found = shutil.disk_usage(folder)
    except OSError:
        return None
    return found.free if found.total else None
