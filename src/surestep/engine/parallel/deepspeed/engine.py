"""A DeepSpeed engine, made and taken apart; the package is imported here and nowhere else.

It is imported only where it is used: that takes seconds.
"""

import logging
import warnings
from typing import Any

import torch
from torch import nn

from surestep.base.errors import ConfigError
from surestep.engine.optim.deepspeed_adam import configure_logging
from surestep.engine.plan.plan import Plan


def create_engine(plan: Plan, model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    """Return an engine over the model and our optimizer, whose groups it puts flat pieces into.

    Raises:
        ConfigError: DeepSpeed refuses what is asked.
    """
    with configure_logging(plan):
        import deepspeed

        # Its own "log_level" says otherwise. What a key asks it to tell it prints, at any level.
        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        # Between processes of one machine it would rather compile an op of its own than use gloo:
        # minutes, and a compiler.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        try:
            engine, *_ = deepspeed.initialize(
                model=model,
                optimizer=optimizer,
                config=dict(plan.parallel_deepspeed),
            )
        except (AssertionError, ValueError) as error:
            raise ConfigError(
                f"DeepSpeed refuses its configuration: {error}. It was made of the options that "
                "`surestep plan` shows."
            ) from error
    # DeepSpeed calls these by the names they had before torch 2.13, in every step.
    warnings.filterwarnings(
        "ignore", r"`torch\.distributed\.\w+` is deprecated", category=FutureWarning
    )
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(plan.precision)
    if half is not None:
        # DeepSpeed switches a torch.autocast around it off, unless it made it. Its own
        # "torch_autocast" would stay on, in a global, for each later engine of this process.
        engine.torch_autocast_enabled = lambda: True
        engine.torch_autocast_dtype = lambda: half
    return engine


def destroy_engine(engine: Any) -> None:
    """Take the hooks off the model, and let DeepSpeed forget the groups of processes."""
    from deepspeed.utils import groups

    engine.destroy()
    for hook in (engine.module_forward_pre_hook, engine.module_forward_post_hook):
        hook.remove()
    # It keeps copies of torch's groups, which are gone with the process group.
    groups._release_process_group_references(None)
