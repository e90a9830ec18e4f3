"""MLflow: a server or a local store, as MLFLOW_TRACKING_URI says."""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from surestep.engine.value import number
from surestep.record.run import Run
from surestep.tracking.checkpoint_copy import copy_checkpoint, describe_checkpoint
from surestep.tracking.mlflow_model import log_model
from surestep.tracking.mlflow_once import KEY, create_once
from surestep.tracking.mlflow_registry import Score, register_version
from surestep.tracking.mlflow_store import create_store, explain_half_created
from surestep.tracking.mlflow_study import PARENT, STUDY, find_parent, finish_parent
from surestep.tracking.tracker import Point, StudyResult, TrackedRun, Tracker

# Limits of MLflow: https://mlflow.org/docs/latest/rest-api.html#request-limits
_MOST_METRICS = 1000
_MOST_PARAMS = 100
_LONGEST = 500  # characters of a parameter or a tag; servers before MLflow 2.8 allow no more
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
_RECORDS = ("config.json", "plan.json", "environment.json", "signature.json")
_BEST, _MODEL = "surestep.best_checkpoint", "surestep.model"


class MLflowTracker(Tracker):
    """Logs options as parameters, metrics, findings, checkpoints, and the model of a finished run.

    A resumed run continues its MLflow run. The experiment is MLFLOW_EXPERIMENT_NAME, by default
    "surestep". MLflow adds a metric with the same step and time as an earlier one only once.

    Source: https://mlflow.org/docs/latest/api_reference/python_api/mlflow.client.html
    """

    name: ClassVar[str] = "mlflow"
    uses_model: ClassVar[bool] = True
    _run_id: str | None = None  # once the MLflow run is created, also if the rest of `start` fails

    def start(self, run: TrackedRun) -> Mapping[str, Any]:
        """Create the MLflow run, or open the one of this run folder."""
        (self._client, self._experiment), self._run = _connect(), run
        self._run_id = run.state.get("run_id", self._run_id)
        if self._run_id is None:
            self._run_id = self._create_run()
        if run.study is not None:
            self._client.set_tag(self._run_id, STUDY, run.study)
            parent = find_parent(self._client, self._experiment, run.study)
            self._client.set_tag(self._run_id, PARENT, parent)
        if not run.state:
            self._describe(run)
        elif Run(run.path).status["status"] == "running":
            self._client.update_run(self._run_id, status="RUNNING")
        return {"run_id": self._run_id}

    def _create_run(self) -> str:
        """Return the id of the MLflow run with our key, which is created if there is none."""
        tags = {KEY: self._run.key}
        create = partial(
            self._client.create_run, self._experiment, run_name=self._run.name, tags=tags
        )
        return str(create_once(self._search_runs, create, self._delete_double).info.run_id)

    def _search_runs(self) -> list[Any]:
        """Return the MLflow runs with our key, those that have metrics first."""
        where = f"tags.`{KEY}` = '{self._run.key}'"
        found = self._client.search_runs([self._experiment], where)
        return sorted(found, key=lambda run: (not run.data.metrics, run.info.start_time))

    def _delete_double(self, run: Any) -> None:
        if run.info.run_id != self._run_id and not run.data.metrics:
            self._client.delete_run(run.info.run_id)

    def _describe(self, run: TrackedRun) -> None:
        """Log what does not change: options, environment, and the files that have both."""
        from mlflow.entities import Param, RunTag

        params = [
            Param(name, str(value)[:_LONGEST])
            for name, value in run.options.items()
            if value is not None
        ]
        for first in range(0, len(params), _MOST_PARAMS):
            self._client.log_batch(self._run_id, params=params[first : first + _MOST_PARAMS])
        git = run.environment.get("git") or {}
        tags = {
            "surestep.run": str(run.path.resolve()),
            "mlflow.source.git.commit": git.get("commit"),
            "surestep.git_dirty": git.get("dirty"),
            "surestep.python": run.environment.get("python"),
            "surestep.devices": ", ".join(run.environment.get("devices", ())),
        }
        known = [RunTag(key, str(value)[:_LONGEST]) for key, value in tags.items() if value]
        self._client.log_batch(self._run_id, tags=known)
        for name in _RECORDS:
            if (run.path / name).exists():
                self._client.log_artifact(self._run_id, str(run.path / name))

    def log(self, points: Sequence[Point]) -> None:
        """Log metrics in batches."""
        from mlflow.entities import Metric

        metrics = [
            Metric(_key(name), value, int(point.time * 1000), point.step)
            for point in points
            for name, value in point.values.items()
        ]
        for first in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self._run_id, metrics=metrics[first : first + _MOST_METRICS])

    def resume(self, path: Path, step: int) -> None:
        """Tag the run with the checkpoint that it continues from."""
        key = "surestep.resumed_from" if path.parent.parent == self._run.path else "surestep.parent"
        self._client.set_tag(self._run_id, key, str(path)[-_LONGEST:])

    def checkpoint(self, path: Path, step: int, metrics: Mapping[str, float]) -> None:
        """Upload the checkpoint if it is the best, and else its path and hash."""
        if self._run.is_best(path):
            self._upload(path)
        elif (described := describe_checkpoint(path, step, metrics)) is not None:
            self._client.log_dict(self._run_id, described, f"checkpoints/{path.name}.json")

    def _upload(self, path: Path) -> None:
        """Upload a checkpoint, which replaces the best one so far, unless it is gone."""
        before = self._tags().get(_BEST)
        if before == path.name:
            return
        with copy_checkpoint(path, self._run.path) as copy:
            if copy is None:
                return
            self._client.log_artifacts(self._run_id, str(copy), f"checkpoints/{path.name}")
        self._client.set_tag(self._run_id, _BEST, path.name)
        if before is not None:
            self._delete(f"checkpoints/{before}")

    def _delete(self, artifact: str) -> None:
        """Delete the files of a checkpoint that is no longer the best; some stores cannot."""
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        uri = self._client.get_run(self._run_id).info.artifact_uri
        store: Any = get_artifact_repository(uri)
        with suppress(Exception):
            store.delete_artifacts(artifact)

    def _tags(self) -> dict[str, str]:
        return dict(self._client.get_run(self._run_id).data.tags)

    def findings(self, findings: Sequence[Mapping[str, Any]]) -> None:
        """Store the findings as a file, and their rules as a tag."""
        self._client.log_dict(self._run_id, {"findings": list(findings)}, "findings.json")
        rules = ", ".join(finding["rule"] for finding in findings) or "none"
        self._client.set_tag(self._run_id, "surestep.findings", rules[:_LONGEST])

    def end(self, status: str, summary: Mapping[str, Any]) -> None:
        """Log the model of a finished run, and end the MLflow run."""
        if status == "finished" and (best := self._run.best) is not None:
            self._upload(best.path)
            if self._run.options.get("logging.mlflow_model") != "off":
                self._log_model(best.path.name, best.step, best.metrics)
        self._client.set_tag(self._run_id, "surestep.reason", summary.get("reason", "")[:_LONGEST])
        for run in self._search_runs():  # a slow server can have created a double since
            self._delete_double(run)
        self._client.set_terminated(self._run_id, _STATUS.get(status, "FAILED"))

    def _log_model(self, checkpoint: str, step: int, metrics: Mapping[str, Any]) -> None:
        """Log the model of a checkpoint once, and register it if the options name a model."""
        assert self._run_id is not None
        logged, _, uri = self._tags().get(_MODEL, "").partition(" ")
        if logged != checkpoint:
            model = log_model(
                self._client,
                self._run,
                self._run_id,
                step=step,
                metrics=map(_key, metrics),
                program=self._run.options.get("logging.mlflow_model") == "program",
            )
            uri = model.uri
            if model.why_weights:
                self._client.set_tag(
                    self._run_id, "surestep.model_is_weights", model.why_weights[:_LONGEST]
                )
            self._client.set_tag(self._run_id, _MODEL, f"{checkpoint} {uri}")
        if (name := self._run.options.get("logging.mlflow_registered_model")) is not None:
            register_version(
                self._client,
                name,
                source=uri,
                run_id=self._run_id,
                model_id=uri.partition("models:/")[2],
                score=self._score(metrics),
            )

    def _score(self, metrics: Mapping[str, Any]) -> Score | None:
        """Return the monitored metric of the best checkpoint; None if there is none."""
        monitor = Run(self._run.path).monitor
        if monitor is None or monitor[0] not in metrics:
            return None
        return Score(*monitor, number(metrics[monitor[0]]))

    def end_study(self, study: StudyResult) -> None:
        """Log the best trial and the files of a search to the parent run of its trials."""
        finish_parent(*_connect(), study)


def _connect() -> tuple[Any, str]:
    """Return a client and the id of the experiment.

    A failed request is repeated by our caller, so MLflow need not wait long.
    """
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    from mlflow import MlflowClient, get_tracking_uri

    uri = get_tracking_uri()
    create_store(uri)
    with explain_half_created(uri):
        client = MlflowClient(uri)
        return client, _experiment(client)


def _experiment(client: Any) -> str:
    """Return the id of the experiment, which is created if it is missing."""
    from mlflow.exceptions import MlflowException

    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "surestep")
    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another run has just created it
                raise
            found = client.get_experiment_by_name(name)
    return str(found.experiment_id)


def _key(name: str) -> str:
    """Replace the characters that MLflow does not allow in the name of a metric."""
    return re.sub(r"[^\w\-. :/]", "_", name)
