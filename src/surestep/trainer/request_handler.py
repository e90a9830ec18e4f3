"""What a run does when one of its parts requests something."""

from collections.abc import Callable

from surestep.engine.state.state import State
from surestep.engine.step.callback import Request
from surestep.engine.step.part import Part


class RequestHandler(Part):
    """Does what parts request; `fit()` acts on its options meanwhile.

    Args:
        save: saves the state.
        evaluate: evaluates all validation sets.
    """

    def __init__(self, save: Callable[[], object], evaluate: Callable[[], object]) -> None:
        self._handlers = {Request.SAVE: save, Request.EVALUATE: evaluate}

    def use(self, request: Request, handler: Callable[[], object]) -> None:
        """Do something else for a request from now on.

        Args:
            request: a save or an evaluation.
            handler: does what is requested.
        """
        self._handlers[request] = handler

    def on_request(self, state: State, request: Request) -> None:
        """Do what was requested."""
        self._handlers[request]()
