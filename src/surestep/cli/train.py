"""`surestep train RECIPE`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from surestep.base.errors import ConfigError, Preempted
from surestep.base.text import print_escaped, print_json
from surestep.cli import output as show
from surestep.cli.launch import launch, original_argv, parse_nproc
from surestep.cli.options import ParsedCommand, read_command_line
from surestep.config.config import Config
from surestep.engine.distributed.launcher_env import BY_NPROC, LaunchInfo, read_launched
from surestep.engine.step.gc import import_without_collecting
from surestep.record.io import dumps

if TYPE_CHECKING:  # torch is imported once the command line is checked
    from surestep.engine.task.task import Task
    from surestep.engine.value import Value
    from surestep.record.run import Run
    from surestep.trainer.dry_run import DryRunStep, OverfitResult


def _extra(
    kind: Any, default: Any, text: str, metavar: str | None = None, **more: Any
) -> tuple[Any, Any]:
    explained: Any = Annotated[
        kind, tyro.conf.arg(help=text, metavar=metavar, help_behavior_hint="", **more)
    ]
    return explained, default


EXTRAS: dict[str, Any] = {
    # torchrun reads --run, anywhere on the line, as an abbreviation of its own --run-path.
    "run": _extra(
        str | None,
        None,
        "Run folder; the default is runs/RECIPE-TIME. Under torchrun use --run-folder.",
        "FOLDER",
        aliases=("--run-folder",),
    ),
    "resume": _extra(
        Literal["auto", "never", "must"],
        "auto",
        "If the folder has a run: auto resumes it, never is an error. must: it is an error if not.",
    ),
    "allow": _extra(
        str | None, None, "What may differ from the run on resume: optim.lr,epochs,data.", "NAMES"
    ),
    "from_": _extra(
        str | None,
        None,
        "Start a new run from a checkpoint of another: RUN@200, RUN@best, RUN@last.",
        "RUN@STEP",
        name="from",
    ),
    "dry_run": _extra(bool, False, "Only try one step, one evaluation, one save and one load."),
    "overfit": _extra(
        int | None, None, "Train on the same N samples until the loss is near zero, as a test.", "N"
    ),
    "nproc": _extra(
        str | None, None, "Number of training processes to start on this machine.", "N"
    ),
    "json": _extra(bool, False, "Print the results as JSON."),
}


def run(words: list[str]) -> int:
    """Train; print the table of results, the best checkpoint, and what to type next."""
    asked = read_command_line("train", words, EXTRAS, check=check_extras)
    if asked.extras["nproc"] is not None:
        return launch(parse_nproc(asked.extras["nproc"]), ["train", *words])
    # Under --json nothing but the answer may stand on stdout; a recipe's callbacks print too.
    with redirect_stdout(sys.stderr) if asked.extras["json"] else nullcontext():
        answer = _act(asked, words)
    return answer()


def check_extras(extras: Mapping[str, Any]) -> None:
    """Check that the command's own options fit each other.

    Raises:
        ConfigError: they do not.
    """
    if extras["dry_run"] and extras["overfit"] is not None:
        raise ConfigError("--dry-run and --overfit are two rehearsals. Say one of them.")
    rehearsal = extras["dry_run"] or extras["overfit"] is not None
    if rehearsal and any(extras[name] != EXTRAS[name][1] for name in _OF_A_RUN):
        raise ConfigError(
            "--dry-run and --overfit keep no run: leave out --run, --resume, --allow and --from."
        )
    if extras["overfit"] is not None and extras["overfit"] < 1:
        raise ConfigError(
            f"--overfit {extras['overfit']} is not allowed: say how many samples, such as 32."
        )
    if extras["nproc"] is not None:
        parse_nproc(extras["nproc"])


def _act(asked: ParsedCommand, words: list[str]) -> Callable[[], int]:
    """Do what is asked; return what prints the answer."""
    if asked.extras["dry_run"]:
        from surestep.trainer.dry_run import dry_run

        acts = dry_run(asked.task(), asked.config, callbacks=asked.recipe.callbacks)
        return lambda: _dry_run(acts, words, as_json=asked.extras["json"])
    if asked.extras["overfit"] is not None:
        from surestep.trainer.dry_run import overfit

        result = overfit(asked.task(), asked.config, asked.extras["overfit"])
        return lambda: _overfit(result, as_json=asked.extras["json"])
    extras = asked.extras
    again = words if extras["run"] else [*words, "--run", "{run}"]
    done, test = train(
        asked.task(),
        asked.config,
        run=extras["run"],
        resume=extras["resume"],
        allow=split_names(extras["allow"]),
        from_=extras["from_"],
        callbacks=asked.recipe.callbacks,
        origin=asked.origin,
        again=_command(again),
    )
    return lambda: report(done, test, as_json=extras["json"])


_OF_A_RUN = ("run", "resume", "allow", "from_")


def split_names(text: str | None) -> tuple[str, ...]:
    """Read "NAME,NAME"."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def train(
    task: Task, config: Config, *, again: str, **how: Any
) -> tuple[Run, dict[str, Value] | None]:
    """Train; return the run, and the metrics of the test part where there is one.

    Args:
        task: what is trained.
        config: what is asked.
        again: the command that goes on after Ctrl-C; "{run}" in it is the run folder.
        how: what else `prepare()` takes.
    """
    with import_without_collecting():
        from surestep.trainer.fit import fit
        from surestep.trainer.prepare import prepare

    with prepare(task, config, **how) as session:
        try:
            done = fit(session)
        except (KeyboardInterrupt, Preempted):
            run = shlex.quote(str(session.run.path))
            print_resume_command(again.replace(shlex.quote("{run}"), run), read_launched())
            raise
        return done, None if task.test is None else session.evaluate_checkpoint("test", "best")


