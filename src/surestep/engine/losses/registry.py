"""The table of losses: what each is for, what it takes, and what it is a mean over."""

import inspect
from typing import Any

from surestep.base.errors import TaskError, suggest_names
from surestep.engine.losses.base import BuiltinLoss
from surestep.engine.losses.classification import Binary, MultiClass, MultiLabel
from surestep.engine.losses.contrastive import Contrastive, ContrastivePairs
from surestep.engine.losses.ctc import CTC
from surestep.engine.losses.distillation import Distillation
from surestep.engine.losses.focal import Focal
from surestep.engine.losses.language_modeling import MaskedTokens, NextToken
from surestep.engine.losses.ranking import Margin, Triplet
from surestep.engine.losses.regression import Huber, Mae, Mse, Quantile
from surestep.engine.losses.segmentation import Dice, DiceBce, DiceCe

CATALOG: dict[str, type[BuiltinLoss]] = {
    "binary": Binary,
    "multiclass": MultiClass,
    "multilabel": MultiLabel,
    "mse": Mse,
    "mae": Mae,
    "huber": Huber,
    "quantile": Quantile,
    "margin": Margin,
    "triplet": Triplet,
    "contrastive": Contrastive,
    "contrastive_pairs": ContrastivePairs,
    "distillation": Distillation,
    "dice": Dice,
    "dice_bce": DiceBce,
    "dice_ce": DiceCe,
    "focal": Focal,
    "next_token": NextToken,
    "masked_tokens": MaskedTokens,
    "ctc": CTC,
}


_OF_MODEL = ("model", "model in training")


def get_loss(name: str) -> BuiltinLoss:
    """Return the loss of this name with its own defaults.

    Raises:
        TaskError: there is none.
    """
    if name not in CATALOG:
        raise TaskError(
            f"loss={name!r} is not in the table. {suggest_names(name, (*CATALOG, *_OF_MODEL))} "
            "`surestep losses` explains them; 'model' takes the .loss that the model returns, and "
            "'model in training' its dict of losses."
        )
    return CATALOG[name]()


def signature_text(name: str) -> str:
    """Return how the loss is made, with its options and their defaults."""
    parameters = inspect.signature(CATALOG[name]).parameters.values()
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    said = [f"{each.name}={each.default!r}" for each in parameters if each.kind not in kinds]
    return f"{name}({', '.join(said)})"


def loss_docs() -> list[dict[str, Any]]:
    """Return the whole table, a row for each loss."""
    return [
        {"name": name, "call": signature_text(name), **each.doc._asdict()}
        for name, each in CATALOG.items()
    ]
