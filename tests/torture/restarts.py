"""Kill the processes of one torchrun each time it starts them."""

from pathlib import Path
from typing import Any

import torch

from tests.multi_rank.torchrun import UNHARMED, last_weights, launch, resumed_from

# Rank 1 after a step, rank 0, both, and rank 0 within a save.
_WAYS = ("1@{0}", "0@{0}", "0+1@{0}", "save@{1}")


def restart(folder: Path, wanted: int, _: int) -> tuple[dict[str, Any], list[str]]:
    """Kill this many attempts; compare with a run that was not killed."""
    deaths = [_WAYS[n % len(_WAYS)].format(2 * n + 3, 2 * n + 4) for n in range(wanted)]
    recipe = str(Path(__file__).parents[1] / "multi_rank" / "killed_recipe.py")
    train = ["-m", "surestep", "train", recipe, "--max-steps", str(2 * wanted + 5), "--run-folder"]
    whole = launch("2", *train, str(folder / "whole"))
    killed = launch(
        *("2", "--max-restarts", str(wanted), *train, str(folder / "killed")),
        **{**UNHARMED, "DEATHS": " ".join(deaths)},
        timeout_s=60.0 * (wanted + 1),
    )
    wrong = [each.stderr[-2000:] for each in (whole, killed) if each.returncode]
    resumed = resumed_from(folder / "killed")
    if not wrong and not torch.equal(
        last_weights(folder / "whole"), last_weights(folder / "killed")
    ):
        wrong.append("the weights differ")
    if len(resumed) != wanted:
        wrong.append(f"gone on with {len(resumed)} times")
    return {"restarts": len(resumed)}, wrong
