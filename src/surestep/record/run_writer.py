"""Writing a run folder: who holds it, what it says, what it keeps."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from surestep.base.errors import CheckpointError, RunError
from surestep.engine.distributed.communicator import ALONE, Communicator
from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import SystemInfo
from surestep.engine.schedule.lr import cycle_ends
from surestep.engine.state.state import State
from surestep.engine.step.log_point import LogPoint, SkippedStep
from surestep.record.checkpoint.async_saver import AsyncSaver, SaveResult
from surestep.record.checkpoint.discovery import (
    CorruptCheckpoint,
    NewestValid,
    find_newest_valid,
    has_published,
    list_checkpoints,
    no_checkpoint_message,
    quarantine,
    step_of,
)
from surestep.record.checkpoint.reader import CheckpointReader
from surestep.record.checkpoint.retention import RetentionPolicy, delete, prune
from surestep.record.checkpoint.staging import is_shared
from surestep.record.checkpoint.verify import make_verifier
from surestep.record.environment import collect_environment
from surestep.record.events import EventWriter
from surestep.record.filesystem_check import probe_filesystem
from surestep.record.incident import FOLDER as INCIDENTS
from surestep.record.io import os_error_hint, write_json
from surestep.record.lock import RunLock
from surestep.record.run import Run
from surestep.record.skipped_samples import write_skipped
from surestep.record.temp_files import remove_stale


class RunWriter:
    """The one writer of a run folder, from `open` to `close`.

    Args:
        folder: of the run.
        made: nobody else knows of it yet.
        world: the ranks of the run, which write a checkpoint together where they share the state.

    Raises:
        RunError: somebody else holds it, or it cannot be written.
    """

    def __init__(self, folder: Path, *, made: bool = False, world: Communicator = ALONE) -> None:
        self.world = world
        self._made = made or not folder.exists()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._hold = RunLock(folder)
        except OSError as error:
            if self._made:
                with suppress(OSError):
                    folder.rmdir()
            is_file = isinstance(error, (FileExistsError, NotADirectoryError))
            hint = (
                "It is a file: choose a folder with --run (run= in Python)."
                if is_file
                else os_error_hint(error)
            )
            raise RunError(f"{folder} cannot be a run folder: {error.strerror}. {hint}") from error
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.published = (folder / "config.json").exists()
        self._events: EventWriter | None = None
        self._status: dict[str, Any] = {}
        self._saver: AsyncSaver | None = None
        self._newest: NewestValid | None = None
        self.told: list[str] = []
        for each in (folder, folder / INCIDENTS):  # others may write predictions there
            remove_stale(each)
        remove_stale(self.checkpoints, alone=self._hold.locked)

    @property
    def lock_text(self) -> str:
        """What the folder's lock says of this process."""
        return self._hold.text

    @property
    def run(self) -> Run:
        """The folder, to read from."""
        return Run(self.folder)

    def newest_valid(
        self, accept: Callable[[CheckpointReader], object] | None = None
    ) -> CheckpointReader | None:
        """Return the newest checkpoint that is good; None before the first was saved.

        It is looked for once, when the run is about to go on. Several ranks verify it together.

        Args:
            accept: as for `newest_good`; of the first call.

        Raises:
            CheckpointError: there are some, or were, and none is good.
        """
        if self._newest is None:
            found = find_newest_valid(
                self.checkpoints, check=make_verifier(self.world), accept=accept
            )
            if found.opened is None and has_published(self.folder):
                raise CheckpointError(no_checkpoint_message(self.folder))
            self._newest = found
        return self._newest.opened

    @property
    def passed_over(self) -> tuple[CorruptCheckpoint, ...]:
        """The damaged checkpoints that are newer than the one the run goes on from."""
        return () if self._newest is None else self._newest.passed_over

    def start(
        self,
        config: dict[str, Any],
        plan: Plan,
        facts: SystemInfo,
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
        write_json(self.folder / "environment.json", collect_environment(facts, cwd))
        judged = [plan.validation_metric, plan.validation_mode]
        self._status = {"monitor": judged if plan.validation_metric else None}
        self.status("running")
        try:
            self._events = EventWriter(self.folder / "events.jsonl")
        except OSError as error:
            raise RunError(
                f"{self.folder} cannot be written: {error.strerror}. {os_error_hint(error)}"
            ) from error
        for kind, fields in events:
            self.event(kind, **fields)
        self._put_aside()
        write_json(self.folder / "config.json", config)

    def _try_out(self) -> None:
        """Try what a run relies on in the file system, and keep what there is to tell of it."""
        try:
            self.told += probe_filesystem(self.folder, locked=self._hold.locked)
        except OSError as error:
            raise RunError(
                f"{self.folder} cannot be written: {error.strerror}. {os_error_hint(error)}"
            ) from error

    def _put_aside(self) -> None:
        """Rename the damaged checkpoints, and tell what the run goes on from instead."""
        if self._newest is None or self._newest.opened is None:
            return
        for path, reason in self.passed_over:
            try:
                aside = quarantine(path)
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
            data_wait_s=round(point.data_wait_s, 4),
        )

    def skipped(self, skip: SkippedStep, samples: list[int] | None) -> None:
        """Append a step that moved nothing, with the indices of its samples where they have any.

        `alone` says that those are the samples that did it, and not all of the step's.
        """
        fields = {**skip._asdict(), "samples": samples, "alone": skip.guilty is not None}
        fields.pop("guilty")
        self.event("skipped", **fields)

    def write_skipped(self) -> None:
        """Write all that was skipped as skipped.json, which `--exclude-samples` reads."""
        write_skipped(self.folder / "skipped.json", self.run.skipped)

    def write(self, name: str, content: dict[str, Any]) -> Path:
        """Write a JSON file of this name into the folder; return its path."""
        path = self.folder / name
        write_json(path, content)
        return path

    def save(self, state: State, plan: Plan) -> None:
        """Begin a checkpoint, and let go of those that need not stay when it is written."""
        if self._saver is None:
            self._saver = AsyncSaver(
                self.checkpoints,
                partial(prune, self.checkpoints, retention_of(plan), {}),
                background=plan.checkpoint_async_save,
                world=self.world if is_shared(state) else ALONE,
            )
        ends = cycle_ends(plan.schedule)
        taken = state.progress.steps_taken
        self._saver.save(state, cycle=ends.index(taken) + 1 if taken in ends else None)

    def collect_saves(self, *, wait: bool = False) -> list[SaveResult]:
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
                    blocked_s=round(each.blocked_s, 4),
                )
        return outcomes

    def delete_from_step(self, step: int) -> None:
        """Delete the checkpoints from a step on, which the run went back from."""
        found = list_checkpoints(self.checkpoints)
        delete(path for path in found if step_of(path) >= step)

    def close(self) -> None:
        """Let the folder go, when nothing is being written into it any more."""
        self.collect_saves(wait=True)
        try:
            if self._events is not None:
                self._events.close()
        finally:
            self._events = None
            self._hold.release()

    def discard(self) -> None:
        """Let the folder go; where no run has started in it, take away what was put there."""
        self.close()
        if self.published or (self.folder / "config.json").exists():
            return
        for name in ("lock", "plan.json", "environment.json", "status.json", "events.jsonl"):
            (self.folder / name).unlink(missing_ok=True)
        if self._made:
            with suppress(OSError):  # somebody has put something into it meanwhile
                self.folder.rmdir()


