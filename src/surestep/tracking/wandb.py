"""Weights & Biases: its service, or files in the run folder to be synced later."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from surestep.tracking.tracker import Point, TrackedRun, Tracker

_STEP = "step"  # the x-axis: unlike W&B's own step, it may repeat when a run resumes


class WandbTracker(Tracker):
    """Logs options as the config, metrics over "step", and the best checkpoint as an artifact.

    Without an API key, and with WANDB_MODE=offline, everything is written to the folder `wandb` of
    the run, for `wandb sync`. WANDB_PROJECT names the project, by default "surestep".

    Source: https://docs.wandb.ai/ref/python/
    """

    name: ClassVar[str] = "wandb"

    def start(self, run: TrackedRun) -> Mapping[str, Any]:
        """Create the W&B run, or continue the one of this run folder."""
        import wandb

        self._run = run
        has_key = wandb.login(prompt=False)  # otherwise W&B would ask at the terminal
        self._wandb: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "surestep"),
            id=run.state.get("id"),
            resume="allow",
            name=run.name,
            mode=None if has_key or "WANDB_MODE" in os.environ else "offline",
            dir=str(run.path),
            config=dict(run.options) | {"environment": dict(run.environment)},
            settings=wandb.Settings(console="off", silent=True, disable_code=True),
        )
        self._wandb.define_metric(_STEP, hidden=True)
        self._wandb.define_metric("*", step_metric=_STEP)
        return {"id": self._wandb.id}

    def log(self, points: Sequence[Point]) -> None:
        """Log each point as a row."""
        for point in points:
            self._wandb.log({**point.values, _STEP: point.step, "_timestamp": point.time})

    def end(self, status: str, summary: Mapping[str, Any]) -> None:
        """Log the best checkpoint as an artifact, and how the run ended."""
        import wandb

        self._wandb.summary["status"] = status
        if status == "finished" and (best := self._run.best_checkpoint()) is not None:
            artifact = wandb.Artifact(f"{self._wandb.id}-checkpoint", type="model")
            artifact.add_dir(str(best), name=best.name)
            self._wandb.log_artifact(artifact, aliases=["best"])

    def close(self) -> None:
        """End the W&B run of this process."""
        self._wandb.finish()
