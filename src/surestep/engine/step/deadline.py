"""The time after which a run pauses."""

import math
import time
from collections.abc import Callable

from surestep.engine.batch import Batch
from surestep.engine.state.state import State
from surestep.engine.step.part import Part

MAX_TIME = "max_time"


class Deadline(Part):
    """Pauses a run that is out of time, in a step or in an evaluation.

    Args:
        at: in seconds of `time.monotonic()`.
        request: called once, with MAX_TIME.
    """

    def __init__(self, at: float, request: Callable[[str], None]) -> None:
        self._at, self._request = at, request

    def on_batch(self, state: State, batch: Batch) -> None:
        """Check before a step, if its batch is of the training data."""
        if batch.end > batch.position:
            self.on_eval_batch(state)

    def on_eval_batch(self, state: State) -> None:
        """Check the time."""
        if time.monotonic() >= self._at:
            self._at = math.inf
            self._request(MAX_TIME)
