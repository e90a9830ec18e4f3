"""When memory runs out: what was held is written, and what to do is told."""

from collections.abc import Iterator
from contextlib import contextmanager

from surestep.base.errors import OutOfMemoryError
from surestep.base.text import format_bytes
from surestep.engine.device import ran_out
from surestep.engine.profile.oom import memory_snapshot
from surestep.engine.step.loop import Loop
from surestep.record.run_writer import RunWriter


def out_of_memory(
    recorder: RunWriter, loop: Loop, error: BaseException, *, measured: int | None = None
) -> OutOfMemoryError:
    """Write what is held in memory; return an error that says where, and what to do.

    Args:
        recorder: of the run folder.
        loop: whose state is held.
        error: torch's.
        measured: samples that an evaluation measured at once; None is a step.
    """
    plan, step = loop.plan, loop.state.progress.step
    if measured is None:
        name, where = f"step-{step + 1}", f"in step {step + 1}"
        hint = (
            f"Use a smaller micro_batch_size than {plan.micro_batch_size}, which changes no "
            "update, or activation_checkpointing='on'."
        )
    else:
        name, where = f"evaluation-{step}", f"in the evaluation after step {step}"
        hint = f"Use a smaller validation.batch_size than {measured}, which changes no metric."
    snapshot = memory_snapshot(loop.state, plan.device)
    path = recorder.write(f"out-of-memory-{name}.json", snapshot)
    kinds = ("weights", "gradients", "optimizer", "allocated")
    held = ", ".join(f"{kind} {format_bytes(snapshot[kind])}" for kind in kinds)
    first = str(error).partition("\n")[0]
    return OutOfMemoryError(f"Memory ran out {where}: {first} Held: {held}; more in {path}. {hint}")


@contextmanager
def evaluation_oom(loop: Loop, samples: int) -> Iterator[None]:
    """Tell of memory that runs out within, where so many samples are measured at once.

    Raises:
        OutOfMemory: it did.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if loop.out_of_memory is None or not ran_out(error):
            raise
        raise loop.out_of_memory(error, measured=samples) from error
