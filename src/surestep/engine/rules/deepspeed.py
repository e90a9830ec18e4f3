"""DeepSpeed: which stage of ZeRO, what leaves the device, and the configuration it is given."""

import math

from surestep.config.param_groups import parse_param_group
from surestep.engine.parallel.deepspeed.config import (
    make_ds_config,
    problems,
    sums_in_16_bits,
    uses_deepspeed_adam,
)
from surestep.engine.plan.plan import Constraint, PlanContext, Rule
from surestep.engine.rules.helpers import (
    Refusals,
    Rows,
    default_value,
    user_value,
)

# These move each element by itself, so that it does not matter how ZeRO cuts what they move.
ELEMENT_BY_ELEMENT = (
    *("adadelta", "adam", "adamax", "adamw", "asgd", "nadam", "own", "radam"),
    *("rmsprop", "rprop", "sgd"),
)


def _here(k: PlanContext) -> bool:
    return bool(k["parallel.strategy"] == "deepspeed")


def _shares(k: PlanContext) -> bool:
    return _here(k) and k["parallel.zero_stage"] > 0


def _thawing(k: PlanContext) -> str | None:
    """Return a group that is frozen for a time only."""
    for text in k.set_options.get("optim.groups", ()):
        if isinstance(parse_param_group(text).freeze, str):
            return str(text)
    return None


def _unfit_adam(k: PlanContext) -> str | None:
    """Say why DeepSpeed's own Adam is not had, and what to do; None where it is."""
    wish = k.set_options.get("optim.implementation", "auto")
    if wish != "auto":
        return f"optim.implementation={wish!r} is torch's. Leave one of them out"
    if k["optim.name"] not in ("adam", "adamw"):
        return f"optim.name is {k['optim.name']!r}. Say 'adam' or 'adamw', or leave the key out"
    if k["optim.amsgrad"]:
        return "it has no amsgrad. Leave optim.amsgrad out, or the key"
    if not k["parallel.zero_stage"]:
        return (
            "parallel.zero_stage=0 has no fp32 pieces for it. Say 1, 2 or 3, or leave the key out"
        )
    return None


def _unfit_scaler(k: PlanContext) -> str | None:
    """Return an option of the loss scale that DeepSpeed's has not."""
    fits = {
        "scaler.init_scale": math.log2(k["scaler.init_scale"]).is_integer(),
        "scaler.growth_factor": k["scaler.growth_factor"] == 2,
        "scaler.backoff_factor": k["scaler.backoff_factor"] == 0.5,
    }
    return next((name for name, fit in fits.items() if not fit), None)


ROWS: Rows = {
    "parallel.zero_stage": (
        user_value("parallel.zero_stage"),
        Rule(
            _here,
            lambda _: 2,
            "optimizer and gradients are shared out; parameters too (3) costs a gathering of each "
            "layer at each forward and backward",
        ),
        default_value(None, "parallel.strategy is {k[parallel.strategy]}"),
    ),
    "parallel.deepspeed": (
        Rule(
            lambda k: _here(k) and sums_in_16_bits(k),
            make_ds_config,
            "made of this plan, with keys of your own, by which gradients are added up in 16 bits: "
            "the rounding differs with the number of ranks; set {origin}",
        ),
        Rule(
            lambda k: "parallel.deepspeed" in k.set_options,
            make_ds_config,
            "made of this plan, with keys of your own; set {origin}",
        ),
        Rule(
            _here,
            make_ds_config,
            "made of this plan; a copy is in the run folder, as ds_config.json",
        ),
        default_value({}, "parallel.strategy is {k[parallel.strategy]}"),
    ),
}

