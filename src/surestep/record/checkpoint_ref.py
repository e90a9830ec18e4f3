"""Find a checkpoint by its name: `RUN@STEP`, `RUN@best`, `RUN@last`, `RUN`, or its folder."""

from pathlib import Path
from typing import Literal, NamedTuple

from surestep.base.errors import ConfigError, RunError, suggest_names
from surestep.base.paths import require_local_path
from surestep.record.checkpoint.discovery import is_checkpoint_dir
from surestep.record.checkpoint.manifest import MANIFEST
from surestep.record.checkpoint.reader import CheckpointInfo, open_checkpoint, read_info
from surestep.record.run import Run, SelectedWeights

Which = int | Literal["best", "last"]


class CheckpointRef(NamedTuple):
    """A checkpoint that was found by name.

    `run` is None if its folder is not in a run.
    """

    saved: CheckpointInfo
    run: Run | None
    which: Which


def split_name(text: str) -> tuple[Path, Which | None]:
    """Split "RUN@STEP", "RUN@best" or "RUN@last" at its @; None if there is none.

    An existing run or checkpoint with an @ in its own name is not split.

    Raises:
        ConfigError: what follows the @ is none of these.
        RunError: it is an address.
    """
    require_local_path(text)
    run, at, which = text.rpartition("@")
    if not at or is_run(Path(text)) or is_checkpoint(Path(text)):
        return Path(text), None
    if run and which.isascii() and which.isdecimal():
        return Path(run), int(which)
    if run and which in ("best", "last"):
        return Path(run), "best" if which == "best" else "last"
    raise ConfigError(
        f"{text!r} does not name a checkpoint: after the @ comes a step, best or last, such as "
        f"{run or 'runs/digits'}@200. {suggest_names(which, ('best', 'last'))}"
    )


def find_checkpoint(text: str) -> CheckpointRef:
    """Return the checkpoint that a text names; "RUN" means its best one.

    Raises:
        ConfigError: the text does not name one.
        RunError: there is no such run.
        CheckpointError: the run has no such checkpoint, or it cannot be read.
    """
    path, which = split_name(text)
    if which is None and is_checkpoint(path):
        saved = read_info(path)
        return CheckpointRef(saved, _run_of(path), saved.step)
    run = _open_run(path)
    return CheckpointRef(run.saved(which or "best"), run, which or "best")


def resolve_checkpoint(text: str) -> tuple[SelectedWeights, Run | None]:
    """Verify the checkpoint that a text names; return it, and the run it belongs to."""
    path, which = split_name(text)
    if which is None and is_checkpoint(path):
        opened = open_checkpoint(path)
        return SelectedWeights(opened.saved, opened, average=False), _run_of(path)
    run = _open_run(path)
    return run.choose("best" if which is None else which), run


def find_folder(text: str) -> Path:
    """Return the folder of the checkpoint that a text names; it may be corrupted."""
    path, which = split_name(text)
    if which is None and is_checkpoint(path):
        return path
    run = _open_run(path)
    return run.folder_of(which) if isinstance(which, int) else run.saved(which or "best").path


def _open_run(path: Path) -> Run:
    if not path.exists():
        raise RunError(f"There is no run folder or checkpoint {path}. Check the path.")
    if not is_run(path):
        raise RunError(f"{path} is not a run folder or a checkpoint. Check the path.")
    return Run(path)


def is_run(path: Path) -> bool:
    """Return whether a folder is a run, perhaps one that lost its config.json."""
    if (path / "config.json").is_file():
        return True
    return (path / "status.json").is_file() and (path / "events.jsonl").is_file()


def is_checkpoint(path: Path) -> bool:
    """Return whether a folder is a checkpoint, inside a run or not."""
    return (path / MANIFEST).is_file() or is_checkpoint_dir(path)


def _run_of(checkpoint: Path) -> Run | None:
    above = checkpoint.resolve().parent
    return Run(above.parent) if above.name == "checkpoints" and is_run(above.parent) else None
