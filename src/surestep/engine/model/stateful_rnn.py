"""Recurrent state across batches, for truncated back-propagation.

The state is in buffers of the model, a row for each lane. So it is saved and resumed with the
model, restored if a step is skipped, and split with the batch: each forward uses the rows of its
lanes. Eval mode has its own rows, and training continues from its state.
"""

from typing import Any

import torch
from torch import Tensor, nn

from surestep.base.errors import TaskError


class StatefulRNN(nn.Module):
    """A recurrent model that passes its state, without its graph, to the next batch.

    Its forward takes `(*inputs, lane, first)`, as `surestep.BPTTDataset` yields them. The inner
    model is called as `model(*inputs, state)` and returns `(outputs, state)`.

    Args:
        model: the inner model.
        start: initial state of one lane, with size 1 in dimension `dim`; a tensor or a tuple.
        lanes: number of lanes.
        dim: the dimension of the lanes in the state: 0, or 1 for torch's nn.LSTM and nn.GRU.

    Raises:
        TaskError: `start` does not have size 1 in dimension `dim`.
    """

    def __init__(
        self, model: nn.Module, start: Tensor | tuple[Tensor, ...], lanes: int, *, dim: int = 0
    ) -> None:
        super().__init__()
        self.model, self.lanes, self.dim = model, lanes, dim
        self.is_tuple = isinstance(start, tuple)
        starts = start if isinstance(start, tuple) else (start,)
        for index, one in enumerate(starts):
            if one.dim() <= dim or one.shape[dim] != 1:
                raise TaskError(
                    f"start has shape {tuple(one.shape)}, and the state of one lane has size 1 in "
                    f"dimension {dim}. Use dim=1 for nn.LSTM and nn.GRU, such as "
                    "StatefulRNN(model, torch.zeros(layers, 1, hidden), lanes=8, dim=1)."
                )
            self.register_buffer(f"start_{index}", one.detach().clone())
            self.register_buffer(f"state_{index}", one.detach().repeat_interleave(lanes, dim))
        self.count = len(starts)
        self._eval_rows: list[Tensor] = []

    def forward(self, *inputs: Any) -> Any:
        """Return the inner model's outputs; keep its state for the next window of these lanes."""
        *rest, lane, first = inputs
        if len(lane) > self.lanes:
            raise TaskError(
                f"A batch of {len(lane)} samples holds several windows of one of the {self.lanes} "
                f"lanes, which follow each other. Use at most {self.lanes} at once."
            )
        rows = self._rows()
        shape = [-1 if dim == self.dim else 1 for dim in range(rows[0].dim())]
        found = []
        for index, row in enumerate(rows):
            resets = first.view(shape + [1] * (row.dim() - len(shape)))
            start = getattr(self, f"start_{index}")
            found.append(torch.where(resets, start, row.index_select(self.dim, lane)))
        outputs, state = self.model(*rest, tuple(found) if self.is_tuple else found[0])
        with torch.no_grad():
            for row, new in zip(rows, state if self.is_tuple else (state,), strict=True):
                row.index_copy_(self.dim, lane, new.detach().to(row.dtype))
        return outputs

    def _rows(self) -> list[Tensor]:
        """Return the rows of all lanes; in eval mode separate ones, which are not saved."""
        rows: list[Tensor] = [getattr(self, f"state_{index}") for index in range(self.count)]
        if self.training:
            return rows
        if not self._eval_rows or self._eval_rows[0].device != rows[0].device:
            with torch.inference_mode(False):  # else no_grad could not write into them later
                self._eval_rows = [row.clone() for row in rows]
        return self._eval_rows
