"""The loss, as the Task gives it."""

from surestep.engine.plan.plan import Rule
from surestep.engine.rules.helpers import Refusals, Rows, always

ROWS: Rows = {"loss": (Rule(always, lambda k: k.task_info.loss, "{k.task_info.loss_reason}"),)}
REFUSALS: Refusals = {}
