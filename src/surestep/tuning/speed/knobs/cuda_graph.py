"""The work of a step on the GPU, recorded once and replayed.

It helps if the GPU waits for the host, which launches many small operations: small models on fast
GPUs. Every number stays the same, bit for bit.
"""

from collections.abc import Sequence

from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import SystemInfo
from surestep.tuning.speed.knob import NotTried, Options

SHARES = ("host", "forward", "backward")
KEEPS_NUMBERS = True


def candidates(plan: Plan, system: SystemInfo) -> Sequence[Options]:
    """Replay the steps of one GPU, if the Plan allows it."""
    if plan.device.type != "cuda":
        raise NotTried(f"the device is {plan.device}, which has no CUDA graphs")
    if plan.cuda_graph:
        raise NotTried("the steps are replayed already")
    if plan.compile != "off":
        raise NotTried(f"the model is compiled, in the mode {plan.compile}")
    if plan.parallel_strategy != "single":
        raise NotTried(f"{plan.parallel_strategy} exchanges gradients with other processes")
    if plan.guard != "device":
        raise NotTried(plan.reason("guard"))
    if plan.activation_checkpointing != "off":
        raise NotTried("activations are recomputed, which reads the state of generators")
    return [{"cuda_graph": True}]
