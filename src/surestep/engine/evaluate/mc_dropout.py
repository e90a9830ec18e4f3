"""Monte-Carlo dropout: several passes with dropout on, and how far they lie apart.

Source: Gal and Ghahramani 2016, https://arxiv.org/abs/1506.02142
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from surestep.base.errors import ConfigError, TaskError

_DROPOUT = nn.modules.dropout._DropoutNd


def check_passes(passes: int | None) -> None:
    """Check that there are enough passes for a spread.

    Raises:
        ConfigError: there are not.
    """
    if passes is not None and passes < 2:
        raise ConfigError(
            f"Monte-Carlo dropout with {passes} passes has no spread. Use 2 or more, such as 30."
        )


def dropout_modules(model: nn.Module) -> list[nn.Module]:
    """List the modules that drop something in train mode and do nothing else differently there.

    A TransformerEncoderLayer is among them where it drops something: in eval mode torch computes
    it by a short cut that leaves its dropout modules out.

    Raises:
        TaskError: there are none.
    """
    found = [module for module in model.modules() if _drops(module)]
    if not found:
        raise TaskError(
            f"{type(model).__name__} has no dropout, so Monte-Carlo dropout would give the same "
            "outputs each time. Leave --mc-dropout out, or train with nn.Dropout modules (a "
            "functional dropout within forward() is not seen)."
        )
    return found


def _drops(module: nn.Module) -> bool:
    if isinstance(module, _DROPOUT):
        return module.p > 0
    if isinstance(module, (nn.MultiheadAttention, nn.RNNBase)):
        return module.dropout > 0
    if isinstance(module, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
        return any(_drops(each) for each in module.modules() if each is not module)
    return False


def mean_and_std(
    one_pass: Callable[[int], Mapping[str, Tensor]], passes: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the mean and the standard deviation (over passes - 1) of what passes give, by name.

    They are added up by Welford's rule, so no pass is kept.

    Args:
        one_pass: gives the tensors of the pass with this number, from 1 on.
        passes: how many; at least 2.
    """
    mean: dict[str, Tensor] = {}
    squares: dict[str, Tensor] = {}
    kinds: dict[str, torch.dtype] = {}
    for number in range(1, passes + 1):
        for name, value in one_pass(number).items():
            wide = value if value.device.type == "mps" else value.double()
            if number == 1:
                mean[name], squares[name] = wide.clone(), torch.zeros_like(wide)
                kinds[name] = torch.float64 if value.dtype == torch.float64 else torch.float32
                continue
            away = wide - mean[name]
            mean[name] += away / number
            squares[name] += away * (wide - mean[name])
    spread = {name: (each / (passes - 1)).sqrt() for name, each in squares.items()}
    return (
        {name: each.to(kinds[name]) for name, each in mean.items()},
        {name: each.to(kinds[name]) for name, each in spread.items()},
    )
