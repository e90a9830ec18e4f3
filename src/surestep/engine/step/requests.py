"""What is requested of a loop beside the steps: to stop, pause, save or evaluate."""

from surestep.base.errors import WorkerError
from surestep.engine.distributed.communicator import WORDS, WORKER_DIED, Communicator
from surestep.engine.step.callback import Request

_REASONS = {"pause": "a callback asked to pause", "max_time": "max_time is over"}


class Requests:
    """The requests that are not done yet; several ranks agree on them after a step.

    Attributes:
        stopping: why the loop stops after this step; None while it continues.
        interrupted: why the run pauses after this step, such as "Ctrl-C"; empty while it does not.
        asked: the saves and evaluations that are requested.
    """

    def __init__(self, world: Communicator) -> None:
        self._world = world
        self.stopping: str | None = None
        self.interrupted = ""
        self.asked: list[Request] = []
        self._worker_error: WorkerError | None = None

    def ask(self, word: str) -> None:
        """Do what a word of `WORDS` says after this step; several ranks do it after the next.

        Before the first step it is done when the loop starts.
        """
        if self._world.size > 1:
            self._world.requests.add(word)
        else:
            self._apply(word)

    def _apply(self, word: str) -> None:
        if word == Request.STOP.value:
            self.stopping = "a callback asked to stop"
        elif word in (Request.SAVE.value, Request.EVALUATE.value):
            self.asked.append(Request(word))
        else:
            self.interrupted = _REASONS.get(word, word)
            self.stopping = self.stopping or self.interrupted

    def apply_agreed(self) -> None:
        """Apply what one of the ranks requested from all of them."""
        agreed, self._world.agreed = self._world.agreed, set()
        for word in WORDS:
            if word in agreed:
                self._apply(word)

    def take(self) -> list[Request]:
        """Return the saves and evaluations that are requested, each once, and forget them."""
        asked, self.asked = list(dict.fromkeys(self.asked)), []
        return asked

    def undo(self) -> None:
        """Forget what steps requested that are undone; an interruption stays."""
        self.asked = []
        if not self.interrupted:
            self.stopping = None

    def stop_together(self, error: WorkerError) -> bool:
        """Request that all ranks stop because a data worker died; return whether to start new ones.

        The step at which the ranks agree needs a batch of each of them.
        """
        if self._world.size == 1 or self._worker_error is not None:
            return False
        self._worker_error = error
        self.ask(WORKER_DIED)
        return True

    def check_workers(self) -> None:
        """Check that no rank stopped for a data worker that died.

        Raises:
            WorkerError: one did.
        """
        if self.interrupted == WORKER_DIED:
            raise self._worker_error or WorkerError("A data worker of another rank died.")
