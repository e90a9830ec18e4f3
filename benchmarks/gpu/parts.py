"""The parts of the benchmark, in order of worth, and how long each may take."""

from collections.abc import Mapping
from dataclasses import dataclass

SMALL = ("mlp", "conv")  # the tasks of a CPU, which are those of benchmarks.run
LARGE = ("mlp", "resnet18", "gpt2")
LADDER_S = 180  # of `surestep tune`, by its own clock
MINUTES = 8.0
START_S = 25  # at most, for a process: import torch, open the device, make the data


@dataclass(frozen=True)
class Part:
    """One process, which prints results as lines of JSON.

    Attributes:
        name: of the part; "steps.NAME" for a contestant.
        title: what it measures.
        work_s: that it may take in a benchmark of eight minutes, beside its start.
        needs_gpu: it cannot be measured on a CPU.
        package: that it needs.
    """

    name: str
    title: str
    work_s: float
    needs_gpu: bool = False
    package: str = ""


def _of_contestant(name: str, title: str, package: str) -> Part:
    return Part(f"steps.{name}", f"Time and memory of a step: {title}", 20, package=package)


PARTS = (
    _of_contestant("plain", "plain loop", "torch"),
    _of_contestant("fast", "hand-optimized loop", "torch"),
    _of_contestant("surestep", "surestep", "torch"),
    Part("syncs", "Waits of the host for the GPU between two log points", 15, needs_gpu=True),
    Part("resume", "A resumed run is bitwise the uninterrupted one", 10),
    Part("graphs", "cuda_graph: a replayed step", 20, needs_gpu=True),
    Part("overflow", "fp16: steps whose gradients overflow", 10),
    Part("memory", "micro_batch_size='fit' when memory runs out", 15, needs_gpu=True),
    Part("saves", "Time that a checkpoint adds to a step", 15),
    Part("watch", "Cost of surestep watch", 20),
    _of_contestant("lightning", "Lightning", "lightning"),
    _of_contestant("accelerate", "Accelerate", "accelerate"),
    _of_contestant("hf", "HF Trainer", "transformers"),
    Part("tune", "surestep tune images", LADDER_S),
)
NAMES: Mapping[str, Part] = {part.name: part for part in PARTS}
