"""Accelerate prepares the model; the step is surestep's.

Source: https://huggingface.co/docs/accelerate/package_reference/accelerator
"""

from typing import Any

from torch import nn

from surestep.engine.parallel.ddp import DDPStrategy
from surestep.engine.plan.plan import Plan


class AccelerateStrategy(DDPStrategy):
    """The methods of a step on a model that Accelerate has prepared, in one or more processes."""

    needs_ranks = False
    extra = "accelerate"
    runs_manual_steps = False

    def wrap_model(self, model: nn.Module, plan: Plan) -> nn.Module:
        """Let Accelerate prepare the model; precision and compiling are the Plan's."""
        from accelerate import Accelerator
        from accelerate.utils import DistributedDataParallelKwargs, TorchDynamoPlugin

        how = DistributedDataParallelKwargs(
            gradient_as_bucket_view=True,
            find_unused_parameters=plan.parallel_find_unused_parameters,
            static_graph=plan.parallel_static_graph,
        )
        accelerator: Any = Accelerator(
            cpu=plan.device.type == "cpu",
            mixed_precision="no",
            dynamo_plugin=TorchDynamoPlugin(backend="no"),
            kwargs_handlers=[how],
        )
        prepared: nn.Module = accelerator.prepare_model(model, device_placement=False)
        return prepared
