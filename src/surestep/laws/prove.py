"""Prove the laws on a user's program: train it many times over, and compare."""

import math
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path

import torch

from surestep.base.errors import ConfigError, TaskError, suggest_names
from surestep.base.text import describe_value
from surestep.base.version import VERSION
from surestep.config.config import Config
from surestep.engine.step.callback import Callback
from surestep.engine.task.task import Task
from surestep.laws.check import Result, leave_untested
from surestep.laws.explain import Explanation, explain_failure
from surestep.laws.processes import TimeIsOverError, count_at_once
from surestep.laws.program import Program
from surestep.laws.proof import Proof, Row
from surestep.laws.runner import RunFailedError, Runner
from surestep.trainer.arguments import check_callbacks, check_config, check_main_guard

# In order: if a run is not equal to itself, no other row means anything.
CHECKS = (
    "same_again",
    "watching",
    "workers",
    "order",
    "resuming",
    "checkpoint",
    "splitting",
    "ranks",
    "plain_torch",
    "skipping",
    "precision",
    "no_stall",
)
_OWN = tuple(
    Row(law, name, "does not apply", "surestep proves it by its own tests, for any program.")
    for law, name in (("law 7", "durable"), ("law 8", "safe"), ("law 9", "honest"))
)
_OVER = "The time was over: set more minutes."


