"""TensorBoard: event files in the folder `tensorboard` of the run."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from surestep.tracking.tracker import Point, TrackedRun, Tracker


class TensorBoardTracker(Tracker):
    """Writes scalars, the options as hyperparameters with the last metrics, and the environment.

    Source: https://docs.pytorch.org/docs/stable/tensorboard.html
    """

    name: ClassVar[str] = "tensorboard"

    def start(self, run: TrackedRun) -> None:
        """Open a new event file beside those of earlier processes of this run."""
        from torch.utils.tensorboard import SummaryWriter

        self._options = {name: _hyperparameter(value) for name, value in run.options.items()}
        self._metrics: dict[str, float] = {}
        writer: Any = SummaryWriter
        self._writer = writer(str(run.path / "tensorboard"))
        if not run.state:
            rows = "\n".join(f"| {name} | {value} |" for name, value in self._options.items())
            self._writer.add_text("options", f"| option | value |\n|---|---|\n{rows}")
            self._writer.add_text("environment", _table(run.environment))

    def log(self, points: Sequence[Point]) -> None:
        """Write scalars."""
        for point in points:
            for name, value in point.values.items():
                self._writer.add_scalar(name, value, point.step, walltime=point.time)
            self._metrics |= point.values
        self._writer.flush()

    def end(self, status: str, summary: Mapping[str, Any]) -> None:
        """Write the hyperparameters with the last value of each metric."""
        from torch.utils.tensorboard import summary as records

        make_summaries: Any = records.hparams
        for part in make_summaries(self._options, self._metrics):
            self._writer.file_writer.add_summary(part)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


def _hyperparameter(value: Any) -> bool | int | float | str:
    return value if isinstance(value, bool | int | float | str) else str(value)


def _table(values: Mapping[str, Any]) -> str:
    return "\n".join(f"    {name}: {value}" for name, value in values.items())
