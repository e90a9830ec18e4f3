"""Custom steps: the ManualStep that a user's step function gets."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, overload

import torch
from torch import Tensor, nn

from surestep.base.errors import TaskError, suggest_names
from surestep.engine.batch import Batch, MicroBatch, dummy_micro_batch
from surestep.engine.device import sum_dtype
from surestep.engine.metrics import base as metrics
from surestep.engine.parallel.manual_allreduce import broadcast_module
from surestep.engine.parallel.single import NO_GRADIENT
from surestep.engine.step.multi_optimizer import OptimizerHandle, OptimizerSet, StepRolledBack
from surestep.engine.step.train_step import StepContext, UpdateResult
from surestep.engine.step_outcome import GradNorm


def check_turn_loss(loss: object) -> None:
    """Check that a loss is a scalar tensor that depends on a trained parameter.

    Raises:
        TaskError: it is not a scalar tensor, or does not require gradients.
    """
    if not isinstance(loss, Tensor) or loss.dim():
        what = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise TaskError(
            f"turn.backward takes a loss of one number, and got {what}. Give its mean over the "
            "micro-batch: loss.mean()."
        )
    if not loss.requires_grad:
        raise TaskError(NO_GRADIENT)


def check_all_micro_batches(name: str, seen: int | None, wanted: int) -> None:
    """Check that an optimizer has the gradients of the full batch.

    Args:
        name: the optimizer.
        seen: number of micro-batches with gradients; None if there was no pass over them.
        wanted: number of micro-batches.

    Raises:
        TaskError: it does not.
    """
    if seen is None:
        raise TaskError(
            f"There are no gradients of {name!r} to step by. Walk over "
            f"turn.micro_batches({name!r}) and call turn.backward(loss, micro) for each."
        )
    if seen < wanted:
        raise TaskError(
            f"{name!r} has gradients of {seen} of the {wanted} micro-batches of this batch. "
            "Walk over all of turn.micro_batches(...), with a turn.backward for each."
        )


@dataclass
class AccumulationPass:
    """One pass over the micro-batches, which trains the optimizers in `names`."""

    index: int
    names: tuple[str, ...]
    loss: Tensor | None = None  # finally the sum over all ranks
    seen: set[int] = field(default_factory=set)
    summed: bool = False


class Children(dict[str, nn.Module]):
    """The children of the model, by name."""

    def __missing__(self, name: str) -> nn.Module:
        """Raise an error that lists the children.

        Raises:
            TaskError: always.
        """
        there = ", ".join(map(repr, self)) or "none"
        raise TaskError(
            f"turn.models has no {name!r}. It has the children of the model: {there}. The model "
            "itself is turn.model."
        )


class ManualStep:
    """A custom step of a Task over one global batch: passed to `Task(step=)`.

    Attributes:
        model: the full model.
        models: its children, by name.
        index: number of steps taken before this one; skipped steps do not count.
        epoch: epoch of the batch, from 0.

    Example:
        >>> import torch
        >>> import surestep
        >>> class Net(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.net = torch.nn.Linear(4, 1)
        ...
        ...     def forward(self, x):
        ...         return self.net(x)
        >>> def step(manual_step):
        ...     for micro_batch in manual_step.micro_batches("net"):
        ...         x, y = micro_batch.args
        ...         loss = (manual_step.model(x) - y).square().mean()
        ...         manual_step.backward(loss, micro_batch)
        ...     manual_step.step("net")
        >>> x, y = torch.randn(64, 4), torch.randn(64, 1)
        >>> optimizers = {"net": surestep.Optim(lr=0.01)}
        >>> task = surestep.Task(Net, train=(x, y), step=step, optimizers=optimizers)
        >>> config = surestep.Config(max_steps=2, batch_size=16, logging={"progress": "quiet"})
        >>> run = surestep.Trainer(task, config, run="runs/custom").fit()
    """

    def __init__(self, parts: StepContext, movers: OptimizerSet, batch: Batch) -> None:
        self.model = parts.state.model
        self.models: dict[str, nn.Module] = Children(self.model.named_children())
        self.index = parts.state.progress.steps_taken
        self.epoch = batch.epoch
        self.losses: dict[str, list[Tensor]] = {}
        self.norms: list[GradNorm] = []
        self.logged: dict[str, dict[int, Tensor]] = {}
        self._parts = parts
        self._movers = movers
        self._batch = batch
        self._items = batch.items
        self._world = parts.strategy.world
        self._walked = [each for each in batch.micro_batches if each.items]
        self._counts = bool(self._walked)
        self._walked = self._walked or [dummy_micro_batch(batch.micro_batches[0])]
        self._passes = self._draws = 0
        self._micro: MicroBatch | None = None
        self._pass: AccumulationPass | None = None
        self._ready: dict[str, AccumulationPass] = {}
        self._clipped: dict[str, GradNorm] = {}

    def micro_batches(self, *names: str) -> Iterator[MicroBatch]:
        """Yield the micro-batches of the global batch, to accumulate gradients for the optimizers.

        The gradients of these optimizers are cleared first; no other parameter gets gradients.
        torch's generators are seeded at each micro-batch, from (step, position, number of the pass
        in this step).

        Args:
            names: the optimizers to accumulate gradients for; the default is all.

        Raises:
            TaskError: there is no such optimizer, or its last gradients are still unused.
        """
        walk = self._pass = self._begin(names or tuple(self._movers.by_name))
        step = self._parts.state.progress.step
        for micro in self._walked:
            self._parts.randomness.seed_micro_batch(step, micro.position, walk.index)
            self._micro, self._draws = micro, 0
            yield micro
            self._take_logged(walk.index, self._share_of(micro))
        self._micro = self._pass = None

    def backward(
        self,
        loss: Tensor,
        micro: MicroBatch,
        *,
        retain_graph: bool = False,
        create_graph: bool = False,
    ) -> None:
        """Add the gradient of `loss`, weighted by the micro-batch's share of the global batch.

        Args:
            loss: mean over the items of `micro`, a scalar tensor.
            micro: the current micro-batch of the loop.
            retain_graph: keep the graph for another backward.
            create_graph: make the gradients differentiable.

        Raises:
            TaskError: the loss is not a scalar tensor or requires no gradients, or `micro` is not
                the current micro-batch.
        """
        walk = self._check(loss, micro)
        loss = loss.float() if loss.dtype in (torch.bfloat16, torch.float16) else loss
        share = self._share_of(micro)
        walk.seen.add(micro.position)
        if not share:
            walk.loss = torch.zeros_like(loss.detach())
            return
        seed = torch.full((), share, dtype=loss.dtype, device=loss.device)
        with self._without_autocast():
            self._movers.add_gradient(
                loss, seed, walk.names, retain_graph=retain_graph, create_graph=create_graph
            )
        part = loss.detach() * share
        walk.loss = part if walk.loss is None else walk.loss + part

    @overload
    def grad(self, outputs: Tensor, inputs: Tensor, **graph: bool) -> Tensor: ...
    @overload
    def grad(
        self, outputs: Tensor, inputs: Sequence[Tensor], **graph: bool
    ) -> tuple[Tensor, ...]: ...
    def grad(
        self, outputs: Tensor, inputs: Tensor | Sequence[Tensor], **graph: bool
    ) -> Tensor | tuple[Tensor, ...]:
        """Return the gradients of the sum of `outputs` with respect to `inputs`.

        No `.grad` changes. For a gradient penalty pass create_graph=True. Under fp16 the loss scale
        is applied and removed.

        Args:
            outputs: a tensor of any shape.
            inputs: one tensor, or several.
            graph: `create_graph` and `retain_graph`, as in torch.autograd.grad.
        """
        wanted = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
        with self._without_autocast():
            found = self._movers.grad(outputs, wanted, **graph)
        return found[0] if isinstance(inputs, Tensor) else found

    def clip(self, name: str, max_norm: float | None = None) -> Tensor:
        """Clip the gradients of an optimizer; return their norm before clipping.

        If you do not call it, `step` clips as the Plan says.

        Args:
            name: the optimizer.
            max_norm: maximum norm of all its gradients together; None is the Plan's.

        Returns:
            A scalar tensor on the device; reading it waits for the device.

        Raises:
            TaskError: there are no gradients, or micro-batches are missing.
        """
        if name in self._clipped:
            raise TaskError(f"turn.clip({name!r}) was called before, for the same gradients.")
        self._clipped[name] = self._measure(name, max_norm)
        return self._clipped[name].total

    def step(self, name: str) -> None:
        """Update the parameters of an optimizer: unscale, clip if `clip` was not called, and step.

        Raises:
            TaskError: there are no gradients, or micro-batches are missing.
        """
        norm = self._clipped.pop(name, None) or self._measure(name, None)
        walk = self._ready.pop(name)
        assert walk.loss is not None
        self.norms.append(norm)
        label = "+".join(walk.names)
        if not any(walk.loss is each for each in self.losses.get(label, ())):
            self.losses.setdefault(label, []).append(walk.loss)
        rate = self._movers.set_rate(name, self.index)
        if self._world.is_first:  # logged values are summed over the ranks
            self._log(f"{name}/grad_norm", norm.total, walk.index)
            shown = torch.full(
                (), rate, dtype=sum_dtype(norm.total.device), device=norm.total.device
            )
            self._log(f"{name}/lr", shown, walk.index)
        self._movers.step(name, walk.loss, norm.total, pending=bool(self._ready))

    def log(self, name: str, value: Tensor) -> None:
        """Log the mean of a scalar tensor over the step, without waiting for the device."""
        metrics.log(name, value)

    def randn(self, micro: MicroBatch, *size: int) -> Tensor:
        """Draw normal noise for each sample of `micro`: (samples, *size).

        A sample gets the same noise however the global batch is split.
        """
        return self._drawn(torch.randn, micro, size)

    def rand(self, micro: MicroBatch, *size: int) -> Tensor:
        """Draw uniform noise from 0 to 1 for each sample of `micro`: (samples, *size)."""
        return self._drawn(torch.rand, micro, size)

    def finish(self) -> None:
        """Check that the step is complete, after the user's function has returned.

        Raises:
            TaskError: gradients were not used, or no optimizer was stepped.
        """
        if self._ready:
            name = next(iter(self._ready))
            raise TaskError(
                f"The step left the gradients of {name!r} unused. Call turn.step({name!r}) behind "
                f"the loop over turn.micro_batches({name!r})."
            )
        if not self.norms:
            raise TaskError(
                "The step moved nothing: it called turn.step() for no optimizer. Known: "
                f"{', '.join(self._movers.by_name)}."
            )
        self._take_logged(-1, 1 / self._world.size)

    def _begin(self, names: tuple[str, ...]) -> AccumulationPass:
        for name in names:
            mover = self._mover(name)
            if name in self._ready:
                raise TaskError(
                    f"The gradients of {name!r} are not used yet. Call turn.step({name!r}) before "
                    "the next walk over its micro-batches."
                )
            for parameter in mover.parallel.parameters:
                parameter.grad = None
        walk = AccumulationPass(self._passes, names)
        self._passes += 1
        self._ready |= dict.fromkeys(names, walk)
        return walk

    def _mover(self, name: str) -> OptimizerHandle:
        mover = self._movers.by_name.get(name)
        if mover is None:
            known = self._movers.by_name
            raise TaskError(f"There is no optimizer called {name!r}. {suggest_names(name, known)}")
        return mover

    def _check(self, loss: Any, micro: MicroBatch) -> AccumulationPass:
        if self._pass is None or micro is not self._micro:
            raise TaskError(
                "turn.backward(loss, micro) takes the micro-batch that the loop over "
                "turn.micro_batches(...) is at. Call it within that loop."
            )
        check_turn_loss(loss)
        return self._pass

    def _measure(self, name: str, max_norm: float | None) -> GradNorm:
        parallel, walk = self._mover(name).parallel, self._ready.get(name)
        check_all_micro_batches(name, None if walk is None else len(walk.seen), len(self._walked))
        assert walk is not None
        assert walk.loss is not None
        if not walk.summed:
            walk.loss, walk.summed = parallel.reduce_loss(walk.loss), True
        parallel.reduce_grads()
        parallel.unscale()
        for watch in self._parts.on_backward:
            watch(self._parts.state)
        if max_norm is not None:
            parallel = copy.copy(parallel)
            parallel.max_norm, parallel.clip_value = max_norm, None
        return parallel.clip_grad_norm()

    def _drawn(self, draw: Any, micro: MicroBatch, size: tuple[int, ...]) -> Tensor:
        """Draw for the global batch and return the rows of `micro`."""
        batch, step = self._batch, self._parts.state.progress.step
        walk, generator_of = self._passes - 1, self._parts.randomness.noise_generator
        if micro.is_ready:  # its rows are not samples of the global batch
            generator = generator_of(step, walk, self._draws, micro.position)
            self._draws += 1
            own: Tensor = draw((micro.rows, *size), generator=generator, device=generator.device)
            return own
        generator = generator_of(step, walk, self._draws)
        self._draws += 1
        drawn: Tensor = draw((batch.samples, *size), generator=generator, device=generator.device)
        is_own = batch.end == batch.position  # made by the user's loop, without a position
        begin = batch.micro_batches[0].position if is_own else batch.position
        first = min(micro.position - begin, batch.samples - micro.samples)
        return drawn[first : first + micro.samples].clone()

    def _share_of(self, micro: MicroBatch) -> float:
        """Return the micro-batch's share of the items of all ranks; 0 for a dummy micro-batch."""
        return micro.items / self._items if self._counts else 0.0

    def _without_autocast(self) -> AbstractContextManager[Any]:
        """Return the context of a backward pass, without autocast, as torch advises."""
        kind = self._parts.randomness.device.type
        if torch.is_autocast_enabled(kind):
            return torch.autocast(kind, enabled=False)
        return nullcontext()

    def _take_logged(self, walk: int, share: float) -> None:
        if metrics.logged:
            taken = metrics.pop_logged(share)
            for name, value in taken if share else ():
                self._log(name, value, walk)

    def _log(self, name: str, value: Tensor, walk: int) -> None:
        """Add to the value of a name in a pass; the mean over passes is logged."""
        known = self.logged.setdefault(name, {})
        known[walk] = known[walk] + value if walk in known else value


