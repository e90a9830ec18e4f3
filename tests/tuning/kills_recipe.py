"""The recipe of searches that are attacked: steps can take time without the processor, or hang."""

import os
import signal
import time
from typing import Any

import surestep
from tests.tuning.recipe import config, task

__all__ = ["callbacks", "config", "task"]
PAUSE = "PAUSE_OF_A_STEP_S"  # in the environment
HANGS = "HIDDEN_OF_TRIALS_THAT_HANG"


class Pause(surestep.Callback):
    """Waits after each step, so that a trial can be killed while it trains."""

    def on_step(self, state: surestep.State, result: Any) -> None:
        time.sleep(float(os.environ.get(PAUSE, 0)))


class Hang(surestep.Callback):
    """Hangs after the fifth step of a model with a certain width, whatever signal arrives."""

    def on_step(self, state: surestep.State, result: Any) -> None:
        width = next(state.model.parameters()).shape[0]
        if result.step == 5 and str(width) == os.environ.get(HANGS):
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            while True:
                time.sleep(60)


callbacks = [Pause(), Hang()]
