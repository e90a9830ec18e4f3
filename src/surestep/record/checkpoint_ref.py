"""The one way to name a checkpoint: `RUN@STEP`, `RUN@best`, `RUN@last`, or its folder."""

from pathlib import Path
from typing import Literal, NamedTuple

from surestep.base.errors import ConfigError, RunError, suggest_names
from surestep.base.paths import require_local_path
from surestep.record.checkpoint.discovery import is_checkpoint_dir
from surestep.record.checkpoint.manifest import MANIFEST
from surestep.record.checkpoint.reader import open_checkpoint
from surestep.record.checkpoint.state_json import CheckpointInfo, read_info
from surestep.record.run import Run, SelectedWeights

Which = int | Literal["best", "last"]


class CheckpointRef(NamedTuple):
    """A checkpoint that was named.

    Attributes:
        saved: the checkpoint.
        run: the run that it belongs to, or None for a folder that lies in none.
        which: how it was called: a step, "best" or "last".
    """

    saved: CheckpointInfo
    run: Run | None
    which: Which


def split_name(text: str) -> tuple[Path, Which | None]:
    """Cut "RUN@STEP", "RUN@best" or "RUN@last" at its @; None where nothing says which.

    A folder may have an @ in its own name: a run or checkpoint that is there is not cut.

    Raises:
        ConfigError: what stands behind the @ is none of these.
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
        f"{text!r} names no checkpoint: behind the @ comes a step, best or last, such as "
        f"{run or 'runs/digits'}@200. {suggest_names(which, ('best', 'last'))}"
    )


def find_checkpoint(text: str, *, otherwise: Literal["best", "last"] = "best") -> CheckpointRef:
    """Return the checkpoint that a text names.

    Args:
        text: "RUN@STEP", "RUN@best", "RUN@last", "RUN", or the folder of a checkpoint.
        otherwise: which of a run's is meant where the text does not say.

    Raises:
        ConfigError: the text names none.
        RunError: there is no such run.
        CheckpointError: the run has no such checkpoint, or it cannot be read.
    """
    path, which = split_name(text)
    if which is None and is_checkpoint(path):
        found = read_info(path)
        return CheckpointRef(found, run_of(path), found.step)
    run = _run(path)
    which = otherwise if which is None else which
    return CheckpointRef(run.saved(which), run, which)


def resolve_checkpoint(text: str) -> tuple[SelectedWeights, Run | None]:
    """Verify the checkpoint that a text names; return it, and the run it belongs to.

    Raises:
        as find_checkpoint, and DamagedError: a byte is not what was written.
    """
    path, which = split_name(text)
    if which is None and is_checkpoint(path):
        opened = open_checkpoint(path)
        return SelectedWeights(opened.saved, opened, average=False), run_of(path)
    run = _run(path)
    return run.choose("best" if which is None else which), run


def find_folder(text: str) -> Path:
    """Return the folder of the checkpoint that a text names, which may be damaged.

    Raises:
        as find_checkpoint.
    """
    path, which = split_name(text)
    if which is None and is_checkpoint(path):
        return path
    run = _run(path)
    if isinstance(which, int):
        return run.folder_of(which)
    return run.saved(which or "best").path


def _run(path: Path) -> Run:
    if not path.exists():
        raise RunError(f"There is no run folder or checkpoint {path}. Check the path.")
    if not is_run(path):
        raise RunError(f"{path} is no run folder and no checkpoint: look for the one above it.")
    return Run(path)


def is_run(path: Path) -> bool:
    """Say whether a folder holds a run."""
    return (path / "config.json").is_file()


def is_checkpoint(path: Path) -> bool:
    """Say whether a folder is a checkpoint, wherever it was copied to."""
    return (path / MANIFEST).is_file() or is_checkpoint_dir(path)


def run_of(checkpoint: Path) -> Run | None:
    """Return the run that a checkpoint's folder lies in."""
    above = checkpoint.resolve().parent
    return Run(above.parent) if above.name == "checkpoints" and is_run(above.parent) else None
