"""DeepSpeed's own Adam, compiled where it is first used: on the host with offload, else fused.

It counts steps in whole numbers of Python. Torch's Adam, and so a checkpoint, has tensors there.
"""

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

import torch

from surestep.base.errors import ConfigError
from surestep.engine.plan.plan import Plan


def adam(plan: Plan, groups: Sequence[dict[str, Any]]) -> torch.optim.Optimizer:
    """Return DeepSpeed's Adam or AdamW over our groups.

    Raises:
        ConfigError: it cannot be compiled here.
    """
    decoupled, on_host = plan.optim_name == "adamw", plan.parallel_offload != "off"
    options = {name: plan.optim_options[name] for name in ("betas", "eps")}
    options |= {"lr": plan.optim_lr, "weight_decay": plan.optim_weight_decay}
    with configure_logging(plan):
        from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
        from deepspeed.ops.op_builder.builder import CUDAMismatchException, MissingCUDAException

        kind = DeepSpeedCPUAdam if on_host else FusedAdam
        word = "adamw_mode" if on_host else "adam_w_mode"
        try:
            made: torch.optim.Optimizer = kind(groups, **options, **{word: decoupled})
        except (RuntimeError, OSError, CUDAMismatchException, MissingCUDAException) as error:
            why = error.__cause__ or error
            raise ConfigError(
                f"DeepSpeed's {kind.__name__} cannot be compiled here: {why}. It needs g++ and "
                "ninja, and on a GPU the CUDA compiler of torch's version. Install them, or leave "
                "torch_adam out of parallel.deepspeed: the optimizer is then torch's."
            ) from error
    _stand_for(made, torch.optim.AdamW if decoupled else torch.optim.Adam)
    if on_host:
        made.register_step_pre_hook(_forget_powers)
    return made


def _stand_for(made: Any, kind: type[torch.optim.Adam]) -> None:
    """Let checkpoints hold the state as torch's, which is the same by its meaning."""
    made.state_class_name = kind.__name__
    made.left_out = ("bias_correction", "step", "foreach", "fused")
    for group in made.param_groups:
        for option, value in kind([torch.zeros(1)]).defaults.items():
            group.setdefault(option, value)


def _forget_powers(optimizer: Any, *_: Any) -> None:
    """Compute the powers of the betas from the step count.

    The compiled code multiplies them from step to step, and takes a power after a resume, which
    would differ in the last bit.
    """
    made, decoupled = optimizer.defaults, optimizer.adam_w_mode
    rates = (made["lr"], *made["betas"], made["eps"], made["weight_decay"])
    optimizer.ds_opt_adam.create_adam(optimizer.opt_id, *rates, decoupled, False)


@contextmanager
def configure_logging(plan: Plan) -> Iterator[None]:
    """Redirect what DeepSpeed prints to stderr, and set the variables that it reads."""
    variables = {"LOCAL_RANK": str(plan.device.index or 0)}
    if plan.device.type == "cpu":
        variables["DS_ACCELERATOR"] = "cpu"
    before = {name: os.environ.get(name) for name in variables}
    for name, value in variables.items():
        os.environ.setdefault(name, value)
    try:
        with warnings.catch_warnings(), redirect_stdout(sys.stderr):
            warnings.simplefilter("ignore")  # of its own code, which is not ours to mend
            yield
    finally:
        for name, kept in before.items():
            if kept is None:
                del os.environ[name]
