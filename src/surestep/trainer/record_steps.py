"""What the events of a run keep of each step."""

from surestep.engine.device import peak_memory
from surestep.engine.state.state import State
from surestep.engine.step.log_point import LogPoint
from surestep.engine.step.loop import Loop
from surestep.engine.step.part import Part
from surestep.record.run_writer import RunWriter
from surestep.trainer.incidents import sample_indices


class RecordSteps(Part):
    """Writes each log point and each skipped step to the events; the first rank does.

    Args:
        recorder: of the run folder.
        loop: has the device, and knows the samples of a batch.
    """

    def __init__(self, recorder: RunWriter, loop: Loop) -> None:
        self._recorder, self._loop = recorder, loop

    def on_log(self, state: State, point: LogPoint) -> str | None:
        """Write the steps of a log point; return what could not be written."""
        memory = peak_memory(self._loop.plan.device)
        self._recorder.steps(point, _group_rates(state), memory)
        for skip in point.skips:
            self._recorder.skipped(skip, sample_indices(self._loop.loader, skip))
        return self._recorder.notice()


def _group_rates(state: State) -> dict[str, float]:
    """Return the learning rate of each parameter group; empty if all have the same."""
    optimizers = state.optimizers
    rates = {
        f"{f'{name}/' if len(optimizers) > 1 else ''}{group.get('name', index)}": group["lr"]
        for name, optimizer in optimizers.items()
        for index, group in enumerate(optimizer.param_groups)
    }
    return rates if len(set(rates.values())) > 1 else {}
