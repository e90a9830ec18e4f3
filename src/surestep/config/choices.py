"""What the values that users type mean, in Python, in TOML and on the command line.

A spelling with one clear meaning is accepted. One that could mean two things raises a Choice with
the texts to type. Option names of other libraries are in `foreign_names.py`, durations such as
"1k steps" in `duration.py`.
"""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from surestep.config.not_set import NOT_SET

# Options that can be switched off, and the value that means off.
OFF: Final[Mapping[str, object]] = {
    "max_grad_norm": None,
    "clip_value": None,
    "profile": None,
    "max_time": None,
    "limit_train_batches": None,
    "limit_val_batches": None,
    "exclude_samples": None,
    "optim.weight_decay": 0.0,
    "optim.layerwise_lr_decay": None,
    "optim.line_search_fn": None,
    "validation.every": None,
    "early_stop.patience": None,
    "early_stop.start": None,
    "checkpoint.every": None,
    "checkpoint.keep_every": None,
    "logging.every": None,
    "parallel.replica_check_every": None,
    "schedule.warmup": "0%",
    "average.kind": "none",
    "compile": "off",
    "activation_checkpointing": "off",
    "on_spike": "off",
    "parallel.offload": "off",
}
# Options for which 0 does not mean off. With a patience of 0, Lightning and Keras stop at the first
# evaluation without improvement; with a limit of 0 they use no batch. 0 is the name of a sample or
# a module. A layer-wise decay of 0 would stop all layers but the last.
_ZERO_IS_A_VALUE = (
    *("early_stop.patience", "exclude_samples", "optim.layerwise_lr_decay", "max_time"),
    *("limit_train_batches", "limit_val_batches", "activation_checkpointing"),
)
_OFF_WORDS = ("off", "none", "no", "false", "never", "null", "disable", "disabled")

# The main option of each group: `optim="adamw"` means `optim.name="adamw"`.
MAIN: Final[Mapping[str, str]] = {
    "optim": "name",
    "schedule": "name",
    "validation": "every",
    "early_stop": "patience",
    "average": "kind",
    "checkpoint": "every",
    "parallel": "strategy",
    "logging": "every",
}


class Choice(ValueError):
    """A value that could mean two things, or means something different here.

    Args:
        question: what is not clear.
        texts: what to type instead, each as options by full name ("" is the option itself), or as
            text if it is not an option.
    """

    def __init__(self, question: str, *texts: Mapping[str, Any] | str) -> None:
        super().__init__(question)
        self.question = question
        self.texts = texts


def _half(name: str) -> Choice:
    return Choice(
        "parameters of 16 bits are the model's, and not an option. For fp32 parameters and "
        f"{name} arithmetic",
        {"precision": name},
    )


_DOUBLE = Choice(
    "double precision is the model's, and not an option. Call model.double(), and",
    {"precision": "fp32"},
)
_TORCH_WARMUP = Choice(
    "torch's LinearLR rises from a third of the rate, and ours falls to the end of the run.",
    {"schedule.name": "constant", "schedule.warmup": "5 steps"},
    {"schedule.name": "linear"},
)
_TORCH_CONSTANT = Choice(
    "torch's ConstantLR holds a third of the rate for 5 steps, and ours stays.",
    {"schedule.name": "constant", "schedule.warmup": "5 steps"},
    {"schedule.name": "constant"},
)
_FUNCTION = Choice("the Task takes a function.", "Task(schedule=lambda step, total: 1.0)")
_DATA_PARALLEL = Choice(
    "torch replaced DataParallel by DistributedDataParallel.", {"parallel.strategy": "ddp"}
)
_UNUSED = Choice(
    "it is two options.", {"parallel.strategy": "ddp", "parallel.find_unused_parameters": True}
)


def _zero(stage: int) -> Choice:
    return Choice(
        "it is two options.", {"parallel.strategy": "deepspeed", "parallel.zero_stage": stage}
    )


