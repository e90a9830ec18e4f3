"""Which errors say that another rank is missing, and not that something here is wrong."""

import torch.distributed as dist

_GIVEN_UP = "Application timeout caused pair closure"  # gloo, of what it sends from C++
_OF_GLOO = ("/gloo/", "gloo::", "Connection closed by peer", "Connection reset by peer", _GIVEN_UP)
_TIMED_OUT = (
    "Timed out waiting",
    "Watchdog caught collective operation timeout",
    "timed out",
    _GIVEN_UP,
)


def is_of_network(error: BaseException) -> bool:
    """Say whether an error of a collective is that another rank did not answer or is gone."""
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(each in str(error) for each in _OF_GLOO)


def timed_out(error: BaseException) -> bool:
    """Say whether it is that nobody answered in time."""
    return any(each in str(error) for each in _TIMED_OUT)
