"""Several optimizers as one: each moves its own parameters."""

from typing import Any

import torch


class CombinedOptimizer(torch.optim.Optimizer):
    """Several optimizers behind one face: groups, state, saving and loading are as of one.

    Their groups stand one after another, and are the same dicts as theirs; so is the state.
    """

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = parts
        for part in parts:
            self.state.update(part.state)
        self._share()

    def step(self, closure: Any = None) -> Any:
        """Move the parameters once, each by its own optimizer."""
        assert closure is None, "each of the optimizers would call it"
        for part in self.parts:
            part.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load state and options, and let the parts have them."""
        super().load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        start = 0
        for part in self.parts:
            end = start + len(part.param_groups)
            part.param_groups, part.state = self.param_groups[start:end], self.state
            start = end
