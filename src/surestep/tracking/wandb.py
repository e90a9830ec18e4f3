"""Weights & Biases: its service, or files in the run folder to be synced later."""

import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from surestep.record.events import read_events, read_new_events
from surestep.tracking.checkpoint_copy import copy_checkpoint, describe_checkpoint
from surestep.tracking.findings import name_finding, texts_by_rule
from surestep.tracking.points import read_points
from surestep.tracking.tracker import Point, StudyResult, TrackedRun, Tracker
from surestep.tracking.wandb_log import read_last_row

_STEP = "step"  # the x-axis: unlike W&B's own step, it may repeat when a run resumes


class WandbTracker(Tracker):
    """Logs options as the config, metrics over "step", findings, and checkpoints as artifacts.

    Without an API key, and with WANDB_MODE=offline, everything is written to the folder `wandb` of
    the run, for `wandb sync`. WANDB_PROJECT names the project, by default "surestep".

    Source: https://docs.wandb.ai/ref/python/
    """

    name: ClassVar[str] = "wandb"
    _wandb: Any = None
    _row: int  # the number of the newest point
    _last_row: int  # the number of the newest row that an earlier process stored

    def start(self, run: TrackedRun) -> Mapping[str, Any]:
        """Create the W&B run, or continue the one of this run folder."""
        before, self._run = self._wandb, run
        if before is not None:  # the rest of an earlier start failed
            before.finish()
        run_id = run.state.get("id") or run.key[:12]
        self._logged_best: Path | None = None
        config = dict(run.options) | {"environment": dict(run.environment)}
        if run.signature is not None:
            config["signature"] = run.signature
        self._wandb = _init(run.path, run_id, name=run.name, group=run.study, config=config)
        self._began = next(read_events(run.path / "events.jsonl")).get("time", 0.0)
        self._wandb.define_metric(_STEP, hidden=True)
        self._wandb.define_metric("*", step_metric=_STEP)
        self._row = self._last_row = -1
        stored = -1 if run.from_start else self._repeat_lost(run)
        folder = Path(self._wandb.dir).parent.name
        return {"id": self._wandb.id, "folder": folder, "row": stored}

    def _repeat_lost(self, run: TrackedRun) -> int:
        """Log again what an earlier process logged and W&B has not, since it was killed.

        W&B's service takes a row at once, and writes or sends it up to 15 seconds later.

        Returns:
            The newest row that W&B has stored.
        """
        stored = [] if self._wandb.settings._offline else [self._wandb.starting_step - 1]
        before = run.path / "wandb" / run.state.get("folder", "")
        if (last := read_last_row(before)) is not None:
            stored.append(max(last, run.state.get("row", -1)))
        self._last_row = max(stored, default=sys.maxsize)  # no row is known to be missing
        for event, end in read_new_events(run.path / "events.jsonl", 0):
            if end > run.delivered:
                break
            self.log(tuple(read_points(event)))
        if not stored:
            self._last_row = self._row
        return self._last_row

    def log(self, points: Sequence[Point]) -> None:
        """Log each point as a row.

        W&B's number of the row, which must rise, is the time in ms since the run began. So offline
        folders of one run, written by several processes, have no number in common.
        """
        for point in points:
            self._row = max(self._row + 1, round((point.time - self._began) * 1000))
            if self._row <= self._last_row:
                continue  # stored by a process that was killed before it recorded the delivery
            row = {**point.values, _STEP: point.step, "_timestamp": point.time}
            self._wandb.log(row, step=self._row, commit=True)

    def resume(self, path: Path, step: int) -> None:
        """Record the checkpoint as an input of the run, unless it was deleted."""
        run = path.parent.parent
        run_id = self._wandb.id
        if run != self._run.path:
            record = run / "trackers" / f"{self.name}.json"
            with suppress(OSError, ValueError, KeyError, TypeError):
                run_id = json.loads(record.read_bytes())["state"]["id"]
            if run_id == self._wandb.id:  # the other run was not tracked here
                run_id = run.name
        if not self._wandb.settings._offline:
            with suppress(Exception):  # it was not logged, or is in another project
                self._wandb.use_artifact(f"{run_id}-checkpoint:{path.name}")
                return
        artifact = _reference(run_id, path, step, {})
        if artifact is not None:  # use_artifact() does the same, but rejects offline runs
            self._wandb._log_artifact(artifact, use_after_commit=True)

    def checkpoint(self, path: Path, step: int, metrics: Mapping[str, float]) -> None:
        """Log the checkpoint: its files if it is the best, and else a reference to them."""
        if self._run.is_best(path):
            self._log_best(path, step, metrics)
        elif (artifact := _reference(self._wandb.id, path, step, metrics)) is not None:
            self._wandb.log_artifact(artifact, aliases=["latest", path.name])

    def _log_best(self, path: Path, step: int, metrics: Mapping[str, Any]) -> None:
        with copy_checkpoint(path, self._run.path) as copy:
            if copy is None:
                return
            artifact = _artifact(self._wandb.id, path, step, metrics, self._run.signature)
            for file in sorted(copy.iterdir()):  # W&B copies them
                artifact.add_file(str(file), name=f"{path.name}/{file.name}")
        self._wandb.log_artifact(artifact, aliases=["best", "latest", path.name])
        self._logged_best = path

    def findings(self, findings: Sequence[Mapping[str, Any]]) -> None:
        """Put the findings into the summary of the run; its errors and warnings are alerts."""
        self._wandb.summary["findings"] = texts_by_rule(findings)
        for finding in findings:
            if finding["severity"] in ("error", "warning"):
                title = f"{self._run.name}: {name_finding(finding)}"
                self._wandb.alert(title, finding["message"])

    def end(self, status: str, summary: Mapping[str, Any]) -> None:
        """Log how the run ended, and the best checkpoint unless this process has logged it."""
        self._wandb.summary["status"] = status
        best = self._run.best
        if status == "finished" and best is not None and best.path != self._logged_best:
            self._log_best(best.path, best.step, best.metrics)

    def close(self) -> None:
        """End the W&B run of this process."""
        self._wandb.finish()
        self._wandb = None

    def end_study(self, study: StudyResult) -> None:
        """Log the best trial and the files of a search as a run in the group of its trials."""
        import wandb

        run_id = hashlib.sha256(study.name.encode()).hexdigest()[:12]
        named = {"name": study.name, "group": study.name, "job_type": "study"}
        run = _init(study.folder, run_id, **named, config={"best": dict(study.params)})
        run.summary.update(dict(study.metrics))
        artifact = wandb.Artifact(f"{run_id}-study", type="study")
        for file in study.files:
            artifact.add_file(str(file))
        if study.files:
            run.log_artifact(artifact)
        run.finish()


