"""What the user asked: frozen, typed, validated. `None` says "not said": the Plan decides.

The same names stand in Python, in TOML and on the command line. What an option means stands here
and in `groups/`; what is chosen where nothing was said, and why, stands in `engine/table/`.
"""

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from surestep.base.errors import ConfigError, near
from surestep.base.groups.average import Average
from surestep.base.groups.data import Data
from surestep.base.groups.evaluation import EarlyStop, Validation
from surestep.base.groups.group import Group
from surestep.base.groups.optim import Optim
from surestep.base.groups.parallel import Parallel
from surestep.base.groups.precision import Scaler
from surestep.base.groups.record import Checkpoint, Logging
from surestep.base.groups.schedule import Schedule
from surestep.base.values import (
    Clock,
    Count,
    Positive,
    Precision,
    Recomputed,
    SamplesOrFile,
    Steps,
    Whole,
)


class Config(Group):
    """Everything a user may ask for; each option not said is decided by the Plan."""

    epochs: Positive | None = Field(default=None, description="Passes over the training data.")
    max_steps: Count | None = Field(
        default=None, description="Optimizer steps to take, where not epochs decide."
    )
    limit_train_batches: Count | None = Field(
        default=None, description="Train on the first batches of each epoch only: a trial run."
    )
    limit_val_batches: Count | None = Field(
        default=None, description="Evaluate on the first batches of a validation set only."
    )
    max_time: Clock | None = Field(
        default=None,
        description="Save and leave after this long ('110 minutes'); the same call resumes.",
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
    device: str | None = Field(default=None, description="cpu, cuda, cuda:1, mps, ...")
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
    on_spike: Literal["tell", "rollback", "off"] | None = Field(
        default=None,
        description="A loss far above those before it is told; or the run goes back to the "
        "checkpoint before it and leaves that stretch of data out.",
    )
    max_rollbacks: Count | None = Field(
        default=None, description="How often on_spike='rollback' may go back."
    )
    skip_samples: SamplesOrFile | None = Field(
        default=None,
        description="Training samples to leave out: a file such as a run's skipped.json, or "
        "indices.",
    )
    activation_checkpointing: Recomputed | None = Field(
        default=None,
        description="Compute activations again in the backward instead of keeping them: off, on, "
        "'every 2' blocks, or names of modules such as 'encoder.layers.*'.",
    )
    compile: Literal["off", "default", "reduce-overhead", "max-autotune"] | None = Field(
        default=None, description="torch.compile's mode, or off."
    )
    compile_blocks: bool | None = Field(
        default=None, description="Compile each block of the model by itself: quicker to start."
    )
    channels_last: bool | None = Field(
        default=None, description="Lay images and convolutions out with the channels last."
    )
    matmul_precision: Literal["highest", "high", "medium"] | None = Field(
        default=None, description="fp32 products: torch.set_float32_matmul_precision."
    )
    cudnn_benchmark: bool | None = Field(
        default=None, description="Let cuDNN try its algorithms for each new shape."
    )
    sdpa_backend: Literal["auto", "flash", "efficient", "cudnn", "math"] | None = Field(
        default=None, description="What computes scaled_dot_product_attention; auto: torch."
    )
    cpu_allocator: Literal["auto", "retain", "default"] | None = Field(
        default=None,
        description="retain: freed memory stays in the process (glibc's malloc); default: the "
        "allocator's own settings; auto: retain on a CPU.",
    )
    profile: Steps | None = Field(
        default=None, description="Steps to watch with torch's profiler: '10:15'."
    )
    optim: Optim = Optim()
    schedule: Schedule = Schedule()
    scaler: Scaler = Scaler()
    data: Data = Data()
    validation: Validation = Validation()
    early_stop: EarlyStop = EarlyStop()
    average: Average = Average()
    checkpoint: Checkpoint = Checkpoint()
    parallel: Parallel = Parallel()
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

    def alone(self) -> "Config":
        """Return it without what is said of several processes, to look at their run in one."""
        said = self.said().items()
        return Config.from_options(
            {name: value for name, value in said if not name.startswith("parallel.")}
        )

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
            if not isinstance(target, dict):
                raise ConfigError(f"{group}={target!r} stands beside {name}. Say {name} alone.")
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
