"""What a training step takes of a device's memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StepMemory:
    """Bytes at the peak of a step, or of an evaluation; the kinds add up to the peak.

    Attributes:
        micro_batch_size: samples that a forward gets.
        weights: parameters.
        buffers: of the model and the loss.
        gradients: those that exist at the peak.
        optimizer: its state.
        average: of the weights.
        inputs: the batch, of which all micro-batches are on the device.
        activations: what forwards and the loss computed, and is still needed.
        temporaries: everything else that operations return, such as gradients of activations.
        workspace: what operations use inside; see `notes`.
        peak: the sum.
        by_module: activations by module, at the moment when there are most of them.
        notes: what is not in the numbers, a sentence each.
        not_known: why the peak is not known, and then what depends on a batch is 0; else "".
    """

    micro_batch_size: int
    weights: int
    buffers: int
    gradients: int
    optimizer: int
    average: int
    inputs: int = 0
    activations: int = 0
    temporaries: int = 0
    workspace: int = 0
    by_module: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    not_known: str = ""

    @property
    def peak(self) -> int:
        """The sum of all kinds."""
        return sum(getattr(self, kind) for kind in KINDS)

    @property
    def kept(self) -> int:
        """The most activations at any moment: what a micro-batch keeps for its backward."""
        return sum(self.by_module.values())


KINDS = (
    *("weights", "buffers", "gradients", "optimizer", "average"),
    *("inputs", "activations", "temporaries", "workspace"),
)
