"""The optimizer."""

from collections.abc import Mapping
from typing import Any

from surestep.config.optim import OF_ALL, Optim
from surestep.engine.optim.registry import default_of, optimizer_info, options_of
from surestep.engine.parallel.deepspeed.config import uses_deepspeed_adam
from surestep.engine.plan.plan import PlanContext, Rule
from surestep.engine.rules.helpers import Rows, default_value, user_value, user_value_or
from surestep.engine.rules.optim_constraints import REFUSALS as REFUSALS

SPLIT = ("muon", "sparse_adam")


def own_options(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was chosen for the own options of the optimizer."""
    own = (option for option in options_of(chosen["optim.name"]) if f"optim.{option}" in chosen)
    return {option: chosen[f"optim.{option}"] for option in own}


def is_plugin(k: PlanContext) -> bool:
    """Return whether the optimizer is a plug-in."""
    name = k["optim.name"]
    return name != "own" and optimizer_info(name).plugin is not None


def _rows_of(option: str) -> tuple[Rule, ...]:
    """Rows of an own option; none of them holds where the optimizer does not have it."""
    full = f"optim.{option}"

    def has(k: PlanContext) -> bool:
        return option in options_of(k["optim.name"])

    def value(k: PlanContext) -> Any:
        return options_of(k["optim.name"])[option]

    return (
        Rule(
            lambda k: has(k) and full in k.set_options,
            lambda k: k.set_options[full],
            "set {origin}",
        ),
        Rule(lambda k: has(k) and k["optim.name"] == "adamw8bit", value, "bitsandbytes' default"),
        Rule(lambda k: has(k) and is_plugin(k), value, "the default of {k[optim.name]}"),
        Rule(has, value, "torch's default"),
    )


def _of_all(option: str) -> tuple[Rule, ...]:
    """Rows of an option that nearly all optimizers have."""
    return (
        user_value(f"optim.{option}"),
        Rule(lambda k: k.task_info.own_optimizer, lambda _: None, "the Task's optimizer's own"),
        Rule(
            lambda k: option == "weight_decay" and not optimizer_info(k["optim.name"]).decays,
            lambda _: None,
            "{k[optim.name]} has none",
        ),
        Rule(
            is_plugin,
            lambda k: float(default_of(k["optim.name"], option)),
            "the default of {k[optim.name]}",
        ),
        Rule(
            lambda k: True,
            lambda k: float(default_of(k["optim.name"], option)),
            "torch's default for {k[optim.name]}",
        ),
    )


def _lacks(implementation: str) -> Any:
    return lambda k: implementation not in optimizer_info(k["optim.name"]).signature


OWN_OPTIONS = [option for option in Optim.model_fields if option not in OF_ALL]
ROWS: Rows = {
    "optim.name": (
        Rule(lambda k: k.task_info.own_optimizer, lambda _: "own", "the Task brings its optimizer"),
        user_value("optim.name"),
        Rule(
            lambda k: bool(k.task_info.sparse),
            lambda _: "sparse_adam",
            "the gradient of {k.task_info.sparse[0]} is sparse: only rows that were looked up move",
        ),
        default_value("adamw", "trains most models without tuning; decay decoupled from the rate"),
    ),
    "optim.lr": _of_all("lr"),
    "optim.weight_decay": _of_all("weight_decay"),
    **{f"optim.{option}": _rows_of(option) for option in OWN_OPTIONS},
    "optim.adamw_lr": (
        *_rows_of("adamw_lr")[:1],
        Rule(
            lambda k: k["optim.name"] == "muon" and k["optim.adjust_lr_fn"] != "match_rms_adamw",
            lambda _: default_of("adamw", "lr"),
            "torch's default for AdamW, which moves what Muon does not",
        ),
        Rule(
            lambda k: k["optim.name"] in SPLIT and k.task_info.dense,
            lambda k: k["optim.lr"],
            "optim.lr: the two move weights alike",
        ),
    ),
    "optim.split": (
        Rule(
            lambda k: k["optim.name"] == "muon",
            lambda k: f"{len(k.task_info.hidden)} by Muon, the rest by AdamW",
            "Muon is for hidden matrices; AdamW moves embeddings, the last layer and what is no "
            "matrix",
        ),
        Rule(
            lambda k: k["optim.name"] == "sparse_adam" and k.task_info.dense,
            lambda k: f"{len(k.task_info.sparse)} by SparseAdam, the rest by AdamW",
            "SparseAdam takes only sparse gradients",
        ),
    ),
    "optim.implementation": (
        Rule(lambda k: k.task_info.own_optimizer, lambda _: "own", "the Task brings its optimizer"),
        Rule(
            uses_deepspeed_adam,
            lambda _: "deepspeed",
            "parallel.deepspeed says torch_adam=false: DeepSpeed's own, compiled at its first use",
        ),
        Rule(
            lambda k: k.set_options.get("optim.implementation", "auto") != "auto",
            lambda k: k.set_options["optim.implementation"],
            "set {origin}",
        ),
        Rule(_lacks("foreach"), lambda _: "for_loop", "the only one there is of {k[optim.name]}"),
        Rule(
            lambda k: bool(k.task_info.sparse),
            lambda _: "for_loop",
            "the gradient of {k.task_info.sparse[0]} is sparse, which goes one tensor after "
            "another",
        ),
        Rule(_lacks("fused"), lambda _: "foreach", "torch has no fused {k[optim.name]}"),
        Rule(
            lambda k: k.device == "mps",
            lambda _: "foreach",
            "whether the fused kernel can skip a step was not verified on mps",
        ),
        Rule(
            lambda k: k.task_info.floating,
            lambda _: "fused",
            "torch has it for {k.device}: one kernel, and it can skip without the host",
        ),
        default_value("foreach", "fused takes no complex parameters"),
    ),
    "optim.groups": user_value_or(
        "optim.groups", (), "not set: all parameters by the same options"
    ),
    "optim.layerwise_lr_decay": user_value_or(
        "optim.layerwise_lr_decay", None, "not set: one rate for all layers"
    ),
}
