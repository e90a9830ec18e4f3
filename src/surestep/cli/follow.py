"""Draw in a terminal again and again, for `--follow`."""

import sys
import time
from collections.abc import Callable, Hashable

from surestep.base.errors import ConfigError

_CLEAR = "\x1b[H\x1b[2J"
_POLL_S = 1.0
_SHARE = 0.2  # of the time goes to reading and drawing, at most


def follow(
    draw: Callable[[], str], stamp: Callable[[], Hashable], is_over: Callable[[], bool]
) -> None:
    """Draw when something has changed, until it is over or Ctrl-C.

    Args:
        draw: returns the text.
        stamp: of what is drawn; it changes when that does.
        is_over: whether nothing will change any more.

    Raises:
        ConfigError: the output is not a terminal.
    """
    if not sys.stdout.isatty():
        raise ConfigError("--follow draws in a terminal, and the output is none. Leave it out.")
    seen: Hashable = None
    try:
        while True:
            began, now, ends = time.perf_counter(), stamp(), is_over()
            if now != seen:
                print(f"{_CLEAR}{draw()}", flush=True)
                seen = now
            if ends:
                return
            time.sleep(max(_POLL_S, (time.perf_counter() - began) / _SHARE))
    except KeyboardInterrupt:  # the usual end
        print()