def retention_of(plan: Plan) -> RetentionPolicy:
    """Return which checkpoints stay, as the Plan says it."""
    every = plan.checkpoint_keep_every
    return RetentionPolicy(
        keep_last=plan.checkpoint_keep_last,
        keep_best=plan.checkpoint_keep_best,
        metric=plan.validation_metric,
        mode=plan.validation_mode,
        keep_every=None if every is None else every.steps(plan.steps_per_epoch),
        cycles=bool(cycle_ends(plan.schedule)),
        goes_back=plan.on_spike == "rollback",
    )


class RankRecorder(RunWriter):
    """Stands where a Recorder stands, and writes nothing but parts of checkpoints."""

    def __init__(self, folder: Path, world: Communicator = ALONE) -> None:
        self.folder = folder
        self.world = world
        self._saver = None
        self.checkpoints = folder / "checkpoints"
        self.published = False
        self._newest = None
        self.told = []

    def status(self, status: str, **more: Any) -> None:
        """Write nothing."""

    def event(self, kind: str, **fields: Any) -> None:
        """Write nothing."""

    def steps(self, point: LogPoint) -> None:
        """Write nothing."""

    def skipped(self, skip: SkippedStep, samples: list[int] | None) -> None:
        """Write nothing."""

    def write_skipped(self) -> None:
        """Write nothing."""

    def write(self, name: str, content: dict[str, Any]) -> Path:
        """Write nothing; return where the first rank writes it."""
        return self.folder / name

    def notice(self) -> str | None:
        """Have nothing to tell."""
        return None

    def save(self, state: State, plan: Plan) -> None:
        """Write this rank's part of a checkpoint, where the ranks share the state."""
        if not is_shared(state):
            return
        if self._saver is None:
            self._saver = AsyncSaver(
                self.checkpoints,
                lambda _: None,
                background=plan.checkpoint_async_save,
                world=self.world,
            )
        self._saver.save(state)

    def collect_saves(self, *, wait: bool = False) -> list[SaveResult]:
        """Return nothing: what came of a save is the first rank's to say."""
        if self._saver is not None:
            if wait:
                self._saver.wait()
            self._saver.outcomes()
        return []

    def delete_from_step(self, step: int) -> None:
        """Delete nothing."""

    def close(self) -> None:
        """Wait for what this rank writes."""
        self.collect_saves(wait=True)

    def discard(self) -> None:
        """Wait for what this rank writes."""
        self.close()
