"""Import what ranks need in a process that then forks them: a rank would take seconds for it."""

import gc
import importlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import torch

from tests.multi_rank.cases import task, trained
from tests.shortcuts import take_shortcuts

# What DeepSpeed imports, at once or in its first steps, and the other libraries of the cases.
LIBRARIES = (
    *("deepspeed", "torch.utils.cpp_extension", "torch._dynamo.repro.after_aot"),
    "deepspeed.runtime.zero.muon.muon_optimizer",  # which ZeRO looks for: torch._inductor, 1 s
    *(
        "torch.utils.module_tracker",
        "torch._inductor.inductor_prims",
        "deepspeed.runtime.superoffload",
    ),
    *("accelerate", "torchmetrics", "torch.distributed.fsdp"),
)


def warm_up() -> None:
    """Import libraries, train for a step, and keep all of it out of the collections of forks."""
    torch.set_num_threads(1)
    take_shortcuts()
    os.environ["DS_ACCELERATOR"] = "cpu"
    for name in LIBRARIES:
        with suppress(ImportError):  # a missing one fails the tests that need it
            importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:  # after the imports, whose modules it examines
        trained(Path(folder) / "run", task(), max_steps=1)
    gc.collect()
    gc.freeze()
    gc.disable()  # each collection would visit all objects of these libraries: 0.1 s
