"""What NCCL and torch tell of collectives, where that is asked for."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch._C._distributed_c10d import (
    get_debug_level,
    set_debug_level,
    set_debug_level_from_env,
)

from surestep.engine.distributed.rank_logging import FOLDER

# Sources: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html,
# https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html
VARIABLES: Mapping[str, str] = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET,COLL",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "TORCH_FR_BUFFER_SIZE": "2000",  # the newer name of it
    "TORCH_DISTRIBUTED_DEBUG": "INFO",
}
# How the path begins to which the flight recorder writes, the rank ends it; and its older name.
# torch looks when it writes, which is when a collective times out.
DUMP_TO = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
DUMP = "nccl-rank-"


@contextmanager
def nccl_debug_env(*, on: bool) -> Iterator[None]:
    """Set the variables while the process group is open; what the user has set stays.

    torch has read its own as it was imported, so it is told of it.
    """
    own = {name: value for name, value in VARIABLES.items() if on and name not in os.environ}
    level = get_debug_level() if own else None
    os.environ.update(own)
    try:
        if level is not None:
            set_debug_level_from_env()
        yield
    finally:
        for name in own:
            os.environ.pop(name, None)
        if level is not None:
            set_debug_level(level)


@contextmanager
def flight_recorder(folder: Path, *, on: bool) -> Iterator[None]:
    """Let what torch's flight recorder writes lie in a run folder; a place of the user's stays.

    Else it lies in ~/.cache/torch, where the next run writes over it.

    Raises:
        OSError: there can be no such folder.
    """
    if not on or any(name in os.environ for name in DUMP_TO):
        yield
        return
    place = folder.absolute() / FOLDER
    place.mkdir(exist_ok=True)
    os.environ[DUMP_TO[0]] = f"{place / DUMP}"
    try:
        yield
    finally:
        os.environ.pop(DUMP_TO[0], None)
