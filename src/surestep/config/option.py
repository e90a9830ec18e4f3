"""How an option is declared: its help, what it requires, and its effect when a run resumes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin

from pydantic import Field
from pydantic.fields import FieldInfo

from surestep.config.not_set import NOT_SET
from surestep.config.types import DURATION

Effect = Literal["safe", "not bitwise", "blocked", "allowed", "incompatible"]


class ResumeEffect(NamedTuple):
    """What a change means for a run that resumes.

    Attributes:
        effect: "safe", the numbers stay the same; "not bitwise", the run resumes and the last
            digits may differ; "blocked", unless the change is allowed by name; "allowed", if it
            was; "incompatible", the run cannot resume with it.
        reason: why.
    """

    effect: Effect
    reason: str

    def __str__(self) -> str:
        return f"{self.effect}: {self.reason}"


safe = partial(ResumeEffect, "safe")
not_bitwise = partial(ResumeEffect, "not bitwise")
blocked = partial(ResumeEffect, "blocked")
incompatible = partial(ResumeEffect, "incompatible")

DISPLAY: Final = safe("it changes what is shown and saved, not what is computed")
LOADING: Final = safe("a sample's seed depends on its position, not on the process that loads it")
ENDING: Final = safe("it sets when the run ends, and changes no step")
KERNELS: Final = not_bitwise("different kernels round differently")
UPDATE: Final = blocked("each update would differ from those so far")
BATCHES: Final = blocked("the batches would differ from those so far")
DIGITS: Final = blocked("the precision of the numbers would differ from that so far")
INITIAL: Final = incompatible("it sets the initial state, and this run has started")
UNKNOWN: Final = blocked("its effect is not known")


class _AnyValue:
    def __repr__(self) -> str:
        return "ON"


ON: Final = _AnyValue()  # in `requires`: any value but off
# In `requires`: what the Task or the launcher has to bring.
VAL_DATA: Final = "validation data"
PROCESSES: Final = "several processes"
STREAM: Final = "a stream as training data"
INDICES: Final = "training data with indices"
CONVOLUTIONS: Final = "a model with convolutions"
BLOCKS: Final = "a model with blocks, in a ModuleList or Sequential"
MODEL_FUNCTION: Final = "a function that builds the model"
OUR_STEP: Final = "a Task without its own step"
_OFF = (None, "off", "none", "0%")


@dataclass(frozen=True)
class OptionInfo:
    """The declaration of an option.

    Attributes:
        help_text: what it is, for `--help` and docs/options.md.
        default: the value of the Plan if the option is not set, and its reason; None if a
            function decides.
        requires: the values that other options must have for this one to be of use, by full name:
            one value, several, or ON for any value but off.
        excludes: options that cannot be set together with it.
        resume: the effect of a change when a run resumes; None is the effect of the group.
        is_duration: its text is an interval, which the Plan holds as a Duration.
        resolve: decides it, for an option of a plug-in.
        callback: makes the Callback that does what it says, for an option of a plug-in.
    """

    help_text: str
    default: tuple[Any, str] = (None, "not set")
    requires: Mapping[str, Any] = field(default_factory=dict)
    excludes: tuple[str, ...] = ()
    resume: ResumeEffect | None = None
    is_duration: bool = False
    resolve: Callable[[Any], tuple[Any, str] | None] | None = None
    callback: Callable[[Any], Any] | None = None


def option(
    help_text: str,
    *,
    default: tuple[Any, str] = (None, "not set"),
    resume: ResumeEffect | None = None,
    requires: Mapping[str, Any] | None = None,
    excludes: tuple[str, ...] = (),
) -> Any:
    """Declare an option of a ConfigGroup.

    Args:
        help_text: what it is, for `--help` and docs/options.md.
        default: the value if the option is not set, and the reason for it. An option whose default
            depends on anything has a function in `engine/resolve/` instead.
        resume: the effect of a change when a run resumes; by default that of the group.
        requires: the values that other options must have, by full name, as in
            `{"on_nonfinite": "skip"}`; several values are a tuple, and ON is any value but off.
            Keys may also be VAL_DATA, PROCESSES and so on. It is added to what the group requires.
            An option that is off requires nothing.
        excludes: full names of options that cannot be set together with it.
    """
    info: Any = OptionInfo(help_text, default, requires or {}, excludes, resume)
    return Field(default=NOT_SET, description=help_text, json_schema_extra={"option": info})


class PluginOption:
    """An option that a package adds by an entry point of the group "surestep.options".

    Its name is that of the entry point, without a dot.

    Args:
        kind: the type of its values, as pydantic takes it: `float`, `Literal["a", "b"]`.
        help_text: what it is, for `--help`.
        default: the value if the option is not set, and the reason for it.
        resume: the effect of a change when a run resumes; by default it has to be allowed.
        requires: the values that other options must have, as in `option`.
        excludes: full names of options that cannot be set together with it.
        resolve: called with a PlanContext `ctx`; returns the value and its reason, often by
            `ctx.set_or(value, reason)`, and rejects values by `ctx.reject(message)`.
        callback: called with the value in the Plan, unless the option is off; returns the Callback
            that does what the option says.

    Example:
        >>> from surestep.config.option import PluginOption, safe
        >>> verbose = PluginOption(bool, "Print more.", default=(False, "not set"),
        ...                        resume=safe("it changes what is shown"))
    """

    def __init__(
        self,
        kind: Any,
        help_text: str,
        *,
        default: tuple[Any, str] = (None, "not set"),
        resume: ResumeEffect = UNKNOWN,
        requires: Mapping[str, Any] | None = None,
        excludes: tuple[str, ...] = (),
        resolve: Callable[[Any], tuple[Any, str] | None] | None = None,
        callback: Callable[[Any], Any] | None = None,
    ) -> None:
        self.kind = kind
        self.info = OptionInfo(
            help_text,
            default,
            requires or {},
            excludes,
            resume,
            is_duration=DURATION in list_types(kind),
            resolve=resolve,
            callback=callback,
        )


def describe_option(group: Any, declared: FieldInfo) -> OptionInfo:
    """Return the declaration of an option, completed by that of its ConfigGroup."""
    extra: Any = declared.json_schema_extra
    info: OptionInfo = extra["option"]
    return replace(
        info,
        requires={**group.requires, **info.requires},
        resume=info.resume or group.resume,
        is_duration=DURATION in list_types(declared.annotation),
    )


def list_types(annotation: Any) -> list[Any]:
    """List the types in the annotation of an option; the types in a tuple are not listed."""
    inner = get_args(annotation)
    if not inner or get_origin(annotation) in (Literal, tuple):
        return [annotation]
    return [kind for part in inner for kind in list_types(part)]


def is_off(value: Any) -> bool:
    """Return whether an option with this value does nothing, so that it requires nothing."""
    return value is False or any(value is off or value == off for off in _OFF)


def is_met(allowed: Any, value: Any) -> bool:
    """Return whether an option has a value that another one requires of it."""
    if allowed is ON:
        return not is_off(value) and bool(value)
    return value in allowed if isinstance(allowed, tuple) else bool(value == allowed)
