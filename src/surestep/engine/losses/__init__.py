"""Losses by task, each with its formula, shapes and true denominator; `surestep losses` lists them.

Pass a loss to a Task, `Task(loss=surestep.losses.huber(delta=0.5), ...)`, or its name to use its
defaults, `Task(loss="huber", ...)`. A loss that is called returns its mean.
"""

from surestep.engine.losses.classification import Binary as binary
from surestep.engine.losses.classification import MultiClass as multiclass
from surestep.engine.losses.classification import MultiLabel as multilabel
from surestep.engine.losses.ctc import CTC as ctc
from surestep.engine.losses.distillation import Distillation as distillation
from surestep.engine.losses.embeddings import Contrastive as contrastive
from surestep.engine.losses.embeddings import ContrastivePairs as contrastive_pairs
from surestep.engine.losses.embeddings import Margin as margin
from surestep.engine.losses.embeddings import Triplet as triplet
from surestep.engine.losses.language_modeling import MaskedTokens as masked_tokens
from surestep.engine.losses.language_modeling import NextToken as next_token
from surestep.engine.losses.regression import Huber as huber
from surestep.engine.losses.regression import Mae as mae
from surestep.engine.losses.regression import Mse as mse
from surestep.engine.losses.regression import Quantile as quantile
from surestep.engine.losses.segmentation import Dice as dice
from surestep.engine.losses.segmentation import DiceBce as dice_bce
from surestep.engine.losses.segmentation import DiceCe as dice_ce
from surestep.engine.losses.segmentation import Focal as focal

__all__ = [
    "binary",
    "contrastive",
    "contrastive_pairs",
    "ctc",
    "dice",
    "dice_bce",
    "dice_ce",
    "distillation",
    "focal",
    "huber",
    "mae",
    "margin",
    "masked_tokens",
    "mse",
    "multiclass",
    "multilabel",
    "next_token",
    "quantile",
    "triplet",
]
