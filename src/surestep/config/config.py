"""The options of a run: frozen, typed and validated.

Options have the same names in Python, in TOML and on the command line. This package declares what
each option means; the functions in `engine/resolve/` decide the options that are not set.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from surestep.base.errors import ConfigError, suggest_names
from surestep.base.plugins import OPTIONS, plugin_names
from surestep.config.annotations import (
    AnyDevice,
    AnyDtype,
    ClockInterval,
    Flag,
    Group,
    Number,
    Off,
    Option,
    Real,
    Word,
)
from surestep.config.doctor import Doctor
from surestep.config.group import MAIN, ConfigGroup, Locations, declare_group, placed
from surestep.config.groups import (
    Average,
    Checkpoint,
    Data,
    EarlyStop,
    Logging,
    Report,
    Scaler,
    Validation,
)
from surestep.config.not_set import NOT_SET
from surestep.config.optim import Optim
from surestep.config.option import (
    BATCHES,
    BLOCKS,
    CONVOLUTIONS,
    DIGITS,
    DISPLAY,
    ENDING,
    INDICES,
    KERNELS,
    ON,
    UPDATE,
    VAL_DATA,
    OptionInfo,
    blocked,
    describe_option,
    is_met,
    not_bitwise,
    option,
    safe,
)
from surestep.config.parallel import Parallel
from surestep.config.plugin_options import PLUGINS, PluginOptions, describe_plugin
from surestep.config.schedule import Schedule
from surestep.config.spellings import what_to_use
from surestep.config.types import (
    Clock,
    Count,
    Positive,
    Precision,
    Recomputed,
    SamplesOrFile,
    Steps,
    Whole,
)

LENGTH = blocked("the schedule would differ from the one so far")
NONFINITE = safe("it affects only a step that is not finite")
SPIKE = safe("it affects only a step after a loss spike")


class Config(PluginOptions):
    """The options of a run. surestep chooses each option that is not set.

    A group of options, such as `optim`, takes an object (`Optim(lr=0.01)`), a dict, or the value of
    its main option (`optim="adamw"`).

    Attributes:
        optim: the optimizer.
        schedule: the learning rate over the run.
        scaler: the loss scale under fp16.
        data: how data is loaded.
        validation: when to evaluate, and which metric decides what is best.
        early_stop: when to stop because the metric no longer improves.
        average: an average of the weights.
        checkpoint: when to save, and which checkpoints to keep.
        parallel: the strategy of several processes.
        logging: when to log, and what to show.
        doctor: which rules check the run.
        report: what the run folder keeps for a report of the run.

    The other attributes are single options, which are listed below.

    Raises:
        ConfigError: lists everything that is wrong with the options, each with its location.

    Example:
        >>> import surestep
        >>> config = surestep.Config(epochs=2, optim={"name": "sgd", "lr": 0.1}, schedule="cosine")
        >>> config.optim.lr
        0.1
        >>> config.batch_size
        NOT_SET
    """

    epochs: Number[Positive] = option(
        "Number of passes over the training data; may be a fraction.", resume=LENGTH
    )
    max_steps: Number[Count] = option(
        "Number of optimizer steps to train for, instead of epochs.", resume=LENGTH
    )
    limit_train_batches: Number[Count | None] = option(
        "Train on only the first n batches of each epoch, for a trial run.",
        resume=BATCHES,
        default=(None, "not set: all of the data"),
    )
    limit_val_batches: Number[Count | None] = option(
        "Evaluate on only the first n batches of each validation set.",
        resume=blocked("the best metric so far was measured on other samples"),
        requires={VAL_DATA: ON},
        default=(None, "not set: all of the data"),
    )
    max_time: ClockInterval[Clock | None] = option(
        "Save and stop after this time ('110 minutes'); the same command resumes.",
        resume=ENDING,
        default=(None, "not set: no limit"),
    )
    batch_size: Number[Count] = option(
        "Samples per optimizer step, summed over all ranks.", resume=BATCHES
    )
    micro_batch_size: Number[Count | Literal["fit"]] = option(
        "Samples per forward pass on one rank, or fit: as many as fit in memory; changes the "
        "update only with BatchNorm or dropout.",
        resume=not_bitwise("sums and dropout are computed over other micro-batches"),
    )
    seed: Number[Annotated[int, Field(ge=0, lt=2**63)]] = option(
        "Seed for weights, data order, augmentation and dropout.",
        resume=blocked("data order, augmentation and dropout would be drawn again"),
        default=(0, "not set: every run starts from the same seed"),
    )
    deterministic: Flag = option(
        "Use only deterministic torch algorithms (slower on a GPU).",
        resume=KERNELS,
        default=(False, "torch's default; True is slower on a GPU"),
    )
    device: Option[str, AnyDevice] = option(
        "Device to train on: cpu, cuda, cuda:1, mps, ...",
        resume=not_bitwise("different devices round differently"),
    )
    precision: Option[Precision, AnyDtype] = option(
        "fp32, tf32, bf16, fp16, or auto: bf16 if the GPU supports it natively.", resume=DIGITS
    )
    max_grad_norm: Number[Positive | Literal["off"] | None] = option(
        "Clip the norm of all gradients to this value; off only measures the norm.",
        resume=UPDATE,
        excludes=("clip_value",),
    )
    clip_value: Number[Positive | None] = option(
        "Clip each gradient element to this value, instead of the norm.",
        resume=UPDATE,
        default=(None, "not set: single elements are not clipped"),
    )
    on_nonfinite: Word[Literal["raise", "skip"]] = option(
        "What to do if a loss or gradient is not finite: raise ends the run, skip skips the step.",
        resume=NONFINITE,
        default=("raise", "a loss or gradient that is not finite ends the run with an error"),
    )
    max_nonfinite_steps: Number[Whole] = option(
        "Number of steps that on_nonfinite='skip' may skip before the run fails.",
        resume=NONFINITE,
        requires={"on_nonfinite": "skip"},
        default=(100, "after 100 skipped steps the cause is not one bad batch"),
    )
    on_spike: Option[Literal["warn", "rollback", "off"], Off] = option(
        "What to do if the loss is far above the recent losses: warn reports it, "
        "rollback returns to the checkpoint before it and skips that range of "
        "data.",
        resume=SPIKE,
    )
    max_rollbacks: Number[Count] = option(
        "Maximum number of rollbacks of on_spike='rollback'.",
        resume=SPIKE,
        requires={"on_spike": "rollback"},
        default=(
            3,
            "3 rollbacks skip 8, 16 and 32 steps; then the data is not the cause",
        ),
    )
    exclude_samples: Option[SamplesOrFile | None, int | Path | Iterable[int]] = option(
        "Training samples to exclude: a list of indices, or a file such as a run's skipped.json.",
        resume=blocked("other samples would be excluded than so far"),
        requires={INDICES: ON},
    )
    activation_checkpointing: Option[Recomputed, bool | Off] = option(
        "Recompute activations in the backward pass to save memory: off, on, "
        "'every 2' blocks, or module names such as 'encoder.layers.*'.",
        resume=KERNELS,
        default=("off", "activations stay in memory: computing them again takes time"),
    )
    compile: Option[Literal["off", "default", "reduce-overhead", "max-autotune"], bool | Off] = (
        option(
            "Mode of torch.compile, or off.",
            resume=KERNELS,
            default=("off", "not set: compiling takes minutes before it saves time"),
        )
    )
    compile_blocks: Flag = option(
        "Compile each block of the model separately, which starts faster.",
        resume=KERNELS,
        requires={"compile": ON, BLOCKS: ON},
        default=(False, "the full model at once: more operations can be fused"),
    )
    cuda_graph: Flag = option(
        "Record a step on the GPU once, and replay it.",
        resume=safe("a replayed step is bitwise the step"),
        requires={"device": "cuda"},
        excludes=("compile",),
        default=(False, "the memory of a recorded step stays in use; measure"),
    )
    channels_last: Flag = option(
        "Use the channels-last memory format for images and convolutions.",
        resume=KERNELS,
        requires={CONVOLUTIONS: ON},
        default=(False, "torch's default; often faster on a GPU in half precision: measure"),
    )
    matmul_precision: Word[Literal["highest", "high", "medium"]] = option(
        "Precision of fp32 matrix products, as torch.set_float32_matmul_precision takes it.",
        resume=DIGITS,
    )
    cudnn_benchmark: Flag = option(
        "Benchmark cuDNN's algorithms for each new input shape.",
        resume=KERNELS,
        requires={"device": "cuda"},
        excludes=("deterministic",),
        default=(False, "the algorithm it finds may differ in each run, and so the last digits"),
    )
    sdpa_backend: Word[Literal["auto", "flash", "efficient", "cudnn", "math"]] = option(
        "Backend of scaled_dot_product_attention; auto: torch chooses.",
        resume=KERNELS,
        default=("auto", "torch chooses by shape and type; the line below the memory names it"),
    )
    cpu_allocator: Word[Literal["auto", "huge_pages", "retain", "default"]] = option(
        "Freed memory on a CPU: retain keeps it in the process (glibc malloc), "
        "huge_pages also uses huge pages, auto takes the best.",
        resume=safe("it sets when freed memory is reused, not what is computed"),
    )
    num_threads: Number[Count | None] = option(
        "Threads of torch on a CPU.",
        resume=not_bitwise("sums are split between other numbers of threads"),
        default=(None, "torch's own number"),
    )
    profile: Option[Steps | None, Sequence[int] | Off] = option(
        "Steps to record with torch's profiler: '10:15'.",
        resume=DISPLAY,
        default=(None, "not set: no step is profiled"),
    )
    optim: Group[Optim, str | type] = declare_group(Optim)
    schedule: Group[Schedule, str | type] = declare_group(Schedule)
    scaler: Group[Scaler, None] = declare_group(Scaler)
    data: Group[Data, None] = declare_group(Data)
    validation: Group[Validation, Real | Off] = declare_group(Validation)
    early_stop: Group[EarlyStop, Real | Off] = declare_group(EarlyStop)
    average: Group[Average, str | Off] = declare_group(Average)
    checkpoint: Group[Checkpoint, Real | timedelta | Off] = declare_group(Checkpoint)
    parallel: Group[Parallel, str] = declare_group(Parallel)
    logging: Group[Logging, Real | timedelta | Off] = declare_group(Logging)
    doctor: Group[Doctor, None] = declare_group(Doctor)
    report: Group[Report, None] = declare_group(Report)

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.epochs is not NOT_SET and self.max_steps is not NOT_SET:
            raise ConfigError(
                f"epochs={self.epochs:g} and max_steps={self.max_steps} both set the "
                "length of the run. Set one of them."
            )
        return self

    def set_options(self) -> dict[str, Any]:
        """Return the options that are set, by full name ("optim.lr"); None means off."""
        found = ((name, read(self)) for name, read in _readers())
        return {name: value for name, value in found if value is not NOT_SET}

    def locations(self) -> dict[str, str]:
        """Return where each option was set, such as "recipe.py:12", if it is known."""
        found = {}
        for name in self.set_options():
            group = getattr(self, name.partition(".")[0]) if "." in name else self
            found[name] = group.place(name) or self.place(name)
        return {name: place for name, place in found.items() if place}

    def replace_options(
        self, new: Mapping[str, Any], locations: Locations | None = None
    ) -> "Config":
        """Return a Config in which the given options, by full name, replace these.

        None switches an option off if it can be off; otherwise it unsets the option, as NOT_SET
        does. `epochs` replaces `max_steps`, and `max_steps` replaces `epochs`.

        Args:
            new: the options, by full name.
            locations: where each was set, as errors show it ("run.toml:7", "command line").

        Raises:
            ConfigError: lists everything that is wrong with them.
        """
        merged = self.set_options()
        new = _flat(new)
        if any(new.get(name) not in (None, NOT_SET) for name in LENGTHS):
            merged = {name: value for name, value in merged.items() if name not in LENGTHS}
        places = {name: place for name, place in self.locations().items() if name not in new}
        return Config.from_options(merged | new, places | dict(locations or {}))

    def single_process(self) -> "Config":
        """Return a copy without the options of `parallel`, to inspect a run in a single process."""
        options = self.set_options().items()
        return Config.from_options(
            {name: value for name, value in options if not name.startswith("parallel.")}
        )

    @classmethod
    def from_options(
        cls, options: Mapping[str, Any], locations: Locations | None = None
    ) -> "Config":
        """Return a Config of options by full name, as `set_options()` returns them.

        Args:
            options: the options; a group may also be one value, a dict or an object.
            locations: where each was set, as errors show it ("run.toml:7", "command line").

        Raises:
            ConfigError: lists everything that is wrong with them.
        """
        locations = locations or {}
        nested: dict[str, Any] = {}
        faults = []
        for name, value in _flat(options).items():
            group, _, option = name.rpartition(".")
            if group and group not in cls.model_fields:
                deep = group.partition(".")[0] in cls.model_fields
                hint = suggest_names(group, [group] if deep else cls.model_fields)
                sentence = f"There is no option {name if deep else group!r}. {hint}"
                faults.append(placed(name, sentence, locations))
                continue
            target = nested.setdefault(group, {}) if group else nested
            if not isinstance(target, dict):
                raise ConfigError(
                    f"{group}={target!r} is set together with {name}. Set only {name}."
                )
            target[option] = value
        try:
            made = cls.model_validate(nested, context={"locations": locations})
        except ConfigError as error:
            faults.append(str(error))
        if faults:
            raise ConfigError("\n".join(faults)) from None
        return made


LENGTHS = ("epochs", "max_steps")
Choice = Callable[[str], Any]  # the value of an option by its full name; None if it is not known
_NOT_COMPARED = ("device", "validation.every")  # required, but almost always right
_ALWAYS = ("average.kind", "parallel.strategy")  # others require these


def _flat(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options by full name; a group may be given as one value, a dict or an object."""
    flat: dict[str, Any] = {}
    for name, value in options.items():
        field = Config.model_fields.get(name)
        if field is None or not isinstance(field.default, ConfigGroup) or value is None:
            flat[name] = value
        elif isinstance(value, Mapping):
            flat |= {f"{name}.{option}": inner for option, inner in value.items()}
        elif isinstance(value, ConfigGroup):
            found = {option: getattr(value, option) for option in type(value).model_fields}
            flat |= {f"{name}.{option}": inner for option, inner in found.items()}
        else:
            flat[f"{name}.{MAIN[name]}" if name in MAIN else name] = value
    return flat


