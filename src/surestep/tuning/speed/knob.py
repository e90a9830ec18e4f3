"""A knob: options that may make a run faster. Each module in `knobs/` is one.

A module has

- its docstring: the first line is the title of the knob, the rest says when it helps;
- `SHARES`: the parts of the time that it can shorten, of `PARTS`;
- `KEEPS_NUMBERS`: whether it trains bitwise the same weights, which is proved before it is taken;
- `candidates(plan, system)`: returns the options to try, by full name, in order, or raises
  `NotTried` with the reason why there is nothing to try;
- `IS_PROCESS_WIDE`, if it is True: the options set something of the process, such as its threads,
  so they are compared between two processes;
- `BEGINS_IN_EPOCH_2`, if it is True: the options make no step faster before. So samples are timed
  that were read before, the first epoch counts as a part of the start, and the proof goes beyond;
- `STARTS_SLOWLY`, if it is True: a start takes so long that others of about the same share come
  first;
- `IS_COUNT`, if it is True: it tries counts of one option. If one is slower than what is kept,
  those beyond it are not tried.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import SystemInfo

Options = Mapping[str, Any]

# "data" is the time in which a step waits for its batch, "host" that of Python and of launching
# operations, beside the other parts.
PARTS = (
    *("data", "host", "forward", "backward", "optimizer", "communication"),
    *("evaluation", "checkpoint", "logging"),
)


class NotTried(Exception):
    """There is nothing to try; the message says why."""


@dataclass(frozen=True)
class Knob:
    """A knob, as its module declares it.

    Attributes:
        name: of the module, such as "workers".
        title: the first line of its docstring.
        shares: the parts of the time that it can shorten.
        keeps_numbers: it trains bitwise the same weights.
        candidates: returns the options to try for a Plan, on a machine.
        is_process_wide: it is compared between two processes.
        begins_in_epoch_2: its options make no step faster before.
        starts_slowly: others of about the same share come first.
        is_count: it tries counts of one option.
    """

    name: str
    title: str
    shares: tuple[str, ...]
    keeps_numbers: bool
    candidates: Callable[[Plan, SystemInfo], Sequence[Options]]
    is_process_wide: bool = False
    begins_in_epoch_2: bool = False
    starts_slowly: bool = False
    is_count: bool = False
