"""What measures an open run: its parts of the data, by the weights or their average."""

from surestep.base.errors import ConfigError, near
from surestep.engine.average import Average
from surestep.engine.data.feed import Feed
from surestep.engine.evaluate import evaluate_parts
from surestep.engine.loop import Loop
from surestep.engine.plan import Plan
from surestep.engine.recompute import recompute_statistics
from surestep.engine.task import Task


class Gauge:
    """Measures the loss and the metrics on parts of the data, with what the model holds.

    Args:
        plan: what was decided.
        task: its metrics and validation sets.
        loop: its model and loss.
        feeds: of each part that can be measured.
    """

    def __init__(self, plan: Plan, task: Task, loop: Loop, feeds: dict[str, Feed]) -> None:
        self.plan = plan
        self.task = task
        self.loop = loop
        self.feeds = feeds

    def check(self, part: str | None) -> None:
        """Check that there is such a part; None is all validation sets.

        Raises:
            ConfigError: there is not.
        """
        if part is not None and part not in self.feeds:
            raise ConfigError(f"There is no data called {part!r}. {near(part, self.feeds)}")
        if part is not None and self.task.loss is None:
            raise ConfigError("The Task has no loss to measure. Say Task(loss=...).")

    def measure(self, part: str | None) -> dict[str, float]:
        """Return the metrics of a part, or of all validation sets, by "part/metric"."""
        parts = list(self.task.val_sets()) if part is None else [part]
        return evaluate_parts(
            self.loop.state.model,
            {part: self.feeds[part] for part in parts},
            self.loop.parts.loss,
            self.task.metrics,
            autocast=self.loop.parts.autocast,
        )

    def average(self) -> Average | None:
        """Return the average of the weights, ready to be used; None where there is none yet."""
        average, place = self.loop.state.average, self.loop.state.place
        if average is None or not average.updates(place.steps_taken):
            return None
        recompute_statistics(average, self.loop.parts, self.task, self.plan)
        return average

    def close(self) -> None:
        """Let the workers go."""
        for feed in self.feeds.values():
            feed.close()
