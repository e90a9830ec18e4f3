"""Save and load a checkpoint in one call, in one process."""

from pathlib import Path

from torch import nn

from surestep.engine.state.state import State
from surestep.record.checkpoint.load import load_weights, prepare_load
from surestep.record.checkpoint.reader import open_checkpoint
from surestep.record.checkpoint.staging import SnapshotStager
from surestep.record.checkpoint.writer import write_checkpoint


def save_checkpoint(folder: Path, state: State, *, cycle: int | None = None) -> Path:
    """Write the state as `folder/step-XXXXXXXX`; return its path."""
    return write_checkpoint(folder, SnapshotStager().take(state, cycle=cycle))


def load_checkpoint(path: Path, state: State) -> None:
    """Verify a checkpoint and load it into the state."""
    prepare_load(open_checkpoint(path), state)()


def load_model(path: Path, model: nn.Module, *, average: bool = False) -> None:
    """Verify a checkpoint and load its weights into a model."""
    load_weights(open_checkpoint(path), model, average=average)
