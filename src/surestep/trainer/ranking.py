"""Whether an evaluation is among the best ones, whose weights stay."""

from surestep.base.errors import CheckpointError
from surestep.engine.value import number
from surestep.record.checkpoint.good import survey
from surestep.record.checkpoint.keep import best_first, best_steps
from surestep.trainer.session import Session
from surestep.trainer.together import first


class Ranking:
    """What validation.metric was at each evaluation: in the checkpoints that are there, and since.

    All ranks come to the same, since they begin with what the first one finds.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.values: dict[int, float] = {}  # by step
        self.gone_back = len(session.state.spikes.left_out)
        if session.plan.validation_metric is not None and session.plan.checkpoint_keep_best:
            self.values = first(
                session.loop.world,
                self._there,
                tell=lambda found: list(found.items()),
                follow=lambda said: {int(step): float(value) for step, value in said},
            )

    def takes_in(self) -> bool:
        """Take in what this very step measured; say whether it is among the best `keep_best`."""
        state, plan = self.session.state, self.session.plan
        step, metric = state.place.step, plan.validation_metric
        if metric is None or not plan.checkpoint_keep_best:
            return False
        stretches = state.spikes.left_out
        undone = min([step, *(begin for begin, _ in stretches[self.gone_back :])])
        self.gone_back = len(stretches)
        self.values = {at: value for at, value in self.values.items() if at < undone}
        self.values[step] = number(state.standing.latest[metric])
        return step in best_steps(self.values, plan.validation_mode)[: plan.checkpoint_keep_best]

    def _there(self) -> dict[int, float]:
        """Return step and value of the checkpoints that were measured."""
        plan, metric = self.session.plan, str(self.session.plan.validation_metric)
        try:
            good = survey(self.session.run.checkpoints).good
        except CheckpointError:  # the saves will tell; until then one is saved too often
            return {}
        ranked = best_first(good, metric, plan.validation_mode)
        return {each.step: number(each.metrics[metric]) for each in ranked}
