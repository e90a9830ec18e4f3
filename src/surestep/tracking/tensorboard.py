"""TensorBoard: event files in the folder `tensorboard` of the run."""

import io
import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

from surestep.tracking.findings import name_finding
from surestep.tracking.tracker import Histogram, Point, TrackedRun, Tracker

_FILES = count()  # in the names of files of this process


class TensorBoardTracker(Tracker):
    """Writes scalars, histograms, texts, and the options as hyperparameters with the last metrics.

    Source: https://docs.pytorch.org/docs/stable/tensorboard.html
    """

    name: ClassVar[str] = "tensorboard"
    _opened: "_EventFile | None" = None  # also if the rest of `start` fails

    def start(self, run: TrackedRun) -> None:
        """Open a new event file beside those of earlier processes of this run."""
        from torch.utils.tensorboard import summary

        self._make: Any = summary
        self._options = {name: _hyperparameter(value) for name, value in run.options.items()}
        self._metrics: dict[str, float] = {}
        self._step = 0
        self._run = run
        self.close()
        self._file = self._opened = _EventFile(run.path / "tensorboard")
        if run.from_start:
            self._file.discard_from(0)
        rows = "\n".join(f"| {name} | {value} |" for name, value in self._options.items())
        self._write_text("options", f"| option | value |\n|---|---|\n{rows}")
        self._write_text("environment", _table(run.environment))

    def log(self, points: Sequence[Point]) -> None:
        """Write scalars."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        summaries = []
        for point in points:  # one record for all values: a fifth of the time of one for each
            scalars = [
                Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()
            ]
            summaries.append((Summary(value=scalars), point.step, point.time))
            self._metrics |= point.values
            self._step = point.step
        self._file.write(summaries)

    def resume(self, path: Path, step: int) -> None:
        """Discard the steps after the checkpoint that the run continues from."""
        if path.parent.parent == self._run.path:
            self._file.discard_from(step + 1)

    def histograms(self, step: int, time: float, histograms: Mapping[str, Histogram]) -> None:
        """Write histograms."""
        made = [
            self._make.histogram_raw(
                name,
                min=found.low,
                max=found.high,
                num=sum(found.counts),
                sum=found.total,
                sum_squares=found.squares,
                bucket_limits=found.edges[1:],
                bucket_counts=found.counts,
            )
            for name, found in histograms.items()
        ]
        self._file.write([(summary, step, time) for summary in made])

    def findings(self, findings: Sequence[Mapping[str, Any]]) -> None:
        """Write the findings as a text, at the last step."""
        texts = [
            f"**{name_finding(found)}** ({found['severity']}): {found['message']}\n\n{found['fix']}"
            for found in findings
        ]
        self._write_text("findings", "\n\n".join(texts) or "Nothing was found.")

    def end(self, status: str, summary: Mapping[str, Any]) -> None:
        """Write the hyperparameters with the last value of each metric."""
        parts = self._make.hparams(self._options, self._metrics)
        self._file.write([(part, 0, time.time()) for part in parts])

    def close(self) -> None:
        """Close the file."""
        if self._opened is not None:
            self._opened.close()

    def _write_text(self, name: str, text: str) -> None:
        self._file.write([(self._make.text(name, text), self._step, time.time())])


class _EventFile:
    """A file of TensorBoard, written in the thread that calls.

    torch's SummaryWriter has a thread that writes, and dies with a traceback if the disk is full.
    Here `write` raises the error, and leaves no half record.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        unique = f"{int(time.time()):010}.{socket.gethostname()}.{os.getpid()}.{next(_FILES):06}"
        path = folder / f"events.out.tfevents.{unique}"
        self._file = path.open("xb", buffering=0)
        try:
            self._append([{"wall_time": time.time(), "file_version": "brain.Event:2"}])
        except OSError:
            with suppress(OSError):
                self.close()
                path.unlink()
            raise

    def write(self, summaries: Sequence[tuple[Any, int, float]]) -> None:
        """Append summaries, each with its step and time."""
        self._append(
            [
                {"wall_time": walltime, "step": step, "summary": summary}
                for summary, step, walltime in summaries
            ]
        )

    def discard_from(self, step: int) -> None:
        """Have TensorBoard discard what it has read of a step and of those after it."""
        from tensorboard.compat.proto.event_pb2 import SessionLog

        start = SessionLog(status=SessionLog.START)
        # Its pages take the first one that they read as the start of training, which discards none.
        self._append([{"wall_time": time.time(), "step": step, "session_log": start}] * 2)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append(self, events: Sequence[Mapping[str, Any]]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        buffer, size = io.BytesIO(), self._file.seek(0, os.SEEK_END)
        records = RecordWriter(buffer)
        for event in events:
            records.write(Event(**event).SerializeToString())
        data = buffer.getvalue()
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError:
            self._file.truncate(size)
            raise


def _hyperparameter(value: Any) -> bool | int | float | str:
    return value if isinstance(value, bool | int | float | str) else str(value)


def _table(values: Mapping[str, Any]) -> str:
    return "\n".join(f"    {name}: {value}" for name, value in values.items())