_HOW_MANY = Choice("the number of evaluations to wait is missing.", {"early_stop.patience": 5})
_WHICH_AVERAGE = Choice(
    "the kind of average is missing.", {"average.kind": "ema"}, {"average.kind": "swa"}
)
_CUDA_GRAPHS = Choice("this mode is not offered.", {"compile": "max-autotune"})
_NOT_SHARDED = Choice("without sharding it is DDP.", {"parallel.strategy": "ddp"})
_HYBRID = Choice("only whole sharding is hybrid.", {"parallel.shard": "hybrid"})

_NO = ("off", "none", "no", "false")

# Spellings of other libraries, in lower case, without dashes, dots and spaces.
VALUES: Final[Mapping[str, Mapping[str, object]]] = {
    "device": {
        "auto": NOT_SET,
        "gpu": "cuda",
        "cuda": "cuda",
        "nvidia": "cuda",
        "cpu": "cpu",
    },
    "precision": {
        **dict.fromkeys(("32", "32true", "float32", "float", "single", "full", "no"), "fp32"),
        **dict.fromkeys(("16", "16mixed", "float16", "half", "fp16mixed"), "fp16"),
        **dict.fromkeys(("bf16mixed", "bfloat16", "mixedbfloat16", "bfloat16mixed"), "bf16"),
        "mixedfloat16": "fp16",
        "16true": _half("fp16"),
        "bf16true": _half("bf16"),
        **dict.fromkeys(("64", "64true", "float64", "fp64", "double"), _DOUBLE),
    },
    "compile": {
        **dict.fromkeys(("true", "on", "yes", "1", "inductor"), "default"),
        "maxautotunenocudagraphs": _CUDA_GRAPHS,
    },
    "activation_checkpointing": dict.fromkeys(("true", "on", "yes"), "on"),
    "on_nonfinite": {"error": "raise", "ignore": "skip"},
    "optim.name": {
        **dict.fromkeys(("adamwtorch", "adamwtorchfused", "adamwhf", "adamwfused"), "adamw"),
        **dict.fromkeys(("adamwbnb8bit", "adamw8bits"), "adamw8bit"),
    },
    "optim.implementation": dict.fromkeys(("forloop", "single", "singletensor"), "for_loop"),
    "schedule.name": {
        **dict.fromkeys(("constantwithwarmup", "fixed", *_NO), "constant"),
        **dict.fromkeys(("linearwithwarmup", "lineardecay", "warmuplinear"), "linear"),
        **dict.fromkeys(
            (
                *("cosineannealinglr", "cosineannealing", "cosinedecay", "cosinewithwarmup"),
                *("cosinewithminlr", "cosinelr", "warmupcosine"),
            ),
            "cosine",
        ),
        **dict.fromkeys(
            (
                *("cosinewithrestarts", "cosineannealingwarmrestarts", "cosinewithhardrestarts"),
                *("cosinehardrestarts", "cosinewithhardrestartswithwarmup", "sgdr"),
            ),
            "cosine_restarts",
        ),
        "steplr": "step",
        "multisteplr": "multi_step",
        "exponentiallr": "exponential",
        **dict.fromkeys(("polynomiallr", "poly", "polynomialdecay"), "polynomial"),
        **dict.fromkeys(("inversesquareroot", "noam", "rsqrt"), "inverse_sqrt"),
        "wsd": "warmup_stable_decay",
        **dict.fromkeys(("onecyclelr", "1cycle"), "one_cycle"),
        "cycliclr": "cyclic",
        **dict.fromkeys(("plateau", "reducelronplateau", "reducelr"), "reduce_on_plateau"),
        "linearlr": _TORCH_WARMUP,
        "constantlr": _TORCH_CONSTANT,
        **dict.fromkeys(
            ("lambdalr", "multiplicativelr", "sequentiallr", "chainedscheduler", "chain"), _FUNCTION
        ),
    },
    "schedule.anneal_strategy": {"cosine": "cos"},
    "schedule.threshold_mode": {"relative": "rel", "absolute": "abs"},
    "early_stop.patience": dict.fromkeys(("true", "on", "yes"), _HOW_MANY),
    "average.kind": {
        **dict.fromkeys(("true", "on", "yes"), _WHICH_AVERAGE),
        "exponential": "ema",
        "stochastic": "swa",
    },
    "parallel.strategy": {
        **dict.fromkeys(("distributeddataparallel", "ddpspawn", "multigpu"), "ddp"),
        **dict.fromkeys(("fsdp2", "fsdp1", "fullyshardeddataparallel", "fullyshard"), "fsdp"),
        **dict.fromkeys(("singledevice", "1", *_NO), "single"),
        **dict.fromkeys(("dp", "dataparallel"), _DATA_PARALLEL),
        "ddpfindunusedparameterstrue": _UNUSED,
        **{
            name.format(stage): _zero(stage)
            for stage in (1, 2, 3)
            for name in ("deepspeedstage{0}", "zero{0}")
        },
    },
    "parallel.shard": {
        **dict.fromkeys(("fsdp", "zero3", "true", "1", "fullshard"), "full"),
        **dict.fromkeys(("zero2", "2", "shardgradop"), "grad_op"),
        **dict.fromkeys(("ddp", "3", "none", "noshard"), _NOT_SHARDED),
        **dict.fromkeys(("4", "hybridshard"), "hybrid"),
        "hybridshardzero2": _HYBRID,
    },
    "parallel.offload": {"true": "all", "cpu": "all", "parameters": "all", "params": "all"},
    "logging.progress": {
        **dict.fromkeys(("true", "on", "yes", "1"), "auto"),
        **dict.fromkeys(("tqdm", "rich", "progressbar"), "bar"),
        **dict.fromkeys(("text", "lines", "log"), "plain"),
        **dict.fromkeys(("silent", "0", *_NO), "quiet"),
    },
    "validation.mode": {
        **dict.fromkeys(("lower", "smaller", "minimize", "less"), "min"),
        **dict.fromkeys(("higher", "larger", "greater", "maximize"), "max"),
    },
}


