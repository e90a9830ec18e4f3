"""What a run was asked to be, and whether the folder's run may go on as that."""

from typing import Any, Literal

from surestep.base.errors import CheckpointError, RunError
from surestep.engine.data.dataset import dataset_of
from surestep.engine.data.stream import Reader, fingerprint, is_stream
from surestep.record.checkpoint.opened import Opened
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
    """Say whether the folder holds a run that is done, and its last checkpoint is good."""
    if not recorder.known or recorder.run.status.get("status") != "finished":
        return False
    newest = recorder.newest()
    return newest is None or newest.manifest.step >= recorder.run.status.get("step", 0)


def where_it_stands(recorder: Recorder, asked: dict[str, Any], resume: Resume) -> Opened | None:
    """Return the newest good checkpoint, to go on from; None starts anew.

    Raises:
        RunError: the folder's run may not go on as that.
        CheckpointError: none is good, or there is none and there must be.
    """
    if recorder.known and resume == "never":
        raise RunError(
            f"{recorder.folder} holds a run already, and resume is 'never'. Choose another "
            "folder with --run (run= in Python)."
        )
    found = recorder.newest() if recorder.known else None
    if found is not None or is_finished(recorder):
        recorder.check_same(asked)
    if resume == "must" and found is None:
        raise CheckpointError(
            f"{recorder.folder} has no checkpoint to go on from, and resume is 'must'."
        )
    return found
