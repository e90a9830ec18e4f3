"""Write a run folder: lock, config, plan, status, events and checkpoints."""

import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from surestep.base.errors import CheckpointError, OutOfMemoryError, Preempted, RunError
from surestep.base.files import remove_stale
from surestep.base.paths import FixedPath
from surestep.base.secrets import mask_secrets
from surestep.engine.distributed.communicator import ALONE, Communicator
from surestep.engine.distributed.stop_signals import CTRL_C
from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import SystemInfo
from surestep.engine.schedule.lr import cycle_ends
from surestep.engine.state.state import State
from surestep.engine.step.log_point import LogPoint, SkippedStep
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
from surestep.record.checkpoint.writer import AsyncSaver, SaveResult
from surestep.record.events import EventWriter, last_step, repair_events
from surestep.record.git import read_commit
from surestep.record.incident import FOLDER as INCIDENTS
from surestep.record.io import COPY_HINT, explain_write_errors, os_error_hint, write_json
from surestep.record.lock import RunLock, probe_filesystem
from surestep.record.run import Run
from surestep.record.skipped_samples import write_skipped

_PACKAGES = (
    "surestep",
    "torch",
    "numpy",
    "safetensors",
    "pydantic",
    "scikit-learn",
    "torchmetrics",
)


class RunWriter:
    """The only writer of a run folder. On other ranks than 0 it writes only shards of checkpoints.

    Args:
        folder: of the run.
        made: this process has just chosen the folder's name.
        world: the ranks of the run, which write a checkpoint together if they share the state.
        delete_abandoned: deletes the checkpoints that a rollback undoes.

    Raises:
        RunError: another process holds the folder, or it cannot be written.
    """

    folder = FixedPath()

    def __init__(
        self,
        folder: Path,
        *,
        made: bool = False,
        world: Communicator = ALONE,
        delete_abandoned: Callable[[Iterable[Path]], None] = delete,
    ) -> None:
        self.folder = folder
        self.world = world
        self.warnings: list[str] = []
        self._delete_abandoned = delete_abandoned
        self._made = made or not folder.exists()
        self._lock: RunLock | None = None
        self._events: EventWriter | None = None
        self._status: dict[str, Any] = {}
        self._written: dict[str, Any] = {}
        self._saver: AsyncSaver | None = None
        self._newest: NewestValid | None = None
        if world.is_first:
            self._lock = self._open()
        self.published = world.is_first and (folder / "config.json").exists()
        try:
            if self.published:
                # Before anything reads them; a run could never end otherwise.
                text = repair_events(folder / "events.jsonl")
                self.warnings += [] if text is None else [text]
            elif self._lock is not None:
                self._check_no_records()
        except BaseException:
            self.close()
            raise

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.folder / "checkpoints"

    def _open(self) -> RunLock:
        folder = self.folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = RunLock(folder)
        except OSError as error:
            if self._made:
                with suppress(OSError):
                    folder.rmdir()
            hint = os_error_hint(error)
            if isinstance(error, (FileExistsError, NotADirectoryError)):
                hint = "It is a file: choose a folder with --run (run= in Python)."
            raise RunError(f"{folder} cannot be a run folder: {error.strerror}. {hint}") from error
        # Other processes may write predictions there, and send records to trackers.
        for parent in (folder, folder / INCIDENTS, folder / "trackers"):
            remove_stale(parent)
        remove_stale(self.checkpoints, locked=lock.locked)
        return lock

    def _check_no_records(self) -> None:
        """Reject the folder of a run that lost its config: a new run would replace the records."""
        found = list_checkpoints(self.checkpoints)
        step = step_of(found[-1]) if found else last_step(self.folder / "events.jsonl")
        if step is not None:
            raise RunError(
                f"{self.folder / 'config.json'} is missing, and {self.folder} has the records of a "
                f"run up to step {step}, which a new run would replace. {COPY_HINT}"
            )

    @property
    def lock_text(self) -> str:
        """What the folder's lock file says about this process."""
        return "" if self._lock is None else self._lock.text

    @property
    def run(self) -> Run:
        """The folder, for reading."""
        return Run(self.folder)

    def newest_valid(
        self, accept: Callable[[CheckpointReader], object] | None = None
    ) -> CheckpointReader | None:
        """Return the newest valid checkpoint; None before the first was saved.

        The first call verifies it, and later ones return the same; `accept` is as for
        `find_newest_valid`.

        Raises:
            CheckpointError: there are some, or were, and none is valid.
        """
        if self._newest is None:
            found = find_newest_valid(self.checkpoints, accept=accept)
            if found.opened is None and has_published(self.folder):
                raise CheckpointError(no_checkpoint_message(self.folder))
            self._newest = found
        return self._newest.opened

    @property
    def passed_over(self) -> tuple[CorruptCheckpoint, ...]:
        """The corrupted checkpoints that are newer than the one the run resumes from."""
        return () if self._newest is None else self._newest.passed_over

    def start(
        self,
        config: dict[str, Any],
        plan: Plan,
        system: SystemInfo,
        cwd: Path,
        *,
        events: Iterable[tuple[str, dict[str, Any]]] = (),
    ) -> None:
        """Write config, plan and environment; `events` come before the config they explain."""
        with explain_write_errors(self.folder):
            self.warnings += probe_filesystem(
                self.folder, locked=bool(self._lock and self._lock.locked)
            )
            self.write_plan(plan)
            if plan.parallel_deepspeed:
                write_json(self.folder / "ds_config.json", dict(plan.parallel_deepspeed))
            write_json(self.folder / "environment.json", collect_environment(system, cwd))
            monitor = [plan.validation_metric, plan.validation_mode]
            self._status = {"monitor": monitor if plan.validation_metric else None}
            self.status("running")
            self._events = EventWriter(self.folder / "events.jsonl")
        for kind, fields in events:
            self.event(kind, **fields)
        self._quarantine()
        write_json(self.folder / "config.json", config)

    def write_plan(self, plan: Plan) -> None:
        """Write the Plan."""
        write_json(self.folder / "plan.json", [decision._asdict() for decision in plan.decisions])

    def _quarantine(self) -> None:
        """Rename the corrupted checkpoints, and report what the run resumes from instead."""
        if self._newest is None or self._newest.opened is None:
            return
        for path, reason in self.passed_over:
            try:
                renamed = quarantine(path)
            except OSError as error:
                raise RunError(
                    f"{path} could not be renamed: {error.strerror}. {reason} Move it away."
                ) from error
            self.event(
                "fallback",
                step=self._newest.opened.manifest.step,
                damaged=f"checkpoints/{renamed.name}",
                reason=reason,
            )

    def status(self, status: str, **more: Any) -> None:
        """Write status.json: running, stopped, failed or finished."""
        self._written = {"status": status, **self._status, **_mask_texts(more)}
        self.write("status.json", self._written)

    def amend_status(self, **more: Any) -> None:
        """Add entries to the status that was written last; if the disk is full, nothing happens."""
        with suppress(RunError):
            self.write("status.json", {**self._written, **more})

    def note(self, **more: Any) -> None:
        """Add entries to the status, which stay in it; if the disk is full, nothing happens."""
        self._status |= more
        self._written |= more
        self.amend_status()

    def event(self, kind: str, **fields: Any) -> None:
        """Append an event."""
        if self._events is not None:
            self._events.write(kind, **_mask_texts(fields))

    def durable_event(self, kind: str, **fields: Any) -> None:
        """Append an event, and wait until it is on the disk.

        Raises:
            RunError: it cannot be written.
        """
        self.event(kind, **fields)
        if self._events is not None:
            self._events.sync()

    def durable_event_of_rank(self, kind: str, **fields: Any) -> None:
        """Append an event on any rank: a line that is written at once mixes with no other.

        Raises:
            RunError: it cannot be written, or this rank does not see the folder.
        """
        if self._events is not None:
            self.durable_event(kind, **fields)
            return
        path = self.folder / "events.jsonl"
        with explain_write_errors(path), path.open("rb+"):  # not a new file
            events = EventWriter(path, is_shared=True)
            events.write(kind, **_mask_texts(fields))
            events.sync()
            events.close()

    def notice(self) -> str | None:
        """Return a message about the folder itself, if there is one."""
        return None if self._events is None else self._events.notice()

    def steps(self, point: LogPoint, group_rates: Mapping[str, float], peak_memory: int) -> None:
        """Append the steps of a log point, and at its end the progress and each group's rate."""
        is_last = point.progress.step == point.first_step + len(point.loss) - 1
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
            **({"group_lr": group_rates} if group_rates else {}),
            peak_memory=peak_memory,
            **({"progress": point.progress._asdict()} if is_last else {}),
            **({"layers": point.layers._asdict()} if point.layers else {}),
        )

    def skipped(self, skip: SkippedStep, samples: list[int] | None) -> None:
        """Append a skipped step, with the indices of its samples if they have any."""
        fields = {**skip._asdict(), "samples": samples}
        # These samples caused it, and are not just all samples of the step.
        fields["alone"] = fields.pop("guilty") is not None
        self.event("skipped", **fields)

    def write_skipped(self) -> None:
        """Write all skipped steps as skipped.json, which `--exclude-samples` reads."""
        if self._lock is not None:
            write_skipped(self.folder / "skipped.json", self.run.skipped)

    @property
    def owns(self) -> bool:
        """Whether this process writes the folder."""
        return self._lock is not None

    def write(self, name: str, content: dict[str, Any]) -> Path:
        """Write a JSON file into the folder, on rank 0; return its path."""
        path = self.folder / name
        if self._lock is not None:
            write_json(path, content)
        return path

    def save(self, state: State, plan: Plan) -> None:
        """Start to save a checkpoint; when it is written, those that are not kept are deleted."""
        shared = is_shared(state)
        if self._lock is None and not shared:
            return
        if self._saver is None:
            every = plan.checkpoint_keep_every
            policy = RetentionPolicy(
                keep_last=plan.checkpoint_keep_last,
                keep_best=plan.checkpoint_keep_best,
                metric=plan.validation_metric,
                mode=plan.validation_mode,
                keep_every=None if every is None else every.steps(plan.steps_per_epoch),
                may_roll_back=plan.on_spike == "rollback",
            )
            folder = self.checkpoints.absolute()
            self._saver = AsyncSaver(
                folder,
                lambda: None if self._lock is None else prune(folder, policy),
                background=plan.checkpoint_async_save,
                world=self.world if shared else ALONE,
            )
        ends, taken = cycle_ends(plan.schedule), state.progress.steps_taken
        self._saver.save(state, cycle=ends.index(taken) + 1 if taken in ends else None)

    def collect_saves(self, *, wait: bool = False) -> list[SaveResult]:
        """Return the results of saves that are done, each once and only on rank 0; log them.

        Args:
            wait: for the save that is being written.
        """
        if self._saver is None:
            return []
        if wait:
            self._saver.wait()
        results = self._saver.outcomes()
        for index, result in enumerate(results):
            if result.path is not None:
                results[index] = replace(result, path=self.checkpoints / result.path.name)
                self.event(
                    "checkpoint",
                    step=result.step,
                    path=f"checkpoints/{result.path.name}",
                    seconds=round(result.seconds, 4),
                    blocked_s=round(result.blocked_s, 4),
                )
        return [] if self._lock is None else results

    def delete_from_step(self, step: int) -> None:
        """Delete the checkpoints from a step on, after a rollback."""
        if self._lock is not None:
            found = list_checkpoints(self.checkpoints)
            self._delete_abandoned(path for path in found if step_of(path) >= step)

    def close(self) -> None:
        """Wait for the last save, then close the events and release the folder."""
        self.collect_saves(wait=True)
        try:
            if self._events is not None:
                self._events.close()
        finally:
            self._events = None
            if self._lock is not None:
                self._lock.release()

    def discard(self, error: BaseException) -> None:
        """Write that the start failed, or was stopped, and release the folder.

        If no run has started in it, what was written is removed.
        """
        if self._events is not None and self._lock is not None:  # status.json says "running"
            status, reason = describe_error_end(error)
            more = {"resumable": bool(list_checkpoints(self.checkpoints))}
            with suppress(RunError):  # the first error is the one to raise
                self.status(status, reason=reason, **(more if status == "stopped" else {}))
        self.close()
        if self._lock is None or self.published or (self.folder / "config.json").exists():
            return
        for name in (
            "lock",
            "plan.json",
            "environment.json",
            "status.json",
            "events.jsonl",
            "mirror.json",
        ):
            (self.folder / name).unlink(missing_ok=True)
        if self._made:
            with suppress(OSError):  # it has other files
                self.folder.rmdir()