class ManualUpdate:
    """A custom step, as the update of a train_step."""

    def __init__(self, step: Callable[[ManualStep], object], movers: OptimizerSet) -> None:
        self.step = step
        self.movers = movers

    def __call__(
        self, parts: StepContext, batch: Batch, divisor: float, rate: float
    ) -> UpdateResult:
        """Call the user's step function; undo its updates if a value is not finite."""
        turn = ManualStep(parts, self.movers, batch)
        self.movers.begin()
        stopped = None
        try:
            with parts.generators.preserved(), parts.autocast:
                self.step(turn)
            turn.finish()
        except StepRolledBack as abandoned:
            stopped = abandoned.outcome
            metrics.pop_logged()
        outcome, world = self.movers.end(stopped), parts.strategy.world
        if world.size > 1:
            broadcast_module(parts.state.model, weights=False)
        losses = {name: _mean(values) for name, values in turn.losses.items()}
        logged = [(f"{name}/loss", value) for name, value in losses.items() if world.is_first]
        logged += [(name, _mean(list(values.values()))) for name, values in turn.logged.items()]
        total = torch.stack([each.float() for each in losses.values()]).sum() * divisor
        return UpdateResult(outcome, _together(turn.norms), total, logged, batch.items)


def _mean(values: list[Tensor]) -> Tensor:
    return values[0] if len(values) == 1 else torch.stack(values).mean()


def _together(norms: list[GradNorm]) -> GradNorm:
    """Return the norm of all gradients of a step, and of each parameter's at each update."""
    if len(norms) == 1:
        return norms[0]
    total = torch.linalg.vector_norm(torch.stack([each.total for each in norms]))
    each = torch.cat([norm.per_parameter for norm in norms])
    return GradNorm(total, each, [name for norm in norms for name in norm.names])
