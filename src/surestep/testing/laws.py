"""The laws of surestep as a test of a project."""

from collections.abc import Callable, Mapping, Sequence

from surestep.config.config import Config
from surestep.engine.step.callback import Callback
from surestep.engine.task.task import Task
from surestep.laws.proof import Row
from surestep.laws.prove import prove_laws


def assert_laws(
    make_task: Callable[[], Task],
    config: Config,
    *,
    callbacks: Sequence[Callback] = (),
    laws: Sequence[str] | None = None,
    ignore: Mapping[str, str] | None = None,
    minutes: float = 10.0,
) -> None:
    """Assert that the laws hold on a task; see `surestep.prove_laws`.

    Args:
        make_task: makes the task from scratch, in each process.
        config: the options of the real run.
        callbacks: of the real run.
        laws: the names of those to prove; None is all. Those that are named must have been tested.
        ignore: why a law may fail, by its name.
        minutes: that all of it may take.

    Raises:
        AssertionError: a law fails, one that is named was not tested, or Ctrl-C arrived.
        ConfigError, TaskError: the program cannot be trained, or an argument is not valid.
    """
    proof = prove_laws(
        make_task, config, callbacks=callbacks, laws=laws, ignore=ignore, minutes=minutes
    )
    wrong = proof.failed + [
        row for row in proof.rows if laws is not None and row.status == "not tested"
    ]
    texts = [_describe(row) for row in wrong]
    if proof.stopped:
        texts.append(f"Stopped by {proof.stopped}, so not all laws were tested.")
    if texts:
        raise AssertionError("\n".join(texts))


def _describe(row: Row) -> str:
    cause = f" Usual cause: {row.cause} What to change: {row.mend}" if row.cause else ""
    return f"{row.title} {row.status}: {row.text}{cause}"