def option_info(name: str) -> OptionInfo | None:
    """Return what the declaration of an option says, by its full name; None if there is none."""
    return _declarations().get(name)


def argument_instead(name: str, value: Any) -> str | None:
    """Return what to use instead of an argument that is an option, also of another library."""
    if name in Config.model_fields:
        return f"Set it in the Config: Config({name}=...)."
    use = what_to_use(name, value)
    if use is None:
        nested = [full for full, _ in iter_options() if full.partition(".")[2] == name]
        use = " or ".join(f"{full}={value!r}" for full in nested)
    if not use:
        return None
    is_option = re.match(r"[a-z_]+(\.[a-z_]+)?=", use) is not None
    return f"Set it in the Config: {use}." if is_option else f"Use {use}."


def has_requirements(option: str, chosen: Choice) -> bool:
    """Return whether the other options have the values that an option requires."""
    if option in _ALWAYS:
        return True
    if option.startswith("parallel.") and str(chosen("parallel.ranks")) == "1":
        return False
    info = option_info(option)
    required = {} if info is None else info.requires
    return all(
        _is_met(allowed, str(chosen(name)))
        for name, allowed in required.items()
        if name not in _NOT_COMPARED and option_info(name) is not None
    )


def _is_met(allowed: Any, value: str) -> bool:
    """Compare a value that may be text, as it is typed."""
    return value not in ("None", "0", "off", "none") if allowed is ON else is_met(allowed, value)


@cache
def _readers() -> tuple[tuple[str, Callable[[Config], Any]], ...]:
    """Return a function for each option that returns its value in a Config."""
    return tuple((name, attrgetter(name)) for name, _ in iter_options())


@cache
def _declarations() -> dict[str, OptionInfo]:
    groups = {name: type(field.default) for name, field in Config.model_fields.items()}
    return {
        name: describe_plugin(name)[1]
        if name in plugin_options()
        else describe_option(groups[name.partition(".")[0]] if "." in name else Config, field)
        for name, field in iter_options()
    }


@cache
def plugin_options() -> tuple[str, ...]:
    """Return the options that installed packages add."""
    names = plugin_names(OPTIONS, Config.__annotations__)
    return tuple(name for name in PLUGINS if name in names)


def iter_options() -> Iterator[tuple[str, Any]]:
    """List every option as (full name, pydantic field)."""
    for name, field in Config.model_fields.items():
        if isinstance(field.default, ConfigGroup):
            for inner, inner_field in type(field.default).model_fields.items():
                yield f"{name}.{inner}", inner_field
        else:
            yield name, describe_plugin(name)[0] if name in plugin_options() else field