@dataclass(frozen=True)
class ProofOptions:
    """How much is proved.

    Attributes:
        steps: that are compared in each run.
        samples: of an epoch at most; None is four batches.
        minutes: that all of it may take.
        laws: the names of those that are proved; None is all.
        ignore: why a law may fail, by its name, such as {"workers": "a known bug"}.
    """

    steps: int = 10
    samples: int | None = None
    minutes: float = 10.0
    laws: Sequence[str] | None = None
    ignore: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Check the values.

        Raises:
            ConfigError: one is not valid.
        """
        if not 2 <= self.steps <= 10:
            raise ConfigError(
                f"steps={self.steps} is not a number of steps to compare. Set 2 to 10 (--steps): a "
                "run that differs does so early."
            )
        if self.samples is not None and self.samples < 2:
            raise ConfigError(f"samples={self.samples} are too few. Set 2 batches or more.")
        if not 0 < self.minutes < math.inf:
            raise ConfigError(f"minutes={self.minutes:g} is not a time. Set 2 or more (--minutes).")
        names = [import_check(name).NAME for name in CHECKS]
        if self.laws is not None and not self.laws:
            raise ConfigError(f"laws is empty, so nothing is proved. Known: {', '.join(names)}.")
        for name in (*self.ignore, *(self.laws or ())):
            if name not in names:
                raise ConfigError(f"There is no law {name!r}. {suggest_names(name, names)}")


def import_check(name: str) -> "Check":
    """Return the module of a check."""
    return import_module(f"surestep.laws.checks.{name}")  # type: ignore[return-value]


class Check:
    """What the module of a check has.

    Attributes:
        LAW: "law 2", or "check".
        NAME: such as "resuming".
        check: trains variants of the run, and compares.
    """

    LAW: str
    NAME: str
    check: Callable[[Runner], Result]


def prove_laws(
    make_task: Callable[[], Task],
    config: Config,
    *,
    callbacks: Sequence[Callback] = (),
    steps: int = 10,
    samples: int | None = None,
    minutes: float = 10.0,
    laws: Sequence[str] | None = None,
    ignore: Mapping[str, str] | None = None,
) -> Proof:
    """Train a task for a few steps, many times over, and compare: which laws of surestep hold?

    Each training is in a new process, and in a temporary folder. Call it before this process uses
    CUDA, and under `if __name__ == "__main__":`.

    Args:
        make_task: makes the task from scratch, in each process.
        config: the options of the real run.
        callbacks: of the real run.
        steps: that are compared in each run, 2 to 10.
        samples: of an epoch at most; None is four batches.
        minutes: that all of it may take.
        laws: the names of those to prove, such as ["resuming"]; None is all.
        ignore: why a law may fail, by its name.

    Returns:
        A row for each law. If Ctrl-C arrives, those that are known.

    Raises:
        ConfigError, TaskError: the program cannot be trained, or an argument is not valid.
    """
    options = ProofOptions(steps, samples, minutes, laws, dict(ignore or {}))
    options.check()
    _check_arguments(make_task, config, callbacks)
    program = Program(make_task, config, tuple(callbacks), steps, samples)
    started = time.monotonic()
    proof, rows = Proof(versions=read_versions()), list[Row]()
    with tempfile.TemporaryDirectory(prefix="surestep-prove-") as folder:
        try:
            end = started + 60 * minutes
            runner = _start_runner(program, Path(folder), end)
            epoch = runner.facts.steps_per_epoch * runner.facts.batch_size
            proof = replace(proof, steps=runner.program.steps, samples=epoch)
            rows.extend(_list_rows(runner, options))
        except KeyboardInterrupt:
            proof = replace(proof, stopped="Ctrl-C")
    return replace(proof, rows=rows, seconds=time.monotonic() - started)


def _start_runner(program: Program, folder: Path, end: float) -> Runner:
    """Train the program once.

    Raises:
        ConfigError: this failed, or took all of the time.
    """
    try:
        return Runner(program, folder, at_once=count_at_once(), end=end)
    except TimeIsOverError:
        raise ConfigError(
            "The first run was not done when the time was over. Set more minutes (--minutes), or "
            "fewer samples."
        ) from None
    except RunFailedError as error:
        raise ConfigError(f"The program does not train, so no law is proved. {error}") from None


def _check_arguments(make_task: object, config: object, callbacks: object) -> None:
    check_main_guard()
    if isinstance(make_task, Task) or not callable(make_task):
        raise TaskError(
            f"make_task is {describe_value(make_task)}. Pass a function that makes the task, since "
            "each run needs a new one: prove_laws(lambda: surestep.Task(...), config)."
        )
    check_config(config)
    check_callbacks(callbacks)
    check_cuda_is_unused("prove_laws")


def check_cuda_is_unused(function: str) -> None:
    """Check that this process can be forked.

    Raises:
        ConfigError: it has used CUDA.
    """
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise ConfigError(
            f"This process has used CUDA, and forks of it cannot. Call {function} first in a "
            "process, or run surestep prove RECIPE."
        )


def _list_rows(runner: Runner, options: ProofOptions) -> Iterator[Row]:
    """Yield the row of each law as soon as it is known."""
    ignored = options.ignore
    is_stable = True
    for name in CHECKS:
        module = import_check(name)
        if options.laws is not None and module.NAME not in options.laws:
            continue
        started = time.monotonic()
        result = _check(module, runner, is_stable=is_stable)
        row = make_row(module.LAW, module.NAME, result, time.monotonic() - started)
        if row.status == "fails" and module.NAME == "same again":
            is_stable = False
        if row.status == "fails" and module.NAME in ignored:
            text = f"{ignored[module.NAME]} ({row.text})"
            row = replace(row, status="ignored", text=text)
        yield row
    if options.laws is None:
        yield from _OWN


def _check(module: Check, runner: Runner, *, is_stable: bool) -> Result:
    if not is_stable:
        return leave_untested("The same run again is not the same, so runs cannot be compared.")
    return run_check(lambda: module.check(runner))


def run_check(check: Callable[[], Result]) -> Result:
    """Return what a check finds; a run that fails, or has no time left, is a result too."""
    try:
        return check()
    except TimeIsOverError:
        return leave_untested(_OVER)
    except RunFailedError as error:
        if error.kind == "ConfigError":  # an option of a variant does not fit the program
            return leave_untested(str(error))
        return Result("fails", str(error))


def make_row(law: str, name: str, result: Result, seconds: float) -> Row:
    """Return the row of what a check found, with the usual cause of what fails."""
    row = Row(law, name, result.status, result.text, seconds=seconds)
    if result.status != "fails":
        return row
    finding = result.finding
    kind = "" if finding is None else finding.difference.place.kind
    known: Explanation = explain_failure(name, kind)
    row = replace(row, cause=known.cause, mend=known.mend)
    if finding is None:
        return row
    place = finding.difference.place
    text = f"{result.text}. {finding.difference}"
    if finding.source:
        text += f" Computed by {finding.source}."
    return replace(
        row, text=text, step=place.step, kind=kind, value=place.name, source=finding.source
    )


def read_versions() -> dict[str, str]:
    """Return the versions that a proof depends on, by name."""
    return {"surestep": VERSION, "torch": torch.__version__, "python": platform.python_version()}
