"""Train two ranks with DeepSpeed's Adam, started by torchrun."""

import os
import sys
from pathlib import Path
from typing import Any

import torch

from tests.multi_rank import zero
from tests.multi_rank.cases import half, task, trained

OWN: dict[str, Any] = {"optimizer": {"type": "AdamW", "params": {"torch_adam": False}}}
SAID: dict[str, Any] = {"optim": {"lr": 1e-2, "groups": ["2 lr=0.5x"]}, "micro_batch_size": 3}
STAGES = (2, 3)


def options(stage: int, device: str, offload: str) -> dict[str, Any]:
    keys = {**OWN, **(zero.ALL_CUT if stage == 3 else {})}
    parallel = {"strategy": "deepspeed", "zero_stage": stage, "deepspeed": keys, "offload": offload}
    return {**SAID, "parallel": parallel, "device": device}


def main(out: Path, device: str, offload: str) -> None:
    torch.set_num_threads(1)
    found = {}
    for stage in STAGES:
        said = options(stage, device, offload)
        found[stage, "at once"] = trained(
            *(out / f"at once {stage}", task()),
            weights=zero.whole_weights,
            shows=lambda session: {"kind": type(session.optimizer).__name__},
            **said,
        )
        half(out / f"gone on {stage}", **said)
        half(out / f"to one {stage}", **said)
        found[stage, "gone on"] = trained(
            out / f"gone on {stage}", task(), weights=zero.whole_weights, **said
        )
    torch.save(found, out / f"rank-{os.environ['RANK']}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
