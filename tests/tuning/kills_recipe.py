"""The recipe of searches that are killed: its steps can take time without using the processor."""

import os
import time
from typing import Any

import surestep
from tests.tuning.recipe import config, task

__all__ = ["callbacks", "config", "task"]
PAUSE = "PAUSE_OF_A_STEP_S"  # in the environment


class Pause(surestep.Callback):
    """Waits after each step, so that a trial can be killed while it trains."""

    def on_step(self, state: surestep.State, result: Any) -> None:
        time.sleep(float(os.environ.get(PAUSE, 0)))


callbacks = [Pause()]
