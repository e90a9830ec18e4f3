"""The process of a trial: `python -m surestep.tuning trial`; a worker starts it and sends a job.

It trains as `surestep train` does, in a run folder of the study. After each evaluation it sends
the metrics to the worker and waits for the answer: whether to prune. If the worker dies, the trial
saves and stops, and the next worker resumes it from there.
"""

import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from surestep.base.errors import NoTargetsError, Preempted, SurestepError
from surestep.base.exit_codes import FAILED, INTERRUPTED, STOPPED
from surestep.base.secrets import mask_secrets
from surestep.base.text import print_escaped
from surestep.engine.distributed.launcher_env import read_launched
from surestep.engine.step.callback import Callback, Stop
from surestep.recipes.find import find
from surestep.recipes.load import RecipeCall, call_recipe, load_file
from surestep.record.run import Run
from surestep.tracking.points import numbers_of
from surestep.trainer.evaluator import evaluate_run
from surestep.trainer.fit import fit
from surestep.trainer.prepare import prepare
from surestep.trainer.rank_zero import run_on_rank_zero
from surestep.trainer.scheduled import count_evaluations
from surestep.tuning.channel import SOCKET, Channel
from surestep.tuning.evaluations import PRUNED, read_measurements, read_result
from surestep.tuning.process import LONGEST_SAVE_S

if TYPE_CHECKING:
    from surestep.engine.state.state import State
    from surestep.engine.step.train_step import StepResult
    from surestep.engine.value import Metrics
    from surestep.trainer.session import Session

MODULE = "surestep.tuning"
_STEPS_S = 1.0  # between two messages that the trial takes steps


class WorkerLink:
    """The connection to the worker; when the worker is gone, the trial saves and stops.

    Args:
        channel: connected to the worker.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._answers: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._is_closing = False
        self._is_over = threading.Event()
        threading.Thread(target=self._receive, name="surestep-worker", daemon=True).start()

    def _receive(self) -> None:
        for message in self._channel.messages():
            self._answers.put(message)
        is_gone = not self._is_closing
        if is_gone:
            print_escaped("The worker of this trial is gone: saving and stopping.", sys.stderr)
            os.kill(os.getpid(), signal.SIGTERM)
        self._answers.put(None)  # after the signal, so that what waits for an answer stops then
        if is_gone and not self._is_over.wait(LONGEST_SAVE_S):  # it hangs, and locks its run
            os.kill(os.getpid(), signal.SIGKILL)

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Send a question and wait for the answer; it is empty if the worker is gone."""
        self._channel.send(question)
        answer = self._answers.get()
        if answer is None:
            self._answers.put(None)  # for the next question
        return answer or {}

    def send(self, message: dict[str, Any]) -> None:
        """Send a message that has no answer."""
        self._channel.send(message)

    def close(self) -> None:
        """Close the connection."""
        self._is_closing = True
        self._is_over.set()
        self._channel.close()


class Reporter(Callback):
    """Reports each evaluation to the worker, and ends the run if the worker prunes it.

    The ranks decide together, so that all of them stop after the step that was evaluated.

    Attributes:
        session: of the trial; set before its first step.
    """

    session: "Session"

    def __init__(self, link: WorkerLink) -> None:
        self._link = link
        self._evaluations: dict[int, dict[str, float]] = {}  # by step, in order
        self._reported = 0
        self._shown_at = -math.inf

    def on_start(self, state: "State") -> Stop | None:
        """Report the evaluations of the processes before this one; the last may prune the run."""
        if state.progress.step:
            if self.session.loop.world.is_first:
                self._evaluations = read_measurements(self.session.run).evaluations
            return self._report()
        return None

    def on_step(self, state: "State", result: "StepResult") -> None:
        """Show the worker that the trial trains."""
        now = time.monotonic()
        if now - self._shown_at >= _STEPS_S and self.session.loop.world.is_first:
            self._shown_at = now
            self._link.send({"step": state.progress.step})

    def on_evaluate(self, state: "State", metrics: "Metrics") -> Stop | None:
        """Report an evaluation."""
        step = state.progress.step
        undone = [at for at in self._evaluations if at >= step]  # by a rollback
        for at in undone:
            del self._evaluations[at]
        self._evaluations[step] = numbers_of(metrics)
        return self._report()

    def _report(self) -> Stop | None:
        """Report what is new; stop on all ranks if the worker prunes the run."""
        loop = self.session.loop

        def ask() -> bool:
            found = list(enumerate(self._evaluations.items(), 1))[self._reported :]
            if not found:
                return False
            self._reported = found[-1][0]
            new = [
                {"number": number, "of": self._estimate(number, step), "step": step}
                | {"metrics": values}
                for number, (step, values) in found
            ]
            return bool(self._link.ask({"evaluations": new}).get("prune"))

        if not run_on_rank_zero(loop.world, ask):
            return None
        reason = f"{PRUNED} after step {loop.state.progress.step}"
        self.session.messages.print_line(reason)
        return Stop(reason)

    def _estimate(self, number: int, step: int) -> int:
        """Return how many evaluations the run makes; if no plan says it, as often as so far."""
        planned = count_evaluations(self.session)
        return planned or round(number * self.session.plan.total_steps / max(step, 1))


