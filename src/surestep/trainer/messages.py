"""What a run reports to its user while it runs."""

from surestep.engine.state.state import State
from surestep.record.progress_display import NullProgress
from surestep.record.run_writer import RunWriter


class Messages:
    """Prints lines beside the progress; a notice is also written to the events.

    Args:
        recorder: of the run folder.
        state: knows the step.

    Attributes:
        display: of the progress; one that shows nothing before `show_on()`.
    """

    def __init__(self, recorder: RunWriter, state: State) -> None:
        self._recorder, self._state = recorder, state
        self._once: set[str] = set()
        self.display = NullProgress()

    def show_on(self, display: NullProgress) -> None:
        """Print to a display from now on.

        Args:
            display: of the progress.
        """
        self.display = display

    def print_line(self, text: str) -> None:
        """Print a line.

        Args:
            text: the line.
        """
        self.display.print_line(text)

    def notify(self, text: str) -> None:
        """Print a line and write it to the events.

        Args:
            text: the line.
        """
        self._recorder.event("notice", step=self._state.progress.step, text=text)
        self.print_line(text)

    def notify_once(self, text: str) -> None:
        """Print a line and write it to the events, if this text was not before.

        Args:
            text: the line; an empty one is not printed.
        """
        if text and text not in self._once:
            self._once.add(text)
            self.notify(text)
