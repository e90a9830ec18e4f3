"""Writing a run folder: who holds it, what it says, what it keeps."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from surestep.base.errors import CheckpointError, RunError
from surestep.engine.facts import Facts
from surestep.engine.log_point import LogPoint, Skip
from surestep.engine.parallel.world import ALONE, World
from surestep.engine.plan import Plan
from surestep.engine.schedule.rate import cycle_ends
from surestep.engine.state import State
from surestep.record.checkpoint.divided import checking
from surestep.record.checkpoint.good import Newest, PassedOver, newest_good, put_aside
from surestep.record.checkpoint.keep import Retention, delete, retain
from surestep.record.checkpoint.listing import list_checkpoints, step_of
from surestep.record.checkpoint.opened import Opened
from surestep.record.checkpoint.parts import is_shared
from surestep.record.checkpoint.saver import Outcome, Saver
from surestep.record.environment import environment
from surestep.record.events import EventWriter
from surestep.record.files import disk_hint, write_json
from surestep.record.filesystem import try_out
from surestep.record.hold import Hold
from surestep.record.incident import FOLDER as INCIDENTS
from surestep.record.leftovers import sweep
from surestep.record.none_saved import has_saved, none_saved
from surestep.record.run import Run
from surestep.record.skipped import write_skipped


class Recorder:
    """The one writer of a run folder, from `open` to `close`.

    Args:
        folder: of the run.
        made: nobody else knows of it yet.
        world: the ranks of the run, which write a checkpoint together where they share the state.

    Raises:
        RunError: somebody else holds it, or it cannot be written.
    """

    def __init__(self, folder: Path, *, made: bool = False, world: World = ALONE) -> None:
        self.world = world
        self._made = made or not folder.exists()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._hold = Hold(folder)
        except OSError as error:
            if self._made:
                with suppress(OSError):
                    folder.rmdir()
            is_file = isinstance(error, (FileExistsError, NotADirectoryError))
            hint = (
                "It is a file: choose a folder with --run (run= in Python)."
                if is_file
                else disk_hint(error)
            )
            raise RunError(f"{folder} cannot be a run folder: {error.strerror}. {hint}") from error
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.known = (folder / "config.json").exists()
        self._events: EventWriter | None = None
        self._status: dict[str, Any] = {}
        self._saver: Saver | None = None
        self._newest: Newest | None = None
        self.told: list[str] = []
        for each in (folder, folder / INCIDENTS):  # others may write predictions there
            sweep(each)
        sweep(self.checkpoints, alone=self._hold.locked)

    @property
    def held_by(self) -> str:
        """What the folder's lock says of this process."""
        return self._hold.said

    @property
    def run(self) -> Run:
        """The folder, to read from."""
        return Run(self.folder)

    def newest(self, accept: Callable[[Opened], object] | None = None) -> Opened | None:
        """Return the newest checkpoint that is good; None before the first was saved.

        It is looked for once, when the run is about to go on. Several ranks verify it together.

        Args:
            accept: as for `newest_good`; of the first call.

        Raises:
            CheckpointError: there are some, or were, and none is good.
        """
        if self._newest is None:
            found = newest_good(self.checkpoints, check=checking(self.world), accept=accept)
            if found.opened is None and has_saved(self.folder):
                raise CheckpointError(none_saved(self.folder))
            self._newest = found
        return self._newest.opened

    @property
    def passed_over(self) -> tuple[PassedOver, ...]:
        """The damaged checkpoints that are newer than the one the run goes on from."""
        return () if self._newest is None else self._newest.passed_over

    def start(
        self,
        config: dict[str, Any],
        plan: Plan,
        facts: Facts,
        cwd: Path,
        *,
        events: Iterable[tuple[str, dict[str, Any]]] = (),
    ) -> None:
        """Write what the run was asked to be, what was decided, and what it runs on.

        `events` are written before the config that they explain.
        """
        self._try_out()
        decisions = [each._asdict() for each in plan.decisions]
        write_json(self.folder / "plan.json", decisions)
        if plan.parallel_deepspeed:
            write_json(self.folder / "ds_config.json", dict(plan.parallel_deepspeed))
        write_json(self.folder / "environment.json", environment(facts, cwd))
        judged = [plan.validation_metric, plan.validation_mode]
        self._status = {"judged_by": judged if plan.validation_metric else None}
        self.status("running")
        try:
            self._events = EventWriter(self.folder / "events.jsonl")
        except OSError as error:
            raise RunError(
                f"{self.folder} cannot be written: {error.strerror}. {disk_hint(error)}"
            ) from error
        for kind, fields in events:
            self.event(kind, **fields)
        self._put_aside()
        write_json(self.folder / "config.json", config)

    def _try_out(self) -> None:
        """Try what a run relies on in the file system, and keep what there is to tell of it."""
        try:
            self.told += try_out(self.folder, locked=self._hold.locked)
        except OSError as error:
            raise RunError(
                f"{self.folder} cannot be written: {error.strerror}. {disk_hint(error)}"
            ) from error

    def _put_aside(self) -> None:
        """Rename the damaged checkpoints, and tell what the run goes on from instead."""
        if self._newest is None or self._newest.opened is None:
            return
        for path, reason in self.passed_over:
            try:
                aside = put_aside(path)
            except OSError as error:
                raise RunError(
                    f"{path} could not be put aside: {error.strerror}. {reason} Move it away."
                ) from error
            self.event(
                "fallback",
                step=self._newest.opened.manifest.step,
                damaged=f"checkpoints/{aside.name}",
                reason=reason,
            )

    def status(self, status: str, **more: Any) -> None:
        """Write how the run stands: running, stopped, failed or finished."""
        write_json(self.folder / "status.json", {"status": status, **self._status, **more})

    def event(self, kind: str, **fields: Any) -> None:
        """Append an event."""
        if self._events is not None:
            self._events.write(kind, **fields)

    def notice(self) -> str | None:
        """Return what there is to tell of the folder itself."""
        return None if self._events is None else self._events.notice()

    def steps(self, point: LogPoint) -> None:
        """Append what the host read at a log point."""
        self.event(
            "steps",
            first=point.first_step,
            epoch=point.epoch,
            loss=point.loss,
            grad_norm=point.grad_norm,
            lr=point.lr,
            **({"logged": point.logged} if point.logged else {}),
            items=point.items,
            samples=point.samples,
            seconds=round(point.seconds, 4),
            waited_s=round(point.waited_s, 4),
        )

    def skipped(self, skip: Skip, samples: list[int] | None) -> None:
        """Append a step that moved nothing, with the indices of its samples where they have any.

        `alone` says that those are the samples that did it, and not all of the step's.
        """
        fields = {**skip._asdict(), "samples": samples, "alone": skip.guilty is not None}
        fields.pop("guilty")
        self.event("skipped", **fields)

    def write_skipped(self) -> None:
        """Write all that was skipped as skipped.json, which `--skip-samples` reads."""
        write_skipped(self.folder / "skipped.json", self.run.skipped)

    def write(self, name: str, content: dict[str, Any]) -> Path:
        """Write a JSON file of this name into the folder; return its path."""
        path = self.folder / name
        write_json(path, content)
        return path

    def save(self, state: State, plan: Plan) -> None:
        """Begin a checkpoint, and let go of those that need not stay when it is written."""
        if self._saver is None:
            self._saver = Saver(
                self.checkpoints,
                partial(retain, self.checkpoints, retention_of(plan), {}),
                background=plan.checkpoint_async_save,
                world=self.world if is_shared(state) else ALONE,
            )
        ends = cycle_ends(plan.schedule)
        taken = state.place.steps_taken
        self._saver.save(state, cycle=ends.index(taken) + 1 if taken in ends else None)

    def saved(self, *, wait: bool = False) -> list[Outcome]:
        """Return what came of the saves that are done, each once, and write it down.

        Args:
            wait: for the one that is being written.
        """
        if self._saver is None:
            return []
        if wait:
            self._saver.wait()
        outcomes = self._saver.outcomes()
        for each in outcomes:
            if each.path is not None:
                self.event(
                    "checkpoint",
                    step=each.step,
                    path=f"checkpoints/{each.path.name}",
                    seconds=round(each.seconds, 4),
                    waited_s=round(each.waited_s, 4),
                )
        return outcomes

    def drop_from(self, step: int) -> None:
        """Delete the checkpoints from a step on, which the run went back from."""
        found = list_checkpoints(self.checkpoints)
        delete(path for path in found if step_of(path) >= step)

    def close(self) -> None:
        """Let the folder go, when nothing is being written into it any more."""
        self.saved(wait=True)
        try:
            if self._events is not None:
                self._events.close()
        finally:
            self._events = None
            self._hold.release()

    def discard(self) -> None:
        """Let the folder go; where no run has started in it, take away what was put there."""
        self.close()
        if self.known or (self.folder / "config.json").exists():
            return
        for name in ("lock", "plan.json", "environment.json", "status.json", "events.jsonl"):
            (self.folder / name).unlink(missing_ok=True)
        if self._made:
            with suppress(OSError):  # somebody has put something into it meanwhile
                self.folder.rmdir()


def retention_of(plan: Plan) -> Retention:
    """Return which checkpoints stay, as the Plan says it."""
    every = plan.checkpoint_keep_every
    return Retention(
        keep_last=plan.checkpoint_keep_last,
        keep_best=plan.checkpoint_keep_best,
        metric=plan.validation_metric,
        mode=plan.validation_mode,
        keep_every=None if every is None else every.steps(plan.steps_per_epoch),
        cycles=bool(cycle_ends(plan.schedule)),
        goes_back=plan.on_spike == "rollback",
    )
