"""The composition root: `prepare()`, `Session`, `Trainer`. It wires the parts."""

from surestep.record.run import Run
from surestep.trainer.fit import Trainer, fit
from surestep.trainer.prepare import prepare
from surestep.trainer.session import Session

__all__ = ["Run", "Session", "Trainer", "fit", "prepare"]
