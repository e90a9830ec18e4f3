"""What is read to decide an option: the set options, the machine, the Task, other decisions."""

from collections.abc import Callable, Mapping
from typing import Any

from surestep.base.locations import COMMAND_LINE, set_where
from surestep.config.config import Config, option_info
from surestep.config.duration import Duration, parse_duration
from surestep.config.not_set import NOT_SET
from surestep.engine.plan.plan import TaskInfo
from surestep.engine.plan.system import SystemInfo

Decision = tuple[Any, str]  # a value and its reason


class PlanContext:
    """What such a function reads; `context["batch_size"]` is what was decided for another option.

    Attributes:
        system: the machine.
        task_info: what the Task brings.
        set_options: the options that are set, by full name; None means off.
        chosen: what was decided so far, by full name.
        reasons: why, by full name.
        option: the option that is being decided.
        rejections: what is wrong with it.
    """

    def __init__(
        self,
        config: Config,
        system: SystemInfo,
        task_info: TaskInfo,
        origins: Mapping[str, str] | None = None,
    ) -> None:
        self.system = system
        self.task_info = task_info
        self.set_options = config.set_options()
        self.chosen: dict[str, Any] = {}
        self.reasons: dict[str, str] = {}
        self.option = ""
        self.rejections: list[str] = []
        self._origins = origins or {}

    def __getitem__(self, option: str) -> Any:
        if option not in self.chosen:
            self.decide(option)
        return self.chosen.get(option)  # None: it does not apply

    def decide(self, option: str) -> None:
        """Decide an option that another one depends on; `resolve()` knows how."""
        raise KeyError(option)

    def get(self, option: str, default: Any = None) -> Any:
        """Return the value that was set; `default` if none was."""
        return self.set_options.get(option, default)

    def is_set(self, option: str) -> bool:
        """Return whether an option was set; it may be off."""
        return option in self.set_options

    def is_off(self, option: str) -> bool:
        """Return whether an option was set to None."""
        return self.get(option, NOT_SET) is None

    def origin(self, option: str) -> str:
        """Return where an option was set: "in Python", "on the command line"."""
        place = self._origins.get(option)
        return "in Python" if place is None else set_where(place)

    def is_typed(self, option: str) -> bool:
        """Return whether an option was set on the command line."""
        return option in self._origins and self.origin(option).endswith(COMMAND_LINE)

    def reject(self, message: str) -> None:
        """Reject what is set, with what to type instead; the function may find more."""
        self.rejections.append(message)

    def set_value(self) -> Decision:
        """Choose the value that was set for this option."""
        value = self.set_options[self.option]
        if value is None:
            return None, f"off, set {self.origin(self.option)}"
        return self._planned(value), f"set {self.origin(self.option)}"

    def set_or(self, value: Any, reason: str) -> Decision:
        """Choose the value that was set for this option, or else `value`."""
        if self.is_set(self.option):
            return self.set_value()
        return self._planned(value), reason

    def declared(self) -> Decision:
        """Choose the value that was set for this option, or else its declared default."""
        info = option_info(self.option)
        assert info is not None
        return self.set_or(*info.default)

    def _planned(self, value: Any) -> Any:
        """Return a value as the Plan holds it: an interval as a Duration."""
        info = option_info(self.option)
        if info is None or not info.is_duration or not isinstance(value, str):
            return value
        if value.endswith("%"):
            return Duration(float(max(1, round(self.length_in_steps(value)))), "steps")
        duration = parse_duration(value)
        is_fraction = duration.unit == "epochs" and not duration.amount.is_integer()
        if is_fraction and self["steps_per_epoch"] is None:
            self.reject(
                f"{self.option}={value!r} has no length in steps: the training data is a stream "
                "without a length. Use whole epochs, or '500 steps'."
            )
        return duration

    @property
    def device(self) -> str:
        """The type of the device that was chosen: "cpu", "cuda" or "mps"."""
        return str(self["device"].type)

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a CUDA GPU."""
        return self.device == "cuda"

    def steps(self, duration: str | Duration) -> float:
        """Return a duration in optimizer steps; it may be a fraction.

        Raises:
            ConfigError: it is in epochs, and the number of steps of an epoch is not known.
        """
        return parse_duration(str(duration)).steps(self["steps_per_epoch"])

    def length_in_steps(self, text: str) -> float:
        """Return a duration, or a share of the run such as "10%", in optimizer steps."""
        if text.endswith("%"):
            return float(text[:-1]) / 100 * float(self["total_steps"])
        return self.steps(text)


Resolver = Callable[[PlanContext], Decision | None]  # None: the option does not apply
RESOLVERS: dict[str, Resolver] = {}


def resolves(*options: str) -> Callable[[Resolver], Resolver]:
    """Register a function that decides options; `ctx.option` has the name of the one.

    It returns a value and its reason, and calls `ctx.reject` if the option that is set cannot be
    used here. Options without such a function have the default of their declaration.
    """

    def register(function: Resolver) -> Resolver:
        RESOLVERS.update(dict.fromkeys(options, function))
        return function

    return register
