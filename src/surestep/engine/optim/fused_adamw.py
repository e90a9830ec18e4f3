"""AdamW with the shortest way to torch's fused kernel."""

from typing import Any

import torch
import torch.optim.optimizer as optimizer_module
from torch import Tensor
from torch.autograd import profiler


class FusedAdamW(torch.optim.AdamW):
    """torch's fused AdamW, whose step goes to torch's kernel by the shortest way.

    State, groups, hooks, loading and saving are torch's own, and so are the numbers, bit for bit.
    Where a hook or a profiler watches, or something is not plain, torch's own step is taken. Else
    two things are left out: sorting the tensors of each group by device and dtype, which are
    alike, and the wrapper that looks for hooks. Measured on the small MLP, in docs/decisions/0003.
    """

    state_class_name = "AdamW"  # in checkpoints: the state is that of torch's

    def step(self, closure: Any = None) -> Any:
        """Move the parameters once, unless `found_inf` is 1."""
        watched = (
            profiler._is_profiler_enabled
            or self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or optimizer_module._global_optimizer_pre_hooks
            or optimizer_module._global_optimizer_post_hooks
        )
        lists = None if watched or closure is not None else self._lists()
        if lists is None:
            return _torch_step(self, closure)
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        grad_scale: Tensor | None = getattr(self, "grad_scale", None)
        groups, steps = lists
        with torch.no_grad():
            if found_inf is None:
                torch._foreach_add_(steps, 1)
            else:
                # torch adds 1 to each and takes found_inf away again; of a list this is one pass.
                torch._foreach_add_(steps, [torch.rsub(found_inf, 1)] * len(steps))
            for group, tensors in groups:
                torch._fused_adamw_(
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
        """Add a group, and look whether all are still alike."""
        # torch's wrapper imports its compiler at the first call, so that a graph leaves it out.
        add: Any = torch.optim.AdamW.add_param_group
        getattr(add, "__wrapped__", add)(self, param_group)
        parameters = [each for group in self.param_groups for each in group["params"]]
        self.alike = len({(each.device, each.dtype) for each in parameters}) == 1

    def _lists(self) -> tuple[list[tuple[dict[str, Any], Any]], list[Tensor]] | None:
        """Return the kernel's tensors for each group, and the step counts of all.

        Taken from the optimizer's state at each step, which may have been loaded or changed; None
        where something is not plain. The first step makes the state here, and not in torch's own
        step, which imports torch._dynamo: as long as importing torch.
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
                    if not state:  # torch fills this dict, for all of the group
                        self._init_group(group, [], [], [], [], [], [])
                    parameters.append(parameter)
                    grads.append(parameter.grad)
                    averages.append(state["exp_avg"])
                    squares.append(state["exp_avg_sq"])
                    steps.append(state["step"])
            if parameters:
                groups.append((group, (parameters, grads, averages, squares, [], steps)))
                every_step += steps
        return (groups, every_step) if groups else None


def _torch_step(optimizer: FusedAdamW, closure: Any) -> Any:
    """Take torch's own step with its hooks; torch wraps it when a plain AdamW is first made."""
    step: Any = torch.optim.AdamW.step
    if not getattr(step, "hooked", False):
        step = torch.optim.Optimizer.profile_hook_step(step)
    return step(optimizer, closure)
