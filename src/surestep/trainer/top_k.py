"""Whether an evaluation is among the best ones, whose weights stay."""

from surestep.base.errors import CheckpointError
from surestep.engine.value import number
from surestep.record.checkpoint.discovery import scan_checkpoints
from surestep.record.checkpoint.retention import best_first, best_steps
from surestep.trainer.rank_zero import run_on_rank_zero
from surestep.trainer.session import Session


class TopK:
    """What validation.metric was at each evaluation: in the checkpoints that are there, and since.

    All ranks come to the same, since they begin with what the first one finds.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.values: dict[int, float] = {}  # by step
        self.gone_back = len(session.state.spikes.skipped_steps)
        if session.plan.validation_metric is not None and session.plan.checkpoint_keep_best:
            self.values = run_on_rank_zero(
                session.loop.world,
                self._there,
                tell=lambda found: list(found.items()),
                follow=lambda said: {int(step): float(value) for step, value in said},
            )

    def is_top_k(self) -> bool:
        """Take in what this very step measured; say whether it is among the best `keep_best`."""
        state, plan = self.session.state, self.session.plan
        step, metric = state.progress.step, plan.validation_metric
        if metric is None or not plan.checkpoint_keep_best:
            return False
        stretches = state.spikes.skipped_steps
        undone = min([step, *(begin for begin, _ in stretches[self.gone_back :])])
        self.gone_back = len(stretches)
        self.values = {at: value for at, value in self.values.items() if at < undone}
        self.values[step] = number(state.best.latest[metric])
        return step in best_steps(self.values, plan.validation_mode)[: plan.checkpoint_keep_best]

    def _there(self) -> dict[int, float]:
        """Return step and value of the checkpoints that were measured."""
        plan, metric = self.session.plan, str(self.session.plan.validation_metric)
        try:
            good = scan_checkpoints(self.session.run.checkpoints).good
        except CheckpointError:  # the saves will tell; until then one is saved too often
            return {}
        ranked = best_first(good, metric, plan.validation_mode)
        return {each.step: number(each.metrics[metric]) for each in ranked}
