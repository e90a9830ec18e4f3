"""How long a rank waits for the others: long before the first step is done, then short.

The first step compiles, and reads what nobody has read before. A checkpoint that one rank writes
lets the others wait as long as that.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from torch.distributed.distributed_c10d import _set_pg_timeout


class GroupTimeouts:
    """The timeouts of process groups.

    Args:
        start_s: until the first step is done, and while one rank does what the others wait for.
        later_s: after that.
    """

    def __init__(self, start_s: float, later_s: float) -> None:
        self.start_s = start_s
        self.later_s = later_s
        self.groups: Sequence[Any] = ()
        self._is_settled = False
        self._waits = 0

    @property
    def seconds(self) -> float:
        """How long is waited now."""
        return self.later_s if self._is_settled and not self._waits else self.start_s

    def use_steady_timeout(self) -> None:
        """Wait the shorter time from now on."""
        if not self._is_settled:
            self._is_settled = True
            self._set()

    @contextmanager
    def long_timeout(self) -> Iterator[None]:
        """Wait the longer time meanwhile."""
        self._waits += 1
        self._set()
        try:
            yield
        finally:
            self._waits -= 1
            self._set()

    def _set(self) -> None:
        """Tell the groups. torch has no public way; torchtitan does the same.

        Source: https://github.com/pytorch/torchtitan/blob/main/torchtitan/distributed/utils.py
        """
        for group in self.groups:
            _set_pg_timeout(timedelta(seconds=self.seconds), group)
