"""The folder of a run: where it is, and how it is opened, with its mirror."""

import itertools
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from surestep.base.errors import ConfigError, RunError
from surestep.base.locations import is_recorded
from surestep.base.paths import cache_folder, check_mirror_address, check_slashes, fix_path
from surestep.base.text import print_escaped
from surestep.config.config import Config
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.distributed.launcher_env import LaunchInfo
from surestep.engine.plan.plan import Plan
from surestep.mirror.link import find_address, read_copied
from surestep.record.io import os_error_hint
from surestep.record.run_writer import RunWriter
from surestep.trainer.planning import TaskOrigin

if TYPE_CHECKING:
    from surestep.mirror.uploader import Uploader


class RunFolder(NamedTuple):
    """The folder that a caller chose for a run.

    Attributes:
        path: None is a new one.
        is_cache: it is the local folder of a run that is given by the address of its mirror.
    """

    path: Path | None
    is_cache: bool = False


def check_restarts(launched: LaunchInfo, folder: RunFolder) -> None:
    """Raise an error if the launcher restarts processes that have no run folder."""
    if folder.path is None and launched.restarts:
        raise ConfigError(
            "No run folder is set, and the launcher restarts the processes up to "
            f"{launched.restarts} times: each restart would begin a new run. Set --run-folder "
            "runs/NAME (run= in Python)."
        )


def resolve_address(config: Config, run: str | Path | None) -> tuple[Config, RunFolder]:
    """Return the run folder, with the mirror in the Config if the run is given by its address."""
    try:
        if run is None or (found := find_address(run)) is None:
            check_slashes(str(run))
            return config, RunFolder(None if run is None else Path(run))
        address = check_mirror_address(found)
    except ValueError as error:
        raise ConfigError(f"The run folder is an address, which {error}.") from None
    known = config.set_options().get("checkpoint.mirror")
    if known not in (None, address):
        raise ConfigError(
            f"The run folder is {address}, and checkpoint.mirror is {known}: a run has one mirror. "
            "Set only one of them."
        )
    config = config.replace_options({"checkpoint.mirror": address})
    return config, RunFolder(cache_folder(address), is_cache=True)


def open_folder(
    folder: RunFolder,
    start: str | None,
    origin: TaskOrigin,
    plan: Plan,
    world: Communicator,
    mirrors: "list[Uploader]",
) -> RunWriter:
    """Open the run folder on rank 0; append its mirror, from which a cache folder is filled.

    `start` is the working directory before the model was built.
    """
    path = fix_path(folder.path or default_folder(origin.name, start), start)
    is_new, address = folder.path is None, plan.checkpoint_mirror
    if address is None and read_copied(path) is None:
        return RunWriter(path, made=is_new, world=world)
    # Most runs have no mirror, and it takes 5 ms to import.
    from surestep.mirror.open import adopt_copy, check_typed, open_mirror

    adopt_copy(path)
    if address is None:
        return RunWriter(path, made=is_new, world=world)
    if not folder.is_cache and is_recorded(origin.set_options.get("checkpoint.mirror")):
        check_typed(address, path)
    show = partial(print_escaped, file=sys.stderr)
    mirrors.append(open_mirror(address, path, show, is_source=folder.is_cache))
    delete = mirrors[-1].pusher.delete_abandoned
    return RunWriter(path, made=is_new, world=world, delete_abandoned=delete)


def default_folder(name: str, start: str | None = None) -> Path:
    """Make `runs/<name>-<time>`, with a number after it if that exists."""
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for count in itertools.count(1):
        folder = Path("runs") / (stem if count == 1 else f"{stem}-{count}")
        try:
            fix_path(folder, start).mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise RunError(
                f"{folder} cannot be created: {error.strerror}. {os_error_hint(error)}"
            ) from error
        return folder
    raise AssertionError("count() has no end")