REFUSALS: Refusals = {
    "parallel.deepspeed": (
        Constraint(
            lambda k: _here(k) and k["parallel.offload"] == "all" and k["parallel.zero_stage"] != 3,
            lambda k: (
                "parallel.offload='all' moves parameters away too, and parallel.zero_stage="
                f"{k['parallel.zero_stage']} keeps them whole. Say parallel.zero_stage=3, or "
                "parallel.offload='optimizer'."
            ),
        ),
        Constraint(
            lambda k: _here(k) and k["parallel.offload"] != "off" and not k["parallel.zero_stage"],
            lambda k: (
                f"parallel.offload={k['parallel.offload']!r} needs parallel.zero_stage=1, 2 or "
                "3: stage "
                "0 is DDP. Say one of them, or leave it out."
            ),
        ),
        Constraint(
            lambda k: _here(k) and "deepspeed" not in k.system.extras,
            lambda _: (
                "parallel.strategy='deepspeed' needs the package deepspeed, which is not here. "
                "Install "
                "it: pip install setuptools wheel, then pip install --no-build-isolation "
                "'surestep[deepspeed]'."
            ),
        ),
        Constraint(
            lambda k: _here(k) and k["clip_value"] is not None,
            lambda k: (
                f"clip_value={k['clip_value']}: DeepSpeed clips the norm only. Say max_grad_norm, "
                "or another parallel.strategy."
            ),
        ),
        Constraint(
            lambda k: _here(k) and uses_deepspeed_adam(k) and _unfit_adam(k) is not None,
            lambda k: (
                "parallel.deepspeed says torch_adam=false, which is DeepSpeed's own Adam, and "
                f"{_unfit_adam(k)}."
            ),
        ),
        Constraint(
            lambda k: _shares(k) and k["optim.name"] not in ELEMENT_BY_ELEMENT,
            lambda k: (
                f"optim.name={k['optim.name']!r} moves whole tensors, and parallel.zero_stage="
                f"{k['parallel.zero_stage']} cuts them. Say one of "
                f"{', '.join(repr(each) for each in ELEMENT_BY_ELEMENT if each != 'own')}; or "
                "parallel.zero_stage=0."
            ),
        ),
        Constraint(
            lambda k: _here(k) and bool(k.task_info.sparse),
            lambda k: (
                f"The gradient of {k.task_info.sparse[0]} is sparse, which DeepSpeed is not given. "
                "Build the table with sparse=False, or say parallel.strategy='ddp'."
            ),
        ),
        Constraint(
            lambda k: _here(k) and bool(k.task_info.scalars),
            lambda k: (
                f"{k.task_info.scalars[0]} has no dimension, and DeepSpeed cannot send it to the "
                "other "
                "ranks. Make it of one, torch.ones(1), or say parallel.strategy='ddp'."
            ),
        ),
        Constraint(
            lambda k: (
                _here(k) and k["precision"] in ("bf16", "fp16") and not k["parallel.zero_stage"]
            ),
            lambda k: (
                f"parallel.zero_stage=0 computes in fp32, and precision is {k['precision']}: "
                "DeepSpeed "
                "keeps parameters of 16 bits with their fp32 copies only where those are shared. "
                "Say parallel.zero_stage=1, or precision='fp32'."
            ),
        ),
        Constraint(
            lambda k: _here(k) and k["compile"] != "off",
            lambda k: (
                f"compile={k['compile']!r}: DeepSpeed's hooks stand in the model that would be "
                "compiled. Say compile='off', or another parallel.strategy."
            ),
        ),
        Constraint(
            lambda k: (
                _here(k)
                and k["average.kind"] != "none"
                and (k["parallel.zero_stage"] == 3 or k["precision"] in ("bf16", "fp16"))
            ),
            lambda k: (
                f"average.kind={k['average.kind']!r} needs whole parameters in fp32 on each rank: "
                "parallel.zero_stage up to 2 with precision='fp32'. Say those, or leave the "
                "average out."
            ),
        ),
        Constraint(
            lambda k: _shares(k) and _thawing(k) is not None,
            lambda k: (
                f"optim.groups: {_thawing(k)!r} would be trained later, and parallel.zero_stage="
                f"{k['parallel.zero_stage']} shares out what is trained from the start. Freeze "
                "it for "
                "good, or say parallel.zero_stage=0."
            ),
        ),
        Constraint(
            lambda k: _here(k) and k["precision"] == "fp16" and _unfit_scaler(k) is not None,
            lambda k: (
                f"{_unfit_scaler(k)}={k[str(_unfit_scaler(k))]}: DeepSpeed's loss scale starts at "
                "a power of 2, doubles and halves. Leave it out, or say another parallel.strategy."
            ),
        ),
        Constraint(
            lambda k: _here(k) and k["precision"] == "fp16" and not k.on_gpu,
            lambda _: (
                "precision='fp16' is computed by DeepSpeed on GPUs only, and the device is the "
                "CPU. Say precision='bf16', or parallel.strategy='ddp'."
            ),
        ),
        Constraint(
            lambda k: (
                _here(k) and k["parallel.zero_stage"] == 3 and k["checkpoint.weights"] == "trained"
            ),
            lambda _: (
                "checkpoint.weights='trained' proves by fingerprints that what is frozen is the "
                "same, and with parallel.zero_stage=3 a rank has parts of it. Say "
                "checkpoint.weights='all', or parallel.zero_stage=2."
            ),
        ),
        Constraint(lambda k: _here(k) and bool(problems(k)), lambda k: "\n".join(problems(k))),
    ),
}
