"""MLflow: a server or a local store, as MLFLOW_TRACKING_URI says."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from surestep.tracking.tracker import Point, TrackedRun, Tracker

# Limits of MLflow: https://mlflow.org/docs/latest/rest-api.html#request-limits
_MOST_METRICS = 1000
_MOST_PARAMS = 100
_LONGEST = 500  # characters of a parameter or a tag; servers before MLflow 2.8 allow no more
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
_RECORDS = ("config.json", "plan.json", "environment.json")


class MLflowTracker(Tracker):
    """Logs options as parameters, metrics, the environment as tags, and the best checkpoint.

    A resumed run continues its MLflow run. The experiment is MLFLOW_EXPERIMENT_NAME, by default
    "surestep". MLflow adds a metric with the same step and time as an earlier one only once.

    Source: https://mlflow.org/docs/latest/api_reference/python_api/mlflow.client.html
    """

    name: ClassVar[str] = "mlflow"
    _run_id: str | None = None  # once the MLflow run is created, also if the rest of `start` fails

    def start(self, run: TrackedRun) -> Mapping[str, Any]:
        """Create the MLflow run, or open the one of this run folder."""
        # A failed request is repeated later by the caller, so MLflow itself need not wait minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
        from mlflow import MlflowClient

        self._client: Any = MlflowClient()
        self._run = run
        self._run_id = run.state.get("run_id", self._run_id)
        if self._run_id is None:
            created = self._client.create_run(self._experiment(), run_name=run.name)
            self._run_id = created.info.run_id
        if run.state:
            self._client.update_run(self._run_id, status="RUNNING")
        else:
            self._describe(run)
        return {"run_id": self._run_id}

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "surestep")
        found = self._client.get_experiment_by_name(name)
        return str(self._client.create_experiment(name) if found is None else found.experiment_id)

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

    def end(self, status: str, summary: Mapping[str, Any]) -> None:
        """Upload the best checkpoint, and end the MLflow run."""
        if status == "finished" and (best := self._run.best_checkpoint()) is not None:
            self._client.log_artifacts(self._run_id, str(best), f"checkpoints/{best.name}")
            self._client.set_tag(self._run_id, "surestep.best_checkpoint", best.name)
        self._client.set_tag(self._run_id, "surestep.reason", str(summary["reason"])[:_LONGEST])
        self._client.set_terminated(self._run_id, _STATUS.get(status, "FAILED"))


def _key(name: str) -> str:
    """Replace the characters that MLflow does not allow in the name of a metric."""
    return re.sub(r"[^\w\-. :/]", "_", name)
