"""What the user asked: frozen, typed, validated. `None` says "not said": the Plan decides.

The same names stand in Python, in TOML and on the command line. What an option means stands here;
what is chosen where nothing was said, and why, stands in `engine/table.py`.
"""

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)

from surestep.base.errors import ConfigError, near
from surestep.base.values import (
    ClockPeriod,
    Count,
    NotNegative,
    Period,
    Positive,
    Precision,
    Share,
    StepPeriod,
    Warmup,
    Whole,
)


class Group(BaseModel):
    """A group of options; the ones of the Config itself have an empty `prefix`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    prefix: ClassVar[str] = ""

    @model_validator(mode="wrap")
    @classmethod
    def _explain(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(data)
        except ValidationError as error:
            found = "\n".join(_sentence(cls, detail) for detail in error.errors())
            raise ConfigError(found) from None


def _sentence(group: type[Group], detail: Mapping[str, Any]) -> str:
    """Turn one of pydantic's findings into a sentence that names what to type."""
    name = str(detail["loc"][0]) if detail["loc"] else ""
    full = (group.prefix + name).rstrip(".")
    if detail["type"] == "extra_forbidden":
        elsewhere = [option for option, _ in options() if option.split(".")[-1] == name]
        # Compared without the group, which all of them share.
        own = near(name, group.model_fields, group.prefix)
        return f"There is no option {full!r}. {near(elsewhere[0], elsewhere) if elsewhere else own}"
    what = detail["msg"].removeprefix("Value error, ").replace("Input should be", "it must be")
    what = what.replace("Field required", "it takes two numbers, such as 0.9 0.999")
    return f"{full}={detail['input']!r} is not allowed: {what}."


class Optim(Group):
    """The optimizer."""

    prefix: ClassVar[str] = "optim."
    name: Literal["adamw", "sgd"] | None = Field(
        default=None, description="Optimizer: adamw or sgd. A Task may bring another one."
    )
    lr: Positive | None = Field(default=None, description="Peak learning rate.")
    weight_decay: NotNegative | None = Field(
        default=None, description="Weight decay; biases, normalisation and embeddings are kept out."
    )
    betas: tuple[Share, Share] | None = Field(
        default=None, description="AdamW: decay rates of the two moments."
    )
    eps: Positive | None = Field(default=None, description="AdamW: added to the denominator.")
    momentum: Share | None = Field(default=None, description="SGD: momentum.")
    nesterov: bool | None = Field(default=None, description="SGD: Nesterov momentum.")


class Schedule(Group):
    """The learning rate as a function of optimizer steps taken."""

    prefix: ClassVar[str] = "schedule."
    name: Literal["constant", "cosine"] | None = Field(
        default=None, description="constant, or cosine: from the peak down to the floor."
    )
    warmup: Warmup | None = Field(
        default=None,
        description="Linear warm-up: '100 steps', '2 epochs' or a share such as '10%'.",
    )
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="Floor of the rate, as a share of the peak."
    )
    floor: Literal["scale", "cut"] | None = Field(
        default=None,
        description="scale: the curve ends at the floor; cut: it heads for 0 and stops there.",
    )
    every: StepPeriod | None = Field(
        default=None,
        description="How often the rate moves: '1 step', or '1 epoch' for a staircase.",
    )


class Scaler(Group):
    """Loss scaling under fp16 (torch.amp.GradScaler's words)."""

    prefix: ClassVar[str] = "scaler."
    init_scale: Annotated[float, Field(ge=1)] | None = Field(
        default=None, description="fp16: first loss scale."
    )
    growth_factor: Annotated[float, Field(gt=1)] | None = Field(
        default=None, description="fp16: what the scale grows by after growth_interval good steps."
    )
    growth_interval: Count | None = Field(
        default=None, description="fp16: good steps in a row before the scale grows."
    )
    backoff_factor: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=None, description="fp16: what the scale is multiplied by after an overflow."
    )


class Data(Group):
    """How data is loaded."""

    prefix: ClassVar[str] = "data."
    num_workers: Whole | None = Field(default=None, description="Processes that load data.")
    pin_memory: bool | None = Field(default=None, description="Load into page-locked memory.")
    persistent_workers: bool | None = Field(
        default=None, description="Keep the workers alive between epochs."
    )
    prefetch_factor: Count | None = Field(
        default=None, description="Micro-batches that each worker loads ahead."
    )
    drop_last: bool | None = Field(
        default=None, description="Drop the last batch of an epoch where it is smaller."
    )
    shuffle: bool | None = Field(default=None, description="Train in a new order each epoch.")


class Validation(Group):
    """When to evaluate, and by what to judge."""

    prefix: ClassVar[str] = "validation."
    every: Period | None = Field(
        default=None, description="How often to evaluate: '1 epoch', '500 steps'."
    )
    batch_size: Count | None = Field(default=None, description="Samples evaluated at once.")
    metric: str | None = Field(
        default=None, description="What 'best' means: 'loss', a metric's name, or 'set/metric'."
    )
    mode: Literal["min", "max"] | None = Field(
        default=None, description="Whether a smaller or a larger metric is better."
    )


