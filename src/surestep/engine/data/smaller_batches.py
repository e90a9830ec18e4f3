"""Read data again in smaller micro-batches if memory runs out on it."""

from collections.abc import Callable
from typing import Any, TypeVar

from surestep.base.errors import OutOfMemoryError
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.device import clear_frames, describe_memory, ran_out, release_memory

T = TypeVar("T")
# Called with the size that ran out and what is recorded of the error; whether to call it again.
Retry = Callable[[int, dict[str, Any]], bool]


def retry_in_smaller_batches(function: Callable[[], T], loader: BatchLoader, retry: Retry) -> T:
    """Return what a function returns, which reads all of a loader and restores what it changes.

    If memory runs out, it is called again with micro-batches of half the size. The batches stay as
    they are, so options that count batches keep their meaning.

    Args:
        function: is called without arguments.
        loader: what it reads.
        retry: called before each further call.

    Raises:
        OutOfMemoryError: of the function, if one sample is too large, or `retry` returns False.
    """
    while True:
        layout = loader.layout
        size = min(layout.micro_batch_size, layout.batch_size, layout.samples or layout.batch_size)
        try:
            return function()
        except (RuntimeError, MemoryError, OutOfMemoryError) as error:
            if size < 2 or not (ran_out(error) or isinstance(error, OutOfMemoryError)):
                raise
            found = describe_memory(error, loader.device)
            if not retry(size, found):
                raise
            clear_frames(error)
        release_memory(loader.device)
        loader.split_into(size // 2)