_MODULE = re.compile(r"^(torch|transformers|bitsandbytes)\.([a-z_]+\.)*")  # torch.optim.AdamW


def key(text: str) -> str:
    """Normalize a word: lower case, without dashes, underscores and spaces."""
    return re.sub(r"[\s_\-]", "", _MODULE.sub("", text.strip()).lower())


def plain_value(value: Any) -> Any:
    """Convert a value of torch, numpy or datetime to Python's types; return others unchanged."""
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, timedelta):
        return f"{value.total_seconds() / 60!r} minutes"
    home = type(value).__module__.partition(".")[0]
    if home in ("torch", "numpy"):
        if hasattr(value, "tolist"):  # an array or a tensor; of no dimension it is a number
            return value.tolist()
        return str(value).removeprefix("torch.")
    return value


def is_off(option: str, value: Any) -> bool:
    """Return whether a value switches an option off."""
    if option not in OFF or value in ([], ()):
        return False
    if value is None or value is False:
        return True
    if isinstance(value, (int, float)):
        return (value == 0 and option not in _ZERO_IS_A_VALUE) or (
            option == "max_grad_norm" and value == float("inf")
        )
    if not isinstance(value, str):
        return False
    word = value.strip().lower()
    return word in _OFF_WORDS or (word == "0" and option not in _ZERO_IS_A_VALUE)


def read_word(option: str, value: Any, choices: tuple[str, ...]) -> Any:
    """Return the meaning of a word for an option; return other values unchanged.

    Args:
        option: full name.
        value: as typed.
        choices: the words that the option takes, if any.

    Raises:
        Choice: it could mean two things.
    """
    value = plain_value(value)
    if is_off(option, value):
        return OFF[option]
    if isinstance(value, str) and value in choices:
        return value
    if value is None:
        return NOT_SET
    if not isinstance(value, (str, int)):
        return value
    if option == "device" and str(value).isdigit():
        return f"cuda:{value}"
    word = key(str(value))
    meant = VALUES.get(option, {}).get(word)
    if isinstance(meant, Choice):
        raise Choice(meant.question, *meant.texts)
    if meant is not None:
        return meant
    return next((choice for choice in choices if key(choice) == word), value)
