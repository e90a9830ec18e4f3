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
        optimizer: its state; None is not known, without a trace.
        average: of the weights.
        inputs: the batch, of which all micro-batches are on the device.
        activations: what forwards and the loss computed, and is still needed.
        temporaries: everything else that operations return, such as gradients of activations.
        copies: of the weights in half precision, which autocast has from forward to backward.
        workspace: what operations use inside; see `notes`.
        by_module: what a micro-batch keeps for its backward, by the module that computed it.
        in_backward: the most of inputs, activations, temporaries and workspace before the update.
        in_update: the same while the optimizer steps.
        attention: what computes scaled_dot_product_attention; empty if the model does not use it.
        notes: what is not in the numbers, a sentence each.
        not_known: why the peak is not known, and then what depends on a batch is 0; else "".
    """

    micro_batch_size: int
    weights: int
    buffers: int
    gradients: int
    optimizer: int | None
    average: int
    inputs: int = 0
    activations: int = 0
    temporaries: int = 0
    copies: int = 0
    workspace: int = 0
    by_module: Mapping[str, int] = field(default_factory=dict)
    in_backward: int = 0
    in_update: int = 0
    attention: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    not_known: str = ""

    @property
    def peak(self) -> int:
        """The sum of all kinds."""
        return sum(getattr(self, kind) or 0 for kind in KINDS)

    @property
    def kept(self) -> int:
        """The activations that a micro-batch keeps for its backward."""
        return sum(self.by_module.values())


STATE = ("weights", "buffers", "gradients", "optimizer", "average")
PASSING = ("inputs", "activations", "temporaries", "workspace")
KINDS = (*STATE, *PASSING, "copies")
