"""Which parameters a backward reaches, where gradients are taken away as soon as they are there."""

import json
from collections.abc import Sequence
from functools import partial

from torch import Tensor

from surestep.base.errors import TaskError
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.task.init_weights import summarize_names


class UnusedParamCheck:
    """Watches the first step of a session for parameters without a gradient on any rank.

    DeepSpeed's flat pieces hold 0 for them, and the optimizer moves them by decay and momentum;
    in one process it leaves them alone.
    """

    def __init__(
        self, names: Sequence[str], parameters: Sequence[Tensor], world: Communicator
    ) -> None:
        self.names, self.world = names, world
        self.seen: set[str] = set()
        named = zip(names, parameters, strict=True)
        self.hooks = [each.register_hook(partial(self._note, name)) for name, each in named]

    def check(self) -> None:
        """Check that each was reached on some rank, and watch no longer; all ranks ask together.

        Raises:
            TaskError: one was not; which.
        """
        for hook in self.hooks:
            hook.remove()
        idle = [name for name in self.names if name not in self.seen]
        told = self.world.all_gather_text(json.dumps(idle))
        nowhere = set.intersection(*(set(json.loads(each)) for each in told))
        if nowhere:
            named = summarize_names([name for name in idle if name in nowhere], 8)
            raise TaskError(
                f"No gradient reaches {named} in the first step, and DeepSpeed takes that for a "
                "gradient of 0, by which decay and momentum would move it. Freeze what is never "
                "used (requires_grad_(False)) or take it out of the model; where it is used in "
                "some steps only, say parallel.strategy='ddp' and "
                "parallel.find_unused_parameters=True."
            )

    def _note(self, name: str, _: Tensor) -> None:
        self.seen.add(name)
