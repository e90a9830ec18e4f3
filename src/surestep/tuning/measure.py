"""A measuring process: `python -m surestep.tuning measure`; `surestep tune` starts it, and asks.

It holds arms, and answers one question after another. If the tuner dies, so does the process. Each
rank answers every question; they take the steps together.
"""

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from surestep.base.errors import SurestepError
from surestep.base.exit_codes import DONE, FAILED
from surestep.base.processes import kill_tree, list_children
from surestep.base.secrets import mask_secrets
from surestep.engine.distributed.hang_monitor import GroupTimeouts
from surestep.engine.distributed.launcher_env import read_launched
from surestep.engine.distributed.process_group import join_process_group
from surestep.laws.record import Place
from surestep.tuning.channel import SOCKET, Channel
from surestep.tuning.speed.arm import Arm, load_call, plan_recipe
from surestep.tuning.speed.knob import NotTried
from surestep.tuning.speed.list_knobs import list_knobs
from surestep.tuning.speed.machine import read_machine
from surestep.tuning.speed.traced_step import with_traced_step
from surestep.tuning.speed.whole_run import measure_whole_run

if TYPE_CHECKING:
    from surestep.engine.distributed.communicator import Communicator
    from surestep.engine.plan.plan import Plan

MODULE = "surestep.tuning"
_POLL_S = 1.0  # between two checks that the tuner is alive


class Measurements:
    """What a measuring process has: its arms by name, and the ranks.

    Args:
        recipe: name or path of what is trained.
    """

    def __init__(self, recipe: str) -> None:
        self._recipe = recipe
        self._arms: dict[str, Arm] = {}
        self._stack = ExitStack()
        self._world: Communicator | None = None
        self._questions: Mapping[str, Callable[..., dict[str, Any]]] = {
            "describe": self.describe,
            "open": self.open,
            "rewind": self.rewind,
            "window": self.take_window,
            "measure_shares": self.measure_shares,
            "measure_whole": self.measure_whole,
            "close": self.close,
            "train": self.train,
            "record": self.record,
        }

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Do what is asked for; return the answer."""
        arguments = dict(question)
        return self._questions[arguments.pop("do")](**arguments)

    def describe(self, options: Mapping[str, Any], knobs: Sequence[str]) -> dict[str, Any]:
        """Plan a run; return what it is, and what each knob has to try, or why nothing."""
        planned = with_traced_step(plan_recipe(self._recipe, options).planned)
        plan, system, every = planned.plan, planned.system, list_knobs()
        candidates: dict[str, Any] = {}
        present: dict[str, Any] = {}
        for name in knobs:
            try:
                candidates[name] = [dict(one) for one in every[name].candidates(plan, system)]
                if every[name].is_count:
                    (option,) = candidates[name][0]
                    present[option] = getattr(plan, option.replace(".", "_"))
            except NotTried as reason:
                candidates[name] = str(reason)
        return {
            "total_steps": plan.total_steps,
            "steps_per_epoch": plan.steps_per_epoch,
            "seed": plan.seed,
            "candidates": candidates,
            "present": present,
            "machine": read_machine(system, plan.device),
            "intervals": {
                "validation.every": str(plan.validation_every),
                "checkpoint.every": str(plan.checkpoint_every),
                "logging.every": str(plan.logging_every),
            },
        }

    def open(self, arm: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Open an arm, and take its first steps."""
        made = self._arms[arm] = self._make_arm(options)
        made.warm_up()
        return {}

    def _make_arm(self, options: Mapping[str, Any]) -> Arm:
        recipe = plan_recipe(self._recipe, options)
        return Arm(recipe, self._join(recipe.planned.plan))

    def _join(self, plan: "Plan") -> "Communicator":
        """Return the ranks, which are the same for all arms."""
        if self._world is None:
            timeouts = GroupTimeouts(plan.parallel_start_timeout_s, plan.parallel_timeout_s)
            joined = join_process_group(
                read_launched(), backend=plan.parallel_backend, timeouts=timeouts
            )
            self._world = self._stack.enter_context(joined)
        return self._world

    def rewind(self, arm: str) -> dict[str, Any]:
        """Let an arm read its data from the start again."""
        self._arms[arm].rewind()
        return {}

    def take_window(self, arm: str, steps: int) -> dict[str, Any]:
        """Time steps of an arm, after its first epoch if one of the arms keeps images."""
        revisits = any(one.keeps_images for one in self._arms.values())
        return self._arms[arm].take_compared_window(steps, revisits=revisits)

    def measure_shares(self, arm: str, steps: int) -> dict[str, Any]:
        """Measure where the time of an arm's steps goes; return the shares, and lines about it."""
        found = self._arms[arm].measure_shares(steps)
        return {"shares": found.shares, "lines": found.describe(), "measured": found.as_dict()}

    def measure_whole(self, options: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Measure the parts of a run with options, in a temporary folder."""
        call = load_call(self._recipe, options)
        found = measure_whole_run(call.task(), call.config, seconds=seconds, origin=call.origin)
        return {"whole": asdict(found)}

    def close(self, arm: str) -> dict[str, Any]:
        """End an arm."""
        self._arms.pop(arm).close()
        return {}

    def train(self, options: Mapping[str, Any], steps: int) -> dict[str, Any]:
        """Train from the start; return the losses."""
        with closing(self._make_arm(options)) as arm:
            return {"losses": arm.train(steps)}

    def record(
        self, options: Mapping[str, Any], steps: int, place: Sequence[Any] | None
    ) -> dict[str, Any]:
        """Train from the start; return what the steps computed, as the first rank did.

        Args:
            options: of the run.
            steps: how many are taken.
            place: of a tensor that is kept.
        """
        with closing(self._make_arm(options)) as arm:
            return {"record": arm.record(steps, None if place is None else Place(*place)).to_json()}


def _end_with_parent() -> None:
    """End this process and its children when the one that started it is gone, whatever runs."""
    parent = os.getppid()

    def wait() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_S)
        kill_tree(*list_children(os.getpid()))
        os._exit(FAILED)

    threading.Thread(target=wait, name="surestep-tuner", daemon=True).start()


def main(words: Sequence[str]) -> int:
    """Answer the questions of the tuner until it closes the connection; return the exit code.

    Args:
        words: the number of processes that train, if there are several.
    """
    _end_with_parent()
    launched = read_launched()
    if launched.size == 1 and words:
        from surestep.trainer.launch import launch_ranks  # which takes as long as torch

        return launch_ranks(MODULE, ["measure", *words], int(words[0]))
    channel = Channel.connect(os.environ.pop(SOCKET))
    channel.send({"rank": launched.rank})
    questions = channel.messages()
    first = next(questions, None)
    if first is None:
        return DONE
    measurements = Measurements(first["recipe"])
    for question in questions:
        try:
            answer = measurements.answer(question)
        except Exception as error:
            if not isinstance(error, SurestepError):
                traceback.print_exc()
            text = mask_secrets(str(error) or type(error).__name__)
            channel.send({"failed": text, "kind": type(error).__name__})
            os._exit(FAILED)  # what failed may keep memory, or hang at its end
        channel.send(answer)
    sys.stdout.flush()
    os._exit(DONE)  # the tuner is gone, or needs this process no longer
