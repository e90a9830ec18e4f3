"""Language modeling: next tokens and masked tokens."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.nn import functional

from surestep.base.errors import DataError, TaskError
from surestep.engine.losses import input_checks as expect
from surestep.engine.losses.base import IGNORED, FirstBatch, LossDoc, LossModule, at_least_fp32

_FORMULA = "-log softmax(x)_t + z (log sum_v exp x_v)^2"
_Z_SOURCE = "z-loss: Chowdhery et al. 2022, https://arxiv.org/abs/2204.02311"


@dataclass(eq=False, repr=False, kw_only=True)
class _Tokens(LossModule):
    """Cross-entropy over tokens, with the vocabulary last or in dimension 1."""

    over = "kept"
    ignore_index: int = IGNORED
    z_loss: float = 0.0
    label_smoothing: float = 0.0
    class_dim: Literal[1, -1] = -1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.z_loss < 0:
            raise TaskError(f"z_loss={self.z_loss} is below 0. Use 1e-4, or 0 for none.")

    def total(self, outputs: Tensor, targets: Tensor) -> Tensor | dict[str, Tensor]:
        """Return the cross-entropy summed over tokens, and the z-loss where there is one."""
        wanted, logits = self.labels(targets), at_least_fp32(outputs)
        if self.class_dim == -1:
            wanted, logits = wanted.flatten(), logits.flatten(0, 1)
        own = functional.cross_entropy(
            logits,
            wanted,
            ignore_index=self.ignore_index,
            reduction="sum",
            label_smoothing=self.label_smoothing,
        )
        if not self.z_loss:
            return own
        squares = logits.logsumexp(1).square().masked_fill(wanted == self.ignore_index, 0)
        return {"cross_entropy": own, "z_loss": self.z_loss * squares.sum()}

    def check(self, first: FirstBatch) -> None:
        """Check logits (samples, tokens, words) against tokens (samples, tokens)."""
        outputs, targets = expect.require_tensors(first)
        shape, wanted = tuple(outputs.shape), tuple(targets.shape)
        last, second = wanted == shape[:2], wanted == (shape[0], *shape[2:])
        if outputs.dim() != 3 or not (last if self.class_dim == -1 else second):
            hint = "For one class for each sample use surestep.losses.multiclass()."
            if outputs.dim() == 3 and (last or second):
                hint = f"Use class_dim={-self.class_dim}."
            raise self.shape_error(first, hint)
        dim = 2 if self.class_dim == -1 else 1
        if targets.dtype not in expect.INDEX_TYPES:
            raise DataError(f"Tokens are int64, and the targets {targets.dtype}: use .long().")
        expect.check_index_range(targets, shape[dim], self.ignore_index)
        expect.check_logits(first, called=self.name, applies="softmax", dim=dim)


@dataclass(eq=False, repr=False, kw_only=True)
class NextToken(_Tokens):
    """Next-token prediction: each token from those before it.

    Args:
        targets: "tokens": the targets are the inputs, and the loss compares the logits at t with
            token t + 1. "shifted": the target at t is the token to predict at t.
        ignore_index: targets with this value are ignored.
        z_loss: weight of the squared log-sum-exp of the logits; 1e-4 keeps logits small.
        label_smoothing: share of each target that is spread over the vocabulary.
        class_dim: dimension of the logits that has the vocabulary: -1, or 1 for (N, V, T).

    Raises:
        TaskError: an option is out of its range.
    """

    name = "next_token"
    doc = LossDoc(
        "next-token prediction",
        "logits (N, T, V), or (N, V, T) with class_dim=1",
        "tokens (N, T), which the loss shifts; already shifted with targets='shifted'",
        _FORMULA,
        "targets that are not ignored, after the shift",
        _Z_SOURCE,
    )

    targets: Literal["tokens", "shifted"] = "tokens"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.targets not in ("tokens", "shifted"):
            raise TaskError(f"targets={self.targets!r} is not known. Use 'tokens' or 'shifted'.")

    def labels(self, targets: Tensor) -> Tensor:
        """Return the token to predict at each position; that of the last one is not known.

        One more target is cheaper than a copy of the logits without the last position.
        """
        if self.targets == "shifted":
            return targets
        return functional.pad(targets[:, 1:], (0, 1), value=self.ignore_index)

    def check(self, first: FirstBatch) -> None:
        """Check shapes, and that targets are shifted exactly once."""
        super().check(first)
        targets = first.targets
        for tokens in first.inputs:
            if tokens.shape != targets.shape or tokens.is_floating_point() or len(targets[0]) < 3:
                continue
            if self.targets == "tokens" and _agree(
                targets[:, :-1], tokens[:, 1:], self.ignore_index
            ):
                raise DataError(
                    "The targets are shifted already: each is the next of the inputs. Use "
                    "surestep.losses.next_token(targets='shifted'), or give the inputs as targets."
                )
            if self.targets == "shifted" and _agree(targets, tokens, self.ignore_index):
                raise DataError(
                    "The targets are the inputs, not shifted: the model would learn to repeat "
                    "them. Use surestep.losses.next_token(targets='tokens')."
                )


def _agree(targets: Tensor, tokens: Tensor, ignored: int) -> bool:
    kept = targets != ignored
    # A shift of equal tokens shows nothing.
    several = len(tokens[kept].unique()) > 1
    return several and bool((targets[kept] == tokens[kept]).all())


class MaskedTokens(_Tokens):
    """Masked-token prediction: tokens that were masked in the inputs.

    Args:
        ignore_index: target of tokens that are not masked.
        z_loss: weight of the squared log-sum-exp of the logits; 1e-4 keeps logits small.
        label_smoothing: share of each target that is spread over the vocabulary.
        class_dim: dimension of the logits that has the vocabulary: -1, or 1 for (N, V, T).
    """

    name = "masked_tokens"
    doc = LossDoc(
        "masked-token prediction",
        "logits (N, T, V), or (N, V, T) with class_dim=1",
        "tokens (N, T), ignore_index at tokens that are not masked",
        _FORMULA,
        "targets that are not ignored",
        f"Devlin et al. 2018, https://arxiv.org/abs/1810.04805; {_Z_SOURCE}",
    )

    def check(self, first: FirstBatch) -> None:
        """Check shapes, and that some targets are ignored."""
        super().check(first)
        if bool((first.targets != self.ignore_index).all()):
            raise DataError(
                f"No target of the first batch is {self.ignore_index}, so every token is to be "
                f"predicted, also those that the model sees. Set targets to {self.ignore_index} "
                "at tokens that are not masked, or use surestep.losses.next_token()."
            )
