"""The loss, as the Task gives it."""

from surestep.engine.plan import Row
from surestep.engine.table.rows import Refusals, Rows, always

ROWS: Rows = {"loss": (Row(always, lambda k: k.given.loss, "{k.given.loss_reason}"),)}
REFUSALS: Refusals = {}
