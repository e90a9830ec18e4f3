"""When memory ran out, and in what."""

from dataclasses import dataclass

from torch import nn

from surestep.engine.state.state import State
from surestep.engine.step.callback import Callback
from surestep.trainer.planning import PreparedTask


@dataclass(frozen=True)
class Failure:
    """Memory ran out.

    Attributes:
        where: "in step 3".
        planned: the task, with its options.
        model: on its device.
        state: None before the first step.
        callbacks: of the user.
        evaluation_size: of the batches, if it was an evaluation.
        is_fixed: it was in a part of a step whose memory no micro-batch size changes, such as the
            update.
    """

    where: str
    planned: PreparedTask
    model: nn.Module
    state: State | None = None
    callbacks: tuple[Callback, ...] = ()
    evaluation_size: int | None = None
    is_fixed: bool = False