def _train(call: RecipeCall, job: Mapping[str, Any], link: WorkerLink) -> dict[str, Any]:
    """Train or resume the run of a trial; return its result."""
    reporter, recipe = Reporter(link), call.recipe
    with prepare(
        call.task(),
        call.config,
        run=job["run"],
        callbacks=[*recipe.callbacks, reporter],
        trackers=recipe.trackers,
        origin=replace(call.origin, study=job["study"]),
    ) as session:
        reporter.session = session
        run = fit(session)
        parameters = sum(parameter.numel() for parameter in session.model.parameters())
    return read_result(run, parameters).as_json()


def _measure_test(call: RecipeCall, job: Mapping[str, Any]) -> dict[str, Any]:
    """Evaluate the best checkpoint of a run on the test split; None if it cannot be evaluated."""
    task = call.task()
    if task.test is None:
        return {"test": None}
    run = Run(Path(job["run"]))
    try:
        _, metrics = evaluate_run(
            run, task, call.config, split="test", which="best", warn=lambda text: print(text)
        )
    except NoTargetsError:
        return {"test": None}
    return {"test": {name: value for name, value in metrics.items() if isinstance(value, float)}}


def _do_job(job: Mapping[str, Any], link: WorkerLink) -> dict[str, Any]:
    recipe = load_file(find(job["recipe"]))
    call = call_recipe(recipe, job["options"], job["locations"])
    mirror, run = call.config.set_options().get("checkpoint.mirror"), Path(job["run"])
    if mirror is not None:  # it holds one run, so each trial has a folder in it
        names = [name for name in (job["study"], run.parent.name, run.name) if name]
        own = "/".join([str(mirror), *map(str, names)])
        call = replace(call, config=call.config.replace_options({"checkpoint.mirror": own}))
    return _measure_test(call, job) if job["do"] == "test" else _train(call, job, link)


def main(words: Sequence[str]) -> int:
    """Do the job of the worker; return the exit code.

    Args:
        words: the number of processes that train, if there are several.
    """
    launched = read_launched()
    if launched.size == 1 and words:
        from surestep.trainer.launch import launch_ranks  # which takes as long as torch

        return launch_ranks(MODULE, ["trial", *words], int(words[0]))
    channel = Channel.connect(os.environ.pop(SOCKET))
    channel.send({"rank": launched.rank})
    job = next(channel.messages(), None)
    if job is None:
        return STOPPED
    link = WorkerLink(channel)
    try:
        result = _do_job(job, link)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Preempted:
        return STOPPED
    except Exception as error:
        reason = mask_secrets(f"{type(error).__name__}: {error}")  # the study records it
        link.send({"failed": reason, "rank": launched.rank})
        text = str(error) if isinstance(error, SurestepError) else traceback.format_exc().rstrip()
        notes = getattr(error, "__notes__", []) if isinstance(error, SurestepError) else []
        text = "\n".join([f"{type(error).__name__}: {text}", *notes])
        print_escaped(mask_secrets(text), sys.stderr)  # the log of the trial
        return FAILED
    else:
        if launched.rank == 0:
            link.send({"result": result})
        return 0
    finally:
        link.close()
