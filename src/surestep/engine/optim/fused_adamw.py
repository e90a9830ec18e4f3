"""torch's fused AdamW, called without what costs time in each step."""

from typing import Any

import torch
import torch.optim.optimizer as optimizer_module
from torch import Tensor
from torch.autograd import profiler

from surestep.engine import private


class FusedAdamW(torch.optim.AdamW):
    """torch's fused AdamW, with a step that calls torch's kernel directly.

    State, hooks and numbers are torch's. With a hook, a profiler or an unusual option, torch's own
    step runs. docs/decisions/0003 has the measurements.
    """

    state_class_name = "AdamW"  # in checkpoints: the state is that of torch's

    def step(self, closure: Any = None) -> Any:
        """Update the parameters, unless `found_inf` is 1."""
        watched = (  # or may be, if torch has no such name; here, since a call takes longer
            private.fused_adamw_ is None
            or getattr(profiler, "_is_profiler_enabled", True)
            or getattr(self, "_optimizer_step_pre_hooks", True)
            or getattr(self, "_optimizer_step_post_hooks", True)
            or getattr(optimizer_module, "_global_optimizer_pre_hooks", True)
            or getattr(optimizer_module, "_global_optimizer_post_hooks", True)
        )
        lists = None if watched or closure is not None else self._lists()
        if lists is None:
            torch_step: Any = torch.optim.AdamW.step
            if not getattr(torch_step, "hooked", False):  # so far no plain AdamW was made
                torch_step = torch.optim.Optimizer.profile_hook_step(torch_step)
            return torch_step(self, closure)
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        grad_scale: Tensor | None = getattr(self, "grad_scale", None)
        groups, steps = lists
        with torch.no_grad():
            if found_inf is None:
                private.foreach_add_(steps, 1)
            else:
                # torch adds 1 to each and takes found_inf away again; of a list this is one pass.
                private.foreach_add_(steps, [torch.rsub(found_inf, 1)] * len(steps))
            for group, tensors in groups:
                private.fused_adamw_(
                    *tensors,
                    lr=group["lr"],
                    beta1=group["betas"][0],
                    beta2=group["betas"][1],
                    weight_decay=group["weight_decay"],
                    eps=group["eps"],
                    amsgrad=False,
                    maximize=False,
                    grad_scale=grad_scale,
                    found_inf=found_inf,
                )
        return None

    step.hooked = True  # type: ignore[attr-defined]  # torch need not wrap it: hooks are seen to

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, and check whether all parameters have one device and dtype."""
        # torch's wrapper imports its compiler at the first call, so that a graph leaves it out.
        add: Any = torch.optim.AdamW.add_param_group
        getattr(add, "__wrapped__", add)(self, param_group)
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        self.alike = len({(parameter.device, parameter.dtype) for parameter in parameters}) == 1

    def _lists(self) -> tuple[list[tuple[dict[str, Any], Any]], list[Tensor]] | None:
        """Return the kernel's tensors for each group, and the step counts of all.

        The result is None for unusual options. The first step makes the state here: torch's own
        step imports torch._dynamo, which takes as long as importing torch.
        """
        groups: list[tuple[dict[str, Any], Any]] = []
        every_step: list[Tensor] = []
        for group in self.param_groups:
            if group["amsgrad"] or group["maximize"] or not (group["fused"] and self.alike):
                return None
            parameters, grads, averages, squares, steps = [], [], [], [], []
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    if not state:
                        if parameter.grad.is_sparse or not parameter.is_floating_point():
                            return None  # torch's own step says that it takes neither
                        state["step"] = torch.zeros(
                            (), dtype=torch.float32, device=parameter.device
                        )
                        state["exp_avg"] = torch.zeros_like(parameter)
                        state["exp_avg_sq"] = torch.zeros_like(parameter)
                    parameters.append(parameter)
                    grads.append(parameter.grad)
                    averages.append(state["exp_avg"])
                    squares.append(state["exp_avg_sq"])
                    steps.append(state["step"])
            if parameters:
                groups.append((group, (parameters, grads, averages, squares, [], steps)))
                every_step += steps
        return (groups, every_step) if groups else None