class EarlyStop(Group):
    """Stop when the metric no longer gets better."""

    prefix: ClassVar[str] = "early_stop."
    patience: Count | None = Field(
        default=None,
        description="Stop after this many evaluations in a row without a better metric.",
    )
    min_delta: NotNegative | None = Field(
        default=None, description="A change smaller than this does not count as better."
    )


class Checkpoint(Group):
    """When to save, and what to keep."""

    prefix: ClassVar[str] = "checkpoint."
    every: ClockPeriod | None = Field(
        default=None, description="How often to save: '1 epoch', '500 steps', '10 minutes'."
    )
    keep_last: Count | None = Field(default=None, description="Newest checkpoints to keep.")
    keep_best: Whole | None = Field(
        default=None, description="Best checkpoints to keep, by the metric."
    )


class Logging(Group):
    """When the host reads the device, and what is shown."""

    prefix: ClassVar[str] = "logging."
    every: ClockPeriod | None = Field(
        default=None,
        description="How often the host reads losses from the device and writes events.",
    )
    progress: Literal["auto", "bar", "plain", "quiet"] | None = Field(
        default=None, description="A bar, plain lines, or nothing."
    )


class Config(Group):
    """Everything a user may ask for; each option not said is decided by the Plan."""

    epochs: Positive | None = Field(default=None, description="Passes over the training data.")
    max_steps: Count | None = Field(
        default=None, description="Optimizer steps to take, where not epochs decide."
    )
    batch_size: Count | None = Field(
        default=None, description="Samples that one optimizer step sees, on all ranks together."
    )
    micro_batch_size: Count | None = Field(
        default=None,
        description="Samples that one rank holds at once: a matter of memory, never of the update.",
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = Field(
        default=None, description="Decides weights, order, augmentation and dropout."
    )
    deterministic: bool | None = Field(
        default=None, description="Use only torch's deterministic algorithms (slower on a GPU)."
    )
    device: str | None = Field(default=None, description="cpu, cuda, cuda:1, ...")
    precision: Precision | None = Field(
        default=None,
        description="fp32, tf32, bf16, fp16, or auto: bf16 where a GPU has it natively.",
    )
    max_grad_norm: Positive | Literal["off"] | None = Field(
        default=None, description="Clip the norm of all gradients to this; off: only measure it."
    )
    clip_value: Positive | None = Field(
        default=None,
        description="Clip each element of the gradients to this (instead of the norm).",
    )
    on_nonfinite: Literal["raise", "skip"] | None = Field(
        default=None,
        description="A loss or gradient that is not finite ends the run, or skips the step.",
    )
    max_nonfinite: Whole | None = Field(
        default=None,
        description="How many steps on_nonfinite='skip' may skip before the run fails.",
    )
    optim: Optim = Optim()
    schedule: Schedule = Schedule()
    scaler: Scaler = Scaler()
    data: Data = Data()
    validation: Validation = Validation()
    early_stop: EarlyStop = EarlyStop()
    checkpoint: Checkpoint = Checkpoint()
    logging: Logging = Logging()

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.epochs is not None and self.max_steps is not None:
            raise ConfigError(
                f"epochs={self.epochs:g} and max_steps={self.max_steps} both say how long to "
                "train. Say one of them."
            )
        return self

    def said(self) -> dict[str, Any]:
        """List the options that were said, by their full names ("optim.lr")."""
        found = ((name, attrgetter(name)(self)) for name, _ in options())
        return {name: value for name, value in found if value is not None}

    def with_options(self, said: Mapping[str, Any]) -> "Config":
        """Return a Config in which the options in `said`, by full name, stand over these.

        A length said anew ("epochs") stands over the other way to say it ("max_steps").
        """
        merged = self.said()
        if {"epochs", "max_steps"} & {name for name, value in said.items() if value is not None}:
            merged.pop("epochs", None)
            merged.pop("max_steps", None)
        merged.update({name: value for name, value in said.items() if value is not None})
        return Config.from_options(merged)

    @classmethod
    def from_options(cls, said: Mapping[str, Any]) -> "Config":
        """Build a Config from full names, as they stand in `said()`."""
        nested: dict[str, Any] = {}
        for name, value in said.items():
            group, _, field = name.rpartition(".")
            if group and group not in cls.model_fields:
                deep = group.partition(".")[0] in cls.model_fields
                hint = near(group, [group] if deep else cls.model_fields)
                raise ConfigError(f"There is no option {name if deep else group!r}. {hint}")
            target = nested.setdefault(group, {}) if group else nested
            target[field] = value
        return cls(**nested)


def options() -> Iterator[tuple[str, Any]]:
    """List every option as (full name, pydantic field)."""
    for name, field in Config.model_fields.items():
        if isinstance(field.default, Group):
            for inner, inner_field in type(field.default).model_fields.items():
                yield f"{name}.{inner}", inner_field
        else:
            yield name, field
