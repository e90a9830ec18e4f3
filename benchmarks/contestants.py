"""The contestants, in the order of the tables."""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version


@dataclass(frozen=True)
class Contestant:
    """A way to train: its file in `loops/`, and the package it needs."""

    name: str
    title: str
    module: str
    package: str
    is_peer: bool = False

    @property
    def version(self) -> str | None:
        """The version of the package, or None if it is not installed."""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return None


CONTESTANTS = [
    Contestant("plain", "Plain loop", "plain", "torch"),
    Contestant("retained", "Plain loop, freed memory retained", "plain_retained", "torch"),
    Contestant("fast", "Plain loop, hand-optimized", "fast_by_hand", "torch"),
    Contestant("surestep", "surestep, defaults", "surestep_loop", "surestep"),
    Contestant("ignite", "Ignite", "ignite_loop", "pytorch-ignite", is_peer=True),
    Contestant("fabric", "Fabric", "fabric_loop", "lightning", is_peer=True),
    Contestant("accelerate", "Accelerate", "accelerate_loop", "accelerate", is_peer=True),
    Contestant("hf", "HF Trainer", "hf_trainer_loop", "transformers", is_peer=True),
    Contestant("lightning", "Lightning (barebones)", "lightning_loop", "lightning", is_peer=True),
]
