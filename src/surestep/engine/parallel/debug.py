"""What NCCL and torch tell of collectives, where that is asked for."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch._C._distributed_c10d import (
    get_debug_level,
    set_debug_level,
    set_debug_level_from_env,
)

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


@contextmanager
def nccl_debug(*, on: bool) -> Iterator[None]:
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