def describe_error_end(error: BaseException) -> tuple[str, str]:
    """Return status and reason of a run that ended by an error: failed, or stopped by a signal."""
    if isinstance(error, Preempted):
        return "stopped", error.reason
    if isinstance(error, OutOfMemoryError):  # out-of-memory-*.json has the other lines
        return "failed", f"{type(error).__name__}: {error}".partition("\n")[0]
    if isinstance(error, Exception):
        return "failed", f"{type(error).__name__}: {error}"
    return "stopped", CTRL_C if isinstance(error, KeyboardInterrupt) else type(error).__name__


def _mask_texts(fields: dict[str, Any]) -> dict[str, Any]:
    """Mask secrets in texts, which may quote the error of a library."""
    return {
        name: mask_secrets(value) if isinstance(value, str) else value
        for name, value in fields.items()
    }


def collect_environment(system: SystemInfo, folder: Path) -> dict[str, Any]:
    """Return what to know about this process; `folder` is where git is asked."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "devices": list(system.cuda_devices) or ["cpu"],
        "cpus": system.cpus,
        "threads": system.threads,
        "git": read_commit(folder),
        "executable": Path(sys.executable).name,
    }


@cache
def _version(name: str) -> str | None:
    """Return the version of an installed package; read once, since it parses all its metadata."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