def _init(folder: Path, run_id: str | None, *, config: Mapping[str, Any], **named: Any) -> Any:
    """Open a run of W&B, whose files are in the folder `wandb` of `folder`."""
    import wandb

    has_key = wandb.login(prompt=False)  # otherwise W&B would ask at the terminal
    _wait_for_new_name(folder / "wandb", run_id)
    return wandb.init(
        project=os.environ.get("WANDB_PROJECT", "surestep"),
        id=run_id,
        resume="allow",
        mode=None if has_key or "WANDB_MODE" in os.environ else "offline",
        dir=str(folder),
        config=dict(config),
        allow_val_change=True,  # options that a resumed run may change
        settings=wandb.Settings(
            console="off",
            silent=True,
            disable_code=True,
            disable_git=True,
            x_disable_meta=True,  # arguments, and all variables of Slurm with its token
        ),
        **named,
    )


def _wait_for_new_name(folder: Path, run_id: str | None) -> None:
    """Wait for the next second if this one is in the name of a folder of the same W&B run.

    W&B would overwrite that folder.
    """
    while run_id is not None and list(folder.glob(f"*-{time.strftime('%Y%m%d_%H%M%S')}-{run_id}")):
        time.sleep(0.05)


def _artifact(
    run_id: str, path: Path, step: int, metrics: Mapping[str, Any], signature: Any = None
) -> Any:
    """Return a version of the checkpoints of a W&B run, without files."""
    import wandb

    numbers = {name: value for name, value in metrics.items() if not isinstance(value, list)}
    metadata = {"step": step, "path": str(path.resolve()), "metrics": numbers}
    if signature is not None:
        metadata["signature"] = signature
    return wandb.Artifact(f"{run_id}-checkpoint", type="model", metadata=metadata)


def _reference(run_id: str, path: Path, step: int, metrics: Mapping[str, float]) -> Any | None:
    """Return a version with the addresses and hashes of a checkpoint; None if it was deleted."""
    described = describe_checkpoint(path, step, metrics)
    artifact = _artifact(run_id, path, step, metrics)
    if described is None:
        return None
    artifact.metadata["manifest_sha256"] = described["manifest_sha256"]
    try:
        for file in sorted(path.resolve().iterdir()):
            artifact.add_reference(file.as_uri(), name=f"{path.name}/{file.name}")
    except (OSError, ValueError):  # deleted while its files were hashed
        if path.exists():
            raise
        return None
    return artifact
