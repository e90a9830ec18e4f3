"""The optimizer."""

from collections.abc import Mapping
from typing import Any

from surestep.engine.optim.catalog import OPTIMIZERS, default_of, options_of
from surestep.engine.parallel.deepspeed_config import own_adam
from surestep.engine.plan import Known, Row
from surestep.engine.table.optim_refusals import REFUSALS as REFUSALS
from surestep.engine.table.rows import Rows, default, plain, said

SPLIT = ("muon", "sparse_adam")


def own_options(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was chosen for the own options of the optimizer."""
    own = (option for option in options_of(chosen["optim.name"]) if f"optim.{option}" in chosen)
    return {option: chosen[f"optim.{option}"] for option in own}


def _rows_of(option: str) -> tuple[Row, ...]:
    """Rows of an own option; none of them holds where the optimizer does not have it."""
    full = f"optim.{option}"

    def has(k: Known) -> bool:
        return option in options_of(k["optim.name"])

    def value(k: Known) -> Any:
        return options_of(k["optim.name"])[option]

    return (
        Row(lambda k: has(k) and full in k.said, lambda k: k.said[full], "said: {origin}"),
        Row(lambda k: has(k) and k["optim.name"] == "adamw8bit", value, "bitsandbytes' default"),
        Row(has, value, "torch's default"),
    )


def _of_all(option: str) -> tuple[Row, ...]:
    """Rows of an option that nearly all optimizers have."""
    return (
        said(f"optim.{option}"),
        Row(lambda k: k.given.own_optimizer, lambda _: None, "the Task's optimizer's own"),
        Row(
            lambda k: option == "weight_decay" and not OPTIMIZERS[k["optim.name"]].decays,
            lambda _: None,
            "{k[optim.name]} has none",
        ),
        Row(
            lambda k: True,
            lambda k: float(default_of(k["optim.name"], option)),
            "torch's default for {k[optim.name]}",
        ),
    )


def _lacks(implementation: str) -> Any:
    return lambda k: implementation not in OPTIMIZERS[k["optim.name"]].signature


OWN_OPTIONS = {option: None for known in OPTIMIZERS.values() for option in known.options}
ROWS: Rows = {
    "optim.name": (
        Row(lambda k: k.given.own_optimizer, lambda _: "own", "the Task brings its optimizer"),
        said("optim.name"),
        Row(
            lambda k: bool(k.given.sparse),
            lambda _: "sparse_adam",
            "the gradient of {k.given.sparse[0]} is sparse: only rows that were looked up move",
        ),
        default("adamw", "trains most models without tuning; decay decoupled from the rate"),
    ),
    "optim.lr": _of_all("lr"),
    "optim.weight_decay": _of_all("weight_decay"),
    **{f"optim.{option}": _rows_of(option) for option in OWN_OPTIONS},
    "optim.adamw_lr": (
        *_rows_of("adamw_lr")[:1],
        Row(
            lambda k: k["optim.name"] == "muon" and k["optim.adjust_lr_fn"] != "match_rms_adamw",
            lambda _: default_of("adamw", "lr"),
            "torch's default for AdamW, which moves what Muon does not",
        ),
        Row(
            lambda k: k["optim.name"] in SPLIT and k.given.dense,
            lambda k: k["optim.lr"],
            "optim.lr: the two move weights alike",
        ),
    ),
    "optim.split": (
        Row(
            lambda k: k["optim.name"] == "muon",
            lambda k: f"{len(k.given.hidden)} by Muon, the rest by AdamW",
            "Muon is for hidden matrices; AdamW moves embeddings, the last layer and what is no "
            "matrix",
        ),
        Row(
            lambda k: k["optim.name"] == "sparse_adam" and k.given.dense,
            lambda k: f"{len(k.given.sparse)} by SparseAdam, the rest by AdamW",
            "SparseAdam takes only sparse gradients",
        ),
    ),
    "optim.implementation": (
        Row(lambda k: k.given.own_optimizer, lambda _: "own", "the Task brings its optimizer"),
        Row(
            own_adam,
            lambda _: "deepspeed",
            "parallel.deepspeed says torch_adam=false: DeepSpeed's own, compiled at its first use",
        ),
        Row(
            lambda k: k.said.get("optim.implementation", "auto") != "auto",
            lambda k: k.said["optim.implementation"],
            "said: {origin}",
        ),
        Row(_lacks("foreach"), lambda _: "plain", "the only one there is of {k[optim.name]}"),
        Row(
            lambda k: bool(k.given.sparse),
            lambda _: "plain",
            "the gradient of {k.given.sparse[0]} is sparse, which goes one tensor after another",
        ),
        Row(_lacks("fused"), lambda _: "foreach", "torch has no fused {k[optim.name]}"),
        Row(
            lambda k: k.device == "mps",
            lambda _: "foreach",
            "whether the fused kernel can skip a step was not verified on mps",
        ),
        Row(
            lambda k: k.given.floating,
            lambda _: "fused",
            "torch has it for {k.device}: one kernel, and it can skip without the host",
        ),
        default("foreach", "fused takes no complex parameters"),
    ),
    "optim.groups": plain("optim.groups", (), "nothing said: all parameters by the same options"),
    "optim.layer_decay": plain("optim.layer_decay", None, "nothing said: one rate for all layers"),
}
