"""`surestep train RECIPE`."""

import sys
from typing import Annotated, Any, Literal

import tyro

from surestep.base.errors import ConfigError
from surestep.cli import show
from surestep.cli.options import Asked, read_command_line
from surestep.record.files import dumps
from surestep.record.run import Run
from surestep.trainer.fit import fit
from surestep.trainer.prepare import prepare
from surestep.trainer.rehearse import dry_run, overfit


def _extra(kind: Any, default: Any, text: str, metavar: str | None = None) -> tuple[Any, Any]:
    explained: Any = Annotated[
        kind, tyro.conf.arg(help=text, metavar=metavar, help_behavior_hint="")
    ]
    return explained, default


EXTRAS: dict[str, Any] = {
    "run": _extra(str | None, None, "Run folder; runs/RECIPE-TIME if not said.", "FOLDER"),
    "resume": _extra(
        Literal["auto", "never", "must"], "auto", "Go on where the folder holds a run."
    ),
    "dry_run": _extra(bool, False, "One step, one evaluation, one save, one load, and no run."),
    "overfit": _extra(int | None, None, "The same N samples until the loss is near zero.", "N"),
    "json": _extra(bool, False, "Print the results as JSON."),
}


def run(words: list[str]) -> int:
    """Train; print the table of results, the best checkpoint, and what to type next."""
    asked = read_command_line("train", words, EXTRAS)
    if asked.extras["dry_run"]:
        return _dry_run(asked)
    if asked.extras["overfit"] is not None:
        return _overfit(asked, asked.extras["overfit"])
    task = asked.task()
    with prepare(
        task,
        asked.config,
        run=asked.extras["run"],
        resume=asked.extras["resume"],
        callbacks=asked.recipe.callbacks,
        origin=asked.origin,
    ) as session:
        done = fit(session)
        test = {} if task.test is None else session.measure("test", "best")
    _report(done, test, as_json=asked.extras["json"], has_test=task.test is not None)
    return 0


def _report(done: Run, test: dict[str, float], *, as_json: bool, has_test: bool) -> None:
    status, best, last = done.status, done.best, done.last
    if as_json:
        found = {"run": str(done.path), "status": status, "test": test}
        if best is not None:
            found["best"] = {"step": best.step, "metrics": best.metrics, "path": str(best.path)}
        print(dumps(found))
        return
    taken, seconds = status["steps_taken"], status["seconds"]
    share = status["clipped"] / max(taken, 1)
    speed = f", {status['items'] / seconds:,.0f} items/s" if seconds else ""
    rows = [
        ("run", done.path),
        ("ended", status["reason"]),
        ("steps", f"{status['step']} in {show.duration(seconds)}{speed}"),
        ("clipped steps", f"{status['clipped']} of {taken} ({share:.0%})"),
        ("skipped steps", _skipped(status)),
    ]
    if best is not None and last is not None:
        rows += [
            (f"{name} (best, step {best.step})", v) for name, v in show.metric_rows(best.metrics)
        ]
        rows += [(f"{name} (best, step {best.step})", v) for name, v in show.metric_rows(test)]
        rows.append(("best checkpoint", best.path))
    show.table(done.path.name, (), rows)
    part = " --part test" if has_test else ""
    print(f"\nNext: surestep evaluate {done.path}{part}")


def _skipped(status: dict[str, Any]) -> str:
    reasons = {"overflow": "fp16 overflow", "nonfinite": "not finite", "no_items": "no items"}
    found = [f"{status[key]} {text}" for key, text in reasons.items() if status[key]]
    return ", ".join(found) or "0"


def _dry_run(asked: Asked) -> int:
    rows = dry_run(asked.task(), asked.config, callbacks=asked.recipe.callbacks)
    if asked.extras["json"]:
        print(dumps([each._asdict() for each in rows]))
    else:
        shown = [(each.what, each.result, show.duration(each.seconds)) for each in rows]
        show.table("Dry run", ("what", "result", "time"), shown)
        print(f"\nNext: surestep train {asked.recipe.name}")
    return 0


def _overfit(asked: Asked, samples: int) -> int:
    if samples < 1:
        raise ConfigError(f"--overfit {samples} is not allowed: say how many samples, such as 32.")
    result = overfit(asked.task(), asked.config, samples)
    if asked.extras["json"]:
        print(dumps(result._asdict()))
        return 0 if result.reached else 1
    print(
        f"{result.samples} samples: loss {show.figure(result.first)} -> {show.figure(result.last)} "
        f"in {result.steps} steps."
    )
    if result.reached:
        print("The model can learn them by heart: model, loss and optimizer fit together.")
        return 0
    print(
        "It did not come near zero. Look at the learning rate (--optim.lr), at targets that "
        "contradict each other, at label smoothing, and whether the loss reaches every layer.",
        file=sys.stderr,
    )
    return 1
