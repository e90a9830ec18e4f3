"""Keeps the predictions of the newest and of the best evaluation in the run folder."""

import base64
import copy
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from torch.utils.data import Subset

from surestep.base.errors import RunError
from surestep.base.png import encode_png
from surestep.engine.data.dataset import unwrap_loader
from surestep.engine.data.stream import is_stream
from surestep.engine.evaluate.sample_inputs import PICTURE_PIXELS, shrink
from surestep.engine.state.state import State
from surestep.engine.step.part import Part
from surestep.engine.value import Metrics
from surestep.record.io import dumps
from surestep.record.predictions import MOST_BYTES, read_predictions, write_predictions
from surestep.record.run_writer import RunWriter
from surestep.trainer.session import Session

_PER_EVALUATION = MOST_BYTES // 2 - 200
_SMALLER = (64, 48, 32)  # pixels, of pictures that do not fit
_NAME = 60  # characters of the name of a class
_MOST_CLASSES = 100_000  # that are searched for names


class RecordPredictions(Part):
    """Writes what was collected of each evaluation of all validation sets.

    All ranks gather it together; the first one writes.

    Args:
        session: has the evaluations.
        recorder: of the run folder.
    """

    def __init__(self, session: Session, recorder: RunWriter) -> None:
        self._session, self._recorder = session, recorder
        of_train = class_names(session.task.train)
        sets = session.task.val_sets()
        self._names = {name: class_names(data) or of_train for name, data in sets.items()}
        self._best: dict[str, Any] | None = None  # the best evaluation before the newest one
        if session.loop.world.is_first:
            with suppress(RunError):  # damaged: it is replaced
                found = read_predictions(recorder.folder)
                listed: list[Any] = [] if found is None else found["evaluations"]
                best = next((one for one in listed if one["is_best"]), None)
                self._best = None if best is None else {**best, "is_newest": False}

    def on_evaluate(self, state: State, metrics: Metrics) -> None:
        """Write the evaluation, and keep the best one before it."""
        session, step, best = self._session, state.progress.step, state.best.best_step
        evaluations, limit = session.evaluations, session.plan.limit_val_batches
        sets = [
            {"set": name, "is_stream": is_stream(data), "limit_batches": limit, **found}
            for name, data in session.task.val_sets().items()
            for found in evaluations.collectors[name].gather(session.loop.world)
        ]
        if not session.loop.world.is_first:
            return
        for one in sets:
            _add_class_names(one, self._names[one["set"]])
        is_best = session.plan.validation_metric is not None and best == step
        newest = {
            "step": step,
            "is_newest": True,
            "is_best": is_best,
            "measured": evaluations.collected,
            **fit_size(sets),
        }
        if is_best or (self._best is not None and self._best["step"] != best):
            self._best = None  # of a step that the run went back to
        listed = [newest, *([] if self._best is None else [self._best])]
        if is_best:
            self._best = {**newest, "is_newest": False}
        try:
            write_predictions(self._recorder.folder, listed)
        except RunError as error:
            session.messages.notify_once(f"The report will not show predictions: {error}")


def class_names(data: Any) -> list[str]:
    """Return the names of the classes that a dataset has as `classes`, as those of torchvision."""
    with suppress(Exception):  # of the user's dataset
        dataset = unwrap_loader(data)
        while isinstance(dataset, Subset):
            dataset = dataset.dataset
        names = getattr(dataset, "classes", None)
        if isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names):
            return [name[:_NAME] for name in names[:_MOST_CLASSES]]
    return []


def _add_class_names(found: dict[str, Any], names: list[str]) -> None:
    """Add the names of the classes that occur in what was collected."""
    if found["kind"] == "none" or len(names) != found.get("classes"):
        return
    shown = {label for pair in found.get("pairs", ()) for label in pair[:2]}
    shown |= set(range(len(found.get("matrix", ()))))
    for sample in found["samples"]:
        for value in (sample["target"], sample["prediction"]):
            shown |= set(value if isinstance(value, list) else [value])
    known = sorted(label for label in shown if 0 <= label < len(names))
    found["class_names"] = {str(label): names[label] for label in known}


def fit_size(sets: list[dict[str, Any]], most: int = _PER_EVALUATION) -> dict[str, Any]:
    """Return sets that fit into so many bytes of JSON, and "left_out": what is not in them."""
    for content in _ever_smaller(sets):
        if len(dumps(content).encode()) <= most:
            return content
    raise AssertionError("a file without sets is small")


def _ever_smaller(sets: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the sets: in full, with smaller pictures, with fewer samples, and fewer sets."""
    samples = [sample for one in sets for sample in one.get("samples", ())]
    has_pictures = any(sample["input"]["kind"] == "picture" for sample in samples)
    written, notes = list[dict[str, Any]](), list[str]()
    for pixels in (PICTURE_PIXELS, *(_SMALLER if has_pictures else ())):
        if pixels < PICTURE_PIXELS:
            notes = [f"Pictures have at most {pixels} pixels a side."]
        written = [_with_pictures(one, pixels) for one in sets]
        yield {"sets": written, "left_out": notes}
    most = len(samples)
    while most := most // 2:
        fewer = [_with_samples(one, most) for one in written]
        yield {"sets": fewer, "left_out": [*notes, f"Each list has at most {most} samples."]}
    fewer = [_with_samples(one, 0) for one in written]
    for count in range(len(sets), -1, -1):
        notes = ["No samples are listed."]
        if count < len(sets):
            left_out = len(sets) - count
            notes.append(f"{left_out} of {len(sets)} validation sets or losses are left out.")
        yield {"sets": fewer[:count], "left_out": notes}


def _with_pictures(found: Mapping[str, Any], pixels: int) -> dict[str, Any]:
    """Return a copy whose pictures are PNG files of at most so many pixels a side."""
    if "samples" not in found:
        return dict(found)
    samples = copy.deepcopy(found["samples"])
    for sample in samples:
        shown = sample["input"]
        if shown["kind"] == "picture":
            raw = np.frombuffer(base64.b64decode(shown.pop("pixels")), dtype=np.uint8)
            small = shrink(raw.reshape(shown["size"]), pixels)
            shown["size"] = list(small.shape)
            shown["png"] = base64.b64encode(encode_png(small.tobytes(), *small.shape)).decode()
    return {**found, "samples": samples}


def _with_samples(found: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Return a copy that lists at most so many of the worst samples, and of confident errors."""
    if "samples" not in found:
        return dict(found)
    lists = {name: found[name][:most] for name in ("worst", "confident") if name in found}
    kept = list(dict.fromkeys(index for listed in lists.values() for index in listed))
    samples = [found["samples"][index] for index in kept]
    moved = {name: [kept.index(index) for index in listed] for name, listed in lists.items()}
    return {**found, "samples": samples, **moved}