def print_resume_command(command: str, launched: LaunchInfo) -> None:
    """Print, once, the command that goes on, and what has to start it again."""
    typed = launched.size == 1 or launched.launcher == BY_NPROC
    by = "" if typed else f" (by {launched.launcher}, as before)"
    if launched.rank == 0:
        print_escaped(f"Go on with: {command}{by}", file=sys.stderr)


def _command(words: list[str]) -> str:
    return shlex.join(["surestep", "train", *original_argv(words)])


def report(done: Run, test: dict[str, Value] | None, *, as_json: bool) -> int:
    """Print the table of results, the best checkpoint, and what to type next."""
    status, best = done.status, done.best
    if as_json:
        found: dict[str, Any] = {"run": str(done.path), "status": status, "test": test}
        if best is not None:
            found["best"] = {"step": best.step, "metrics": best.metrics, "path": str(best.path)}
        print_json(dumps(found))
        return 0
    taken = status["steps_taken"]
    clipped = "not known: the norm was not clipped"
    if status["clipped"] is not None:
        clipped = f"{status['clipped']} of {taken} ({status['clipped'] / max(taken, 1):.0%})"
    rows = [
        ("ended", status["reason"]),
        ("steps", _steps(status)),
        ("clipped steps", clipped),
        ("skipped steps", _skipped(status)),
    ]
    if best is not None:
        measured = show.metric_rows({**best.metrics, **(test or {})})
        rows += [(f"{name} (best, step {best.step})", value) for name, value in measured]
    show.print_table(str(done.path), (), rows)
    # Paths stand outside the table: a narrow terminal would cut them, and they are to be copied.
    if best is not None:
        print_escaped(f"Best checkpoint: {best.path}")
    print_escaped(
        f"Next: surestep evaluate {shlex.quote(str(done.path))}{' --split test' if test else ''}"
    )
    return 0


def _steps(status: dict[str, Any]) -> str:
    since, speed = status.get("since_step"), status.get("items_per_s")
    part = f", since step {since}" if since else ""
    rate = f", {speed:,.0f} items/s" if speed is not None else ""
    return f"{status['step']}{part} in {show.format_duration(status['seconds'])}{rate}"


def _skipped(status: dict[str, Any]) -> str:
    reasons = {
        **{"overflow": "fp16 overflow", "nonfinite": "not finite", "no_items": "no items"},
        "after_spike": "left out after a loss spike",
    }
    found = [f"{status[key]} {text}" for key, text in reasons.items() if status[key]]
    return ", ".join(found) or "0"


def _dry_run(acts: list[DryRunStep], words: list[str], *, as_json: bool) -> int:
    if as_json:
        print_json(dumps([each._asdict() for each in acts]))
        return 0
    shown = [(each.what, each.result, show.format_duration(each.seconds)) for each in acts]
    show.print_table("Dry run", ("what", "result", "time"), shown)
    print_escaped(f"Next: {_command([word for word in words if word != '--dry-run'])}")
    return 0


def _overfit(result: OverfitResult, *, as_json: bool) -> int:
    if as_json:
        print_json(dumps(result._asdict()))
        return 0 if result.has_converged else 1
    print_escaped(
        f"{result.samples} samples: loss {show.format_number(result.first)} -> "
        f"{show.format_number(result.last)} "
        f"in {result.steps} steps."
    )
    if result.has_converged:
        print_escaped("The model can learn them by heart: model, loss and optimizer fit together.")
        return 0
    print_escaped(
        "It did not come near zero. Look at the learning rate (--optim.lr), at targets that "
        "contradict each other, at label smoothing, and whether the loss reaches every layer.",
        file=sys.stderr,
    )
    return 1
