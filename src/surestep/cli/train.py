"""`surestep train RECIPE`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from surestep.base.errors import (
    ConfigError,
    NoTargetsError,
    OutOfMemoryError,
    Preempted,
    RunError,
    SurestepError,
)
from surestep.base.exit_codes import FAILED
from surestep.base.locations import COMMAND_LINE
from surestep.base.text import format_duration, print_escaped, print_json
from surestep.cli import output as show
from surestep.cli import prove
from surestep.cli.launch import launch, original_argv
from surestep.cli.notify import NotifiedCommand, choose_command
from surestep.cli.options import CommandOptions, read_command_line
from surestep.cli.parse import split_names
from surestep.cli.run_pattern import fill_in
from surestep.cli.stop import handle_late_signals, print_stop
from surestep.doctor.finding import fails
from surestep.engine.distributed.launcher_env import BY_NPROC, LaunchInfo, read_launched
from surestep.engine.distributed.stop_signals import check_stop
from surestep.engine.step.gc import import_without_collecting
from surestep.record.io import dumps

if TYPE_CHECKING:  # torch is imported once the command line is checked
    from surestep.doctor.curves.state import CurveState
    from surestep.engine.task.task import Task
    from surestep.engine.value import Value
    from surestep.laws.proof import Proof
    from surestep.recipes.load import Recipe, RecipeCall
    from surestep.record.run import Run, Which
    from surestep.trainer.dry_run import DryRunStep, OverfitResult


QUIET = ("-q", "--quiet")
_SAMPLES = 16  # report.samples with --report: a row or two of the page, and less than 300 KB


@dataclass(frozen=True)
class Options(CommandOptions):
    """Train the model of a recipe.

    Attributes:
        run: Run folder; the default is runs/RECIPE-TIME. Under torchrun: --run-folder. Or a
            pattern (runs/{optim.lr}), or a mirror (s3://bucket/run).
        resume: auto resumes the run in the folder if there is one. never: it is an error if there
            is one. must: it is an error if there is none.
        allow: What may differ from the run on resume: optim.lr,epochs,data.
        from_: Start a new run from a checkpoint of one: RUN@200, RUN@best, RUN@last.
        dry_run: Only try one step, one evaluation, one save and one load.
        overfit: Train on the same N samples until the loss is near zero, as a test.
        nproc: Number of training processes to start on this machine.
        report: Write a page of the run when it ends.
        animate: Animate the decision regions: .webp or .gif.
        json: Print the results as JSON.
        quiet: Show no progress; the short form is -q.
        prove: Prove the laws first; train only if none fails.
        ignore: With --prove, a law that may fail.
        notify: Shell command to run at the end; none: ignore that of your settings.
    """

    run: Annotated[str | None, tyro.conf.arg(metavar="FOLDER")] = None
    resume: Literal["auto", "never", "must"] = "auto"
    allow: Annotated[str | None, tyro.conf.arg(metavar="NAMES")] = None
    from_: Annotated[str | None, tyro.conf.arg(name="from", metavar="RUN@STEP")] = None
    dry_run: bool = False
    overfit: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    nproc: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    report: bool = False
    animate: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    json: bool = False
    quiet: bool = False
    prove: bool = False
    ignore: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=REASON")] = ()
    notify: Annotated[str | None, tyro.conf.arg(metavar="COMMAND")] = None

    def check(self) -> None:
        """Check the values, and that they can be combined."""
        if self.dry_run and self.overfit is not None:
            raise ConfigError("--dry-run and --overfit cannot be combined. Pass one of them.")
        if self.run == "":
            raise ConfigError("--run has no folder. Pass one, or leave it out.")
        given = (self.run, self.allow, self.from_, self.notify, self.animate)
        is_of_a_run = any(value is not None for value in given) or self.report
        if self.is_trial and (is_of_a_run or self.resume != "auto"):
            raise ConfigError(
                "--dry-run and --overfit write no run folder: leave out --run, --resume, --allow, "
                "--from, --notify, --report and --animate."
            )
        if self.prove and (self.is_trial or self.nproc is not None):
            raise ConfigError(
                "--prove cannot be combined with --dry-run, --overfit and --nproc. Run surestep "
                "prove RECIPE first."
            )
        if self.ignore and not self.prove:
            raise ConfigError("--ignore is for --prove: pass both, or leave it out.")
        if self.overfit is not None and self.overfit < 1:
            raise ConfigError(
                f"--overfit {self.overfit} is not a number of samples. Pass one, such as "
                "--overfit 32."
            )

    @property
    def is_trial(self) -> bool:
        """Whether the command only tries something, and there is no run."""
        return self.dry_run or self.overfit is not None


def run(words: list[str]) -> int:
    """Train; print the table of results, the best checkpoint, and what to type next."""
    call, own = read_command_line("train", spell_out_quiet(words), Options)
    call = make_quiet(call) if own.quiet else call
    call = collect_samples(call) if own.report else call
    if own.animate is not None:
        check_animated(call.recipe, own.animate)
    command = "" if own.is_trial else choose_command(own.notify)
    if own.nproc is not None:
        return launch(own.nproc, ["train", *words])
    notified = NotifiedCommand("train", command)
    return notified.run(partial(_run, call, own, words, notified))


def spell_out_quiet(words: list[str]) -> list[str]:
    """Write -q as --quiet, at the end, so that it may come before the recipe."""
    rest = [word for word in words if word not in QUIET]
    return [*rest, "--quiet"] if len(rest) < len(words) else words


def make_quiet(call: RecipeCall) -> RecipeCall:
    """Return the recipe with --logging.progress quiet.

    Raises:
        ConfigError: another progress was typed.
    """
    option, place = "logging.progress", call.set_options.get("logging.progress")
    typed = call.config.set_options().get(option)
    if place == COMMAND_LINE and typed != "quiet":
        raise ConfigError(f"--quiet and --logging.progress {typed} exclude each other. Pass one.")
    config = call.config.replace_options({option: "quiet"}, {option: "--quiet"})
    return replace(call, config=config, set_options={**call.set_options, option: "--quiet"})


def collect_samples(call: RecipeCall) -> RecipeCall:
    """Return the recipe with predictions for its page, unless report.samples is set."""
    option = "report.samples"
    if option in call.config.set_options():
        return call
    config = call.config.replace_options({option: _SAMPLES}, {option: "--report"})
    return replace(call, config=config, set_options={**call.set_options, option: "--report"})


def check_animated(recipe: Recipe, path: str) -> None:
    """Check before the training that there will be decision regions, and where to write them.

    Raises:
        ConfigError: the recipe records none, or the file cannot be an animation.
    """
    from surestep.reports.animate import check_animation
    from surestep.trainer.decision_regions import DecisionRegions

    check_animation(Path(path))
    if not any(isinstance(callback, DecisionRegions) for callback in recipe.callbacks):
        raise ConfigError(
            f"--animate {path}: the recipe {recipe.name} records no decision regions to animate. "
            "If it classifies by two inputs, write callbacks = [surestep.DecisionRegions()] in it."
        )


def _run(call: RecipeCall, own: Options, words: list[str], notified: NotifiedCommand) -> int:
    # With --json, stdout has only the results; callbacks of a recipe may print.
    with redirect_stdout(sys.stderr) if own.json else nullcontext():
        print_results = _execute(call, own, words, notified)
    with handle_late_signals():
        return print_results()


def _execute(
    call: RecipeCall, own: Options, words: list[str], notified: NotifiedCommand
) -> Callable[[], int]:
    """Run the command; return a function that prints the results."""
    if own.dry_run:
        from surestep.trainer.dry_run import dry_run

        steps = dry_run(call.task(), call.config, callbacks=call.recipe.callbacks)
        return lambda: _print_dry_run(steps, words, as_json=own.json)
    if own.overfit is not None:
        from surestep.trainer.dry_run import overfit

        result = overfit(call.task(), call.config, own.overfit)
        return lambda: _print_overfit(result, as_json=own.json)
    opened: list[Run] = []
    folder = None if own.run is None else fill_in(own.run, call)
    notified.folder = folder or ""
    proof = _prove_first(call, own, folder) if own.prove else None
    if proof is not None and proof.failed:
        names = ", ".join(row.name for row in proof.failed)
        print_escaped(f"Nothing is trained, since laws fail: {names}.", file=sys.stderr)
        return lambda: FAILED

    def on_open(run: Run) -> None:
        opened.append(run)
        if proof is not None:
            prove.write_proof(run, proof, call)
        notified.follow(run)

    command = _command(words if own.run else [*words, "--run", "{run}"])
    try:
        trained = train(
            call,
            command,
            on_open=on_open,
            run=folder,
            resume=own.resume,
            allow=split_names(own.allow),
            from_=own.from_,
        )
    except BaseException as error:
        if opened:
            _show_run(opened[0], own)
        if isinstance(error, OutOfMemoryError) and opened and read_launched().rank == 0:
            line = _name_run(command, opened[0])
            error.add_note(f"To resume, add what would help to the same command: {line}")
        raise

    def print_results() -> int:
        code = report(*trained, fail_on=call.config.doctor.fail_on, as_json=own.json)
        with redirect_stdout(sys.stderr) if own.json else nullcontext():
            _show_run(opened[0], own)
        return code

    return print_results


def _prove_first(call: RecipeCall, own: Options, folder: str | None) -> Proof:
    """Prove the laws, and print them.

    Raises:
        ConfigError: the run exists already, or is one of several processes.
        KeyboardInterrupt: Ctrl-C arrived.
    """
    if read_launched().size > 1:
        raise ConfigError("--prove is for one process. Run surestep prove RECIPE first.")
    if folder is not None and (Path(folder) / "config.json").exists():
        raise ConfigError(
            f"--prove is for a new run, and {folder} has one. Leave it out to resume the run, or "
            "pass another --run."
        )
    proof = prove.prove_recipe(call, prove.Options(ignore=own.ignore))
    prove.print_proof(proof)
    if proof.stopped:
        raise KeyboardInterrupt
    return proof


def train(
    call: RecipeCall,
    resume_command: str,
    *,
    on_open: Callable[[Run], object] = lambda _: None,
    **options: Any,
) -> tuple[Run, dict[str, Value] | None, list[str]]:
    """Train; return the run, the metrics of a test split, and the command to type next.

    Args:
        call: the recipe, with its options.
        resume_command: is printed after Ctrl-C; "{run}" in it is the run folder.
        on_open: is called with the run when its folder is there.
        options: of `prepare`.
    """
    with import_without_collecting():
        from surestep.trainer.fit import fit
        from surestep.trainer.prepare import prepare
        from surestep.trainer.signals import has_finished

    task, recipe = call.task(), call.recipe
    check_stop()
    options |= {"callbacks": recipe.callbacks, "trackers": recipe.trackers, "origin": call.origin}
    with prepare(task, call.config, **options) as session:
        on_open(session.run)
        try:
            done = fit(session)
        except (KeyboardInterrupt, Preempted) as stopped:
            if isinstance(stopped, Preempted):
                print_stop(stopped)
            if not has_finished(session):
                print_resume_command(_name_run(resume_command, session.run), read_launched())
            raise
        is_nan = done.find_checkpoint("best") is None  # in each evaluation
        which: Which = "last" if is_nan else "best"
        test = None
        with suppress(NoTargetsError):  # such data is predicted
            if task.test is not None:
                test = session.evaluate_checkpoint("test", which).with_tables()
    return done, test, _next_command(done, task, which, predicts=test is None)


def _show_run(run: Run, own: Options) -> None:
    """Write the page and the animation of a run, if they are wanted, on rank 0."""
    if read_launched().rank != 0:
        return
    if own.report:
        from surestep.reports.write import report as write_report

        _print_written("report", partial(write_report, run))
    if own.animate is not None:
        from surestep.reports.animate import write_animation

        _print_written("animation", partial(write_animation, run, Path(own.animate)))


def _print_written(what: str, write: Callable[[], Path]) -> None:
    """Print the path of what a function writes, or why it is not written."""
    try:
        print_escaped(f"{what.capitalize()}: {write()}")
    except SurestepError as error:
        print_escaped(f"The {what} is not written: {error}", file=sys.stderr)


def _next_command(done: Run, task: Task, which: Which, *, predicts: bool) -> list[str]:
    """Return the command that evaluates a run, or predicts its test data; [] without such data."""
    if task.test is None and not task.val_sets():
        return []
    command = ["evaluate", str(done.path)]
    if task.test is not None:
        command = ["predict", str(done.path)] if predicts else [*command, "--split", "test"]
    is_saved = done.find_checkpoint("last") is not None
    weights = ["--which", "last"] if which == "last" and is_saved else []
    return ["surestep", *command, *weights]


def print_resume_command(command: str, launched: LaunchInfo) -> None:
    """Print, on rank 0, the command that resumes the run, and the launcher that it needs."""
    is_typed = launched.size == 1 or launched.launcher == BY_NPROC
    by = "" if is_typed else f" (with {launched.launcher}, as before)"
    if launched.rank == 0:
        print_escaped(f"Resume with: {command}{by}", file=sys.stderr)


def _name_run(command: str, run: Run) -> str:
    """Return a command with the folder of the run for "{run}"."""
    return command.replace(shlex.quote("{run}"), shlex.quote(str(run.path)))


def _command(words: list[str]) -> str:
    return shlex.join(["surestep", "train", *original_argv(words)])


def report(
    done: Run,
    test: dict[str, Value] | None,
    next_command: list[str],
    *,
    fail_on: object,
    as_json: bool,
) -> int:
    """Print the table of results, the best checkpoint, and what to type next.

    Returns 1 if there is a finding of the severity `fail_on`, the option of the Config.
    """
    status, best = done.status, done.find_checkpoint("best")
    metrics = {} if best is None else best.metrics.with_tables()
    code = int(fails((found["severity"] for found in status.get("findings", [])), fail_on))
    if as_json:
        found: dict[str, Any] = {"run": str(done.path), "status": status, "test": test}
        if best is not None:
            found["best"] = {"step": best.step, "metrics": metrics, "path": str(best.path)}
        print_json(dumps(found))
        return code
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
    if titles := [state.title for state in _name_curve(done) if state.name != "unclear"]:
        rows.append(("loss curve", ", ".join(titles)))
    named = "last" if best is None else "best"
    if (shown := best or done.find_checkpoint("last")) is not None:
        measured = show.metric_rows({**metrics, **(test or {})})
        rows += [(f"{name} ({named}, step {shown.step})", value) for name, value in measured]
    show.print_table(str(done.path), (), rows)
    # Paths are printed outside the table, whose cells a narrow terminal would break.
    if best is not None:
        print_escaped(f"Best checkpoint: {best.path}")
    if next_command:
        print_escaped(f"Next: {shlex.join(next_command)}")
    return code


def _name_curve(done: Run) -> tuple[CurveState, ...]:
    """Return the states of the loss curve; none if the events cannot be read."""
    from surestep.doctor.curves.name import name_curve
    from surestep.trainer.review.read_curve import read_curve

    try:
        curve = read_curve(done)
    except RunError:  # a finding has the reason
        return ()
    return () if curve is None else name_curve(curve)


def _steps(status: dict[str, Any]) -> str:
    since, speed = status.get("since_step"), status.get("items_per_s")
    start = f", since step {since}" if since else ""
    rate = f", {speed:,.0f} items/s" if speed is not None else ""
    return f"{status['step']}{start} in {format_duration(status['seconds'])}{rate}"


def _skipped(status: dict[str, Any]) -> str:
    reasons = {
        **{"overflow": "fp16 overflow", "nonfinite": "not finite", "no_items": "no items"},
        "after_spike": "skipped after a loss spike",
    }
    counts = [f"{status[key]} {text}" for key, text in reasons.items() if status[key]]
    return ", ".join(counts) or "0"


def _print_dry_run(steps: list[DryRunStep], words: list[str], *, as_json: bool) -> int:
    if as_json:
        print_json(dumps([step._asdict() for step in steps]))
        return 0
    rows = [(step.what, step.result, format_duration(step.seconds)) for step in steps]
    show.print_table("Dry run", ("step", "result", "time"), rows)
    print_escaped(f"Next: {_command([word for word in words if word != '--dry-run'])}")
    return 0


def _print_overfit(result: OverfitResult, *, as_json: bool) -> int:
    if as_json:
        print_json(dumps(result._asdict()))
        return 0 if result.has_converged else 1
    print_escaped(
        f"{result.samples} samples: loss {show.format_number(result.first)} -> "
        f"{show.format_number(result.last)} "
        f"in {result.steps} steps."
    )
    if result.has_converged:
        print_escaped("The model overfits them: model, loss and optimizer fit together.")
        return 0
    print_escaped(
        "The loss did not come near zero. Check the learning rate (--optim.lr), label smoothing, "
        "targets that contradict each other, and whether gradients reach every layer.",
        file=sys.stderr,
    )
    return 1
