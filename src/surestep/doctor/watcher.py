"""The run-time side of a rule: a class in its module, derived from `Watcher`.

Its methods are called while a script trains. They must not change anything, draw random numbers, or
read a value of a device, which would wait for it: a few small tensors may be kept, detached and
copied, and read in `observe` at the end. What is kept must stay small in a long run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from surestep.doctor.identity import IdentityDict
from surestep.doctor.problem import Location, Problem

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader


@dataclass(frozen=True)
class TorchCall:
    """A call of a function of torch that a rule named in `FUNCTIONS`.

    Attributes:
        name: "cross_entropy".
        arguments: by the names of its parameters, with the defaults.
        result: what it returned.
        given: the names of the arguments that the caller passed.
    """

    name: str
    arguments: Mapping[str, Any]
    result: Any
    given: frozenset[str] = frozenset()

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]


@dataclass
class Script:
    """What all rules know of the script that runs.

    Attributes:
        locate: returns the line of the user's source that is being executed.
        name: returns the name of a parameter in its model, or its shape.
        find_modules: yields the modules that are alive and of a class of this name; it is slow.
        step: steps that optimizers have taken together.
        backwards: backward passes that have begun.
        is_sampled: whether this step is one of the first, or of the first with a new optimizer, or
            of a few later ones, in which a rule may spend some time.
        sampled_since: the first step of those that are sampled without a gap, up to this one.
        sees_forwards: whether `on_forward` and `after_forward` are called now.
        in_backward: whether a backward pass is running, which may run forward passes again.
        in_step: whether an optimizer takes a step, without a closure.
        is_whole: whether the script has been watched to its end, and ended without an error.
        modules: whose forward passes are running, the outermost first; empty if they are not seen.
        models: modules that were called from outside of any other one.
        optimizers: that have taken a step.
        histories: a `GradientHistory` of each optimizer, written in the steps that are sampled.
        moments: the parameters that were there when each optimizer was made, if a rule needs them.
        losses: a `LossRecorder`, if a rule needs the losses of the run.
        schedules: a `ScheduleRecorder`, if a rule needs what is done with the schedules.
    """

    locate: Callable[[], Location]
    name: Callable[[Tensor], str]
    find_modules: Callable[[str], Iterator[nn.Module]]
    step: int = 0
    backwards: int = 0
    is_sampled: bool = True
    sampled_since: int = 0
    sees_forwards: bool = False
    in_backward: bool = False
    in_step: bool = False
    is_whole: bool = False
    modules: list[nn.Module] = field(default_factory=list)
    models: IdentityDict[nn.Module, None] = field(default_factory=IdentityDict)
    optimizers: IdentityDict[Optimizer, None] = field(default_factory=IdentityDict)
    histories: IdentityDict[Optimizer, Any] = field(default_factory=IdentityDict)
    moments: IdentityDict[Optimizer, Any] = field(default_factory=IdentityDict)
    losses: Any = None
    schedules: Any = None

    def averages_gradients(self, module: nn.Module) -> bool:
        """Return whether a forward pass begins, and by DistributedDataParallel."""
        return len(self.modules) == 1 and type(module).__name__ == "DistributedDataParallel"


class Watcher:
    """What a rule does while a script runs: nothing, unless it overrides a method.

    `run.step` is the number of steps that were taken before. Only the outermost of nested calls of
    one kind is seen, such as `state_dict()` of a model and not of its layers.

    Attributes:
        FUNCTIONS: the names of functions whose calls it sees, of
            `surestep.doctor.watch.functions.FUNCTIONS`.
        SAMPLED: the names of its methods that are only called in steps that are sampled.
    """

    FUNCTIONS: tuple[str, ...] = ()
    SAMPLED: tuple[str, ...] = ()

    def on_new_optimizer(self, run: Script, optimizer: Optimizer) -> None:
        """Called after an optimizer is made."""

    def on_optimizer(self, run: Script, optimizer: Optimizer) -> None:
        """Called before the first step of an optimizer."""

    def on_model(self, run: Script, model: nn.Module) -> None:
        """Called before the first call of a module from outside of any other one."""

    def on_compile(self, run: Script, model: Any, options: Mapping[str, Any]) -> None:
        """Called before `torch.compile(model, **options)` and `model.compile(**options)`.

        `model` is a module or a function.
        """

    def on_mode(self, run: Script, module: nn.Module, is_training: bool) -> None:
        """Called before `module.train()` and `module.eval()`."""

    def on_forward(self, run: Script, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Called before calls of each module: in the first steps, in some later ones, and in some
        passes after a change of mode or the start of a DataLoader. `inputs` are positional; a
        sparse or nested tensor is None.
        """

    def after_forward(
        self, run: Script, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Called after the calls of `on_forward`.

        `output` is None if the call raised an error, or returned a sparse or nested tensor.
        """

    def on_call(self, run: Script, call: TorchCall) -> None:
        """Called after a call of a function of `FUNCTIONS`."""

    def on_zero_grad(self, run: Script, parameters: Sequence[Tensor]) -> None:
        """Called before the gradients of parameters are zeroed."""

    def after_zero_grad(self, run: Script, parameters: Sequence[Tensor]) -> None:
        """Called after the gradients of parameters were zeroed, in steps that are sampled."""

    def on_backward(self, run: Script, losses: Sequence[Tensor], keeps_graph: bool) -> None:
        """Called before a backward pass; `run.backwards` counts it.

        `keeps_graph` is True with `retain_graph` or `create_graph`.
        """

    def after_backward(self, run: Script, losses: Sequence[Tensor]) -> None:
        """Called after a backward pass."""

    def on_clip(
        self, run: Script, parameters: Sequence[Tensor], limit: float, norm: Tensor | None
    ) -> None:
        """Called after gradients were clipped.

        `norm` is that before, and may not be read yet; None if each value was clipped by itself.
        """

    def on_step(self, run: Script, optimizer: Optimizer) -> None:
        """Called before a step of an optimizer, and of its closure."""

    def after_step(self, run: Script, optimizer: Optimizer) -> None:
        """Called after a step of an optimizer; `run.step` counts it."""

    def on_scale(self, run: Script, scaler: Any) -> None:
        """Called when an enabled GradScaler scales a loss."""

    def on_unscale(self, run: Script, scaler: Any, optimizer: Optimizer) -> None:
        """Called before an enabled GradScaler unscales the gradients of an optimizer."""

    def on_scaler_step(self, run: Script, scaler: Any, optimizer: Optimizer) -> None:
        """Called before an enabled GradScaler takes or skips a step of an optimizer."""

    def on_scaler_update(self, run: Script, scaler: Any) -> None:
        """Called before an enabled GradScaler changes its scale."""

    def on_schedule(self, run: Script, schedule: Any) -> None:
        """Called after a learning rate schedule of torch is made."""

    def on_schedule_step(self, run: Script, schedule: Any, arguments: tuple[Any, ...]) -> None:
        """Called before a step of a schedule, with its positional arguments."""

    def on_loader(self, run: Script, loader: DataLoader[Any]) -> None:
        """Called before an iteration over a DataLoader."""

    def on_batch(self, run: Script, loader: DataLoader[Any], batch: Any, seconds: float) -> None:
        """Called after a DataLoader gave a batch, for which the script waited some seconds."""

    def after_loader(self, run: Script, loader: DataLoader[Any]) -> None:
        """Called after the last batch of an iteration."""

    def after_state(self, run: Script, owner: Any, state: Any) -> None:
        """Called after `state_dict()` of a module, optimizer or schedule."""

    def on_load_state(self, run: Script, owner: Any, state: Any) -> None:
        """Called before `load_state_dict()` of a module, optimizer, schedule or GradScaler."""

    def on_save(self, run: Script, value: Any, file: Any) -> None:
        """Called before `torch.save`."""

    def after_load(self, run: Script, value: Any, file: Any) -> None:
        """Called after `torch.load`."""

    def observe(self, run: Script) -> Iterator[Problem]:
        """Yield the mistakes that were seen. Values of devices may be read here."""
        yield from ()

    def report_rank(self, run: Script) -> Any:
        """Return what `observe_ranks` compares, as JSON values; None if there is nothing."""
        return None

    def observe_ranks(self, facts: Mapping[int, Any]) -> Iterator[Problem]:
        """Yield the mistakes that only the ranks together show, from the facts of each rank.

        It is called in one process, with at least two ranks.
        """
        yield from ()
