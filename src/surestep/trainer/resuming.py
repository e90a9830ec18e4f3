"""What a run was asked to be, and whether the folder's run may go on as that."""

from pathlib import Path
from typing import Any, Literal

from surestep.base.errors import CheckpointError, RunError
from surestep.engine.data.dataset import dataset_of
from surestep.engine.data.stream import Reader, fingerprint, is_stream
from surestep.record.checkpoint.listing import list_checkpoints
from surestep.record.files import plain
from surestep.record.recorder import Recorder
from surestep.trainer.planning import Origin, Planned, train_samples

Resume = Literal["auto", "never", "must"]


def asked_of(origin: Origin, planned: Planned) -> dict[str, Any]:
    """Return what must be the same for a run to go on."""
    return {
        "format": 1,
        "recipe": plain(dict(origin.recipe)),
        "task": plain(dict(origin.parameters)),
        "config": plain(planned.config.said()),
        "data": _data(planned),
    }


def _data(planned: Planned) -> dict[str, Any]:
    """Return what the training data is known by: how many samples, or how a stream begins."""
    task = planned.task
    if not is_stream(task.train):
        skips = planned.plan.skip_samples
        left_out = {} if skips is None else {"skip_samples": list(skips.samples)}
        return {"train samples": train_samples(task, skips), **left_out}
    reader = Reader(dataset_of(planned.task.train, "train"), planned.plan.seed)
    workers = max(1, planned.plan.data_num_workers)  # one gives the same order as none
    return {"data.num_workers": workers, "first samples": fingerprint(reader)}


def is_finished(recorder: Recorder) -> bool:
    """Say whether the folder holds a run that is done."""
    return recorder.run.status.get("status") == "finished"


def where_it_stands(recorder: Recorder, asked: dict[str, Any], resume: Resume) -> Path | None:
    """Return the checkpoint to go on from; None starts anew."""
    if recorder.known and resume == "never":
        raise RunError(
            f"{recorder.folder} holds a run already, and resume is 'never'. Choose another "
            "folder with --run (run= in Python)."
        )
    found = list_checkpoints(recorder.checkpoints)
    if recorder.known and (found or is_finished(recorder)):
        recorder.check_same(asked)
    if resume == "must" and not (found and recorder.known):
        raise CheckpointError(
            f"{recorder.folder} has no checkpoint to go on from, and resume is 'must'."
        )
    return found[-1] if found and recorder.known else None
