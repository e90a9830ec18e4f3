"""The graph of a model, written for TensorBoard before the first step."""

import copy
import io
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import nn

from surestep.base.secrets import describe_error
from surestep.engine.batch import Batch
from surestep.engine.rng import preserve_globals
from surestep.engine.state.state import State
from surestep.engine.step.log_point import LogPoint
from surestep.engine.step.part import Part


class WriteGraph(Part):
    """Traces a copy of the model on the first micro-batch of a run, in evaluation mode.

    The model itself, its buffers and the generators are not touched. If the model cannot be
    traced, training continues, and a notice says why.

    Args:
        folder: of TensorBoard's event files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_done = False
        self._message: str | None = None

    def on_batch(self, state: State, batch: Batch) -> None:
        """Write the graph before the first step of the run."""
        if self._is_done or state.progress.step or not batch.micro_batches:
            return
        self._is_done = True
        inputs = batch.micro_batches[0]
        try:
            with preserve_globals(), torch.random.fork_rng(_devices(state.model)):
                self._write(state.model, inputs.args, dict(inputs.kwargs))
        except Exception as error:  # whatever the tracer or the model raises
            self._message = (
                "logging.graph: the graph of the model was not written. "
                f"{describe_error(error)}. Training continues."
            )

    def on_log(self, state: State, point: LogPoint) -> str | None:
        """Return why the graph was not written, once."""
        message, self._message = self._message, None
        return message

    def _write(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        traced = copy.deepcopy(model).eval()
        inputs = (*args, *kwargs.values())
        if kwargs:
            traced = _Positional(traced, len(args), tuple(kwargs))
        make_writer: Any = SummaryWriter
        writer = make_writer(str(self._folder))
        # torch's function prints the error that it raises, and traces by a deprecated function.
        with redirect_stdout(io.StringIO()), warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            try:
                writer.add_graph(traced, inputs, use_strict_trace=False)
            finally:
                writer.close()


class _Positional(nn.Module):
    """A model whose inputs by name are given by position: the tracer takes no others."""

    def __init__(self, model: nn.Module, count: int, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self._count, self._names = model, count, names

    def forward(self, *inputs: Any) -> Any:
        named = dict(zip(self._names, inputs[self._count :], strict=True))
        return self.model(*inputs[: self._count], **named)


def _devices(model: nn.Module) -> list[torch.device]:
    found = {parameter.device for parameter in model.parameters()}
    return [device for device in found if device.type == "cuda"]
