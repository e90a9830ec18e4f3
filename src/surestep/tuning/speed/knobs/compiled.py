"""The model compiled by torch.compile.

It helps if many small operations follow each other: they become one kernel, without Python between
them. `reduce-overhead` also replays the launches of a GPU. To compile takes from seconds to
minutes, so a short run does not gain.
"""

from collections.abc import Sequence

from surestep.engine.parallel.strategy import strategy_class
from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import SystemInfo
from surestep.tuning.speed.knob import NotTried, Options

SHARES = ("host", "forward", "backward")
KEEPS_NUMBERS = False  # fused operations round less often
STARTS_SLOWLY = True


def candidates(plan: Plan, system: SystemInfo) -> Sequence[Options]:
    """Compile in each mode that the device has, and the blocks one by one."""
    if plan.compile != "off":
        raise NotTried(f"the model is compiled already, in the mode {plan.compile}")
    on_gpu = plan.device.type == "cuda"
    if not on_gpu and not system.compiler:
        raise NotTried("torch.compile needs a C++ compiler on a CPU, and none was found")
    if strategy_class(plan.parallel_strategy).gathers_blocks:
        return [{"compile": "default"}]  # by block, since each is gathered separately
    tried: list[Options] = [{"compile": "default"}]
    if plan.task_info.blocks:
        tried.append({"compile": "default", "compile_blocks": True})
    if on_gpu:  # it replays what a GPU is given to do
        tried.append({"compile": "reduce-overhead"})
    return [*tried, {"compile": "max-autotune"}]
