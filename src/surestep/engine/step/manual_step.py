"""Custom steps: the ManualStep that a user's step function gets."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, overload

import torch
from torch import Tensor

from surestep.base.errors import TaskError, suggest_names
from surestep.engine.batch import Batch, MicroBatch, dummy_micro_batch
from surestep.engine.device import sum_dtype
from surestep.engine.losses.base import at_least_fp32
from surestep.engine.metrics import base as metrics
from surestep.engine.parallel.base import NO_GRADIENT
from surestep.engine.parallel.manual_allreduce import broadcast_module
from surestep.engine.rng import preserve_globals
from surestep.engine.step.multi_optimizer import OptimizerHandle, OptimizerSet, StepRolledBack
from surestep.engine.step.train_step import StepContext, UpdateResult
from surestep.engine.step_outcome import GradNorm, Logged


@dataclass
class AccumulationPass:
    """One pass over the micro-batches, which trains the optimizers in `names`."""

    index: int
    names: tuple[str, ...]
    loss: Tensor | None = None  # finally the sum over all ranks
    seen: set[int] = field(default_factory=set)
    is_reduced: bool = False


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

    def __init__(self, context: StepContext, optimizers: OptimizerSet, batch: Batch) -> None:
        self.model = context.state.model
        self.models = dict(self.model.named_children())
        self.index = context.state.progress.steps_taken
        self.epoch = batch.epoch
        self.losses: dict[str, list[Tensor]] = {}
        self.norms: list[GradNorm] = []
        self.logged: list[Logged] = []
        self._context = context
        self._optimizers = optimizers
        self._batch = batch
        self._world = context.strategy.world
        micro_batches = [micro_batch for micro_batch in batch.micro_batches if micro_batch.items]
        self._has_items = bool(micro_batches)
        self._micro_batches = micro_batches or [dummy_micro_batch(batch.micro_batches[0])]
        self._passes = self._draws = 0
        self._micro_batch: MicroBatch | None = None
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
        names = names or tuple(self._optimizers.by_name)
        for name in names:
            handle = self._handle(name)
            if name in self._ready:
                raise TaskError(
                    f"The gradients of {name!r} are not used yet. Call manual_step.step({name!r}) "
                    "before the next loop over its micro-batches."
                )
            self._optimizers.save(name)
            for parameter in handle.strategy.parameters:
                parameter.grad = None
        current = self._pass = AccumulationPass(self._passes, names)
        self._passes += 1
        self._ready |= dict.fromkeys(names, current)
        step = self._context.state.progress.step
        for micro in self._micro_batches:
            self._context.randomness.seed_for("model", step, micro.position, current.index)
            self._micro_batch, self._draws = micro, 0
            yield micro
            self._take_logged(micro.items if self._has_items else 0.0)
        self._micro_batch = self._pass = None

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
        current = self._pass
        if current is None or micro is not self._micro_batch:
            raise TaskError(
                "manual_step.backward(loss, micro_batch) takes the current micro-batch of the loop "
                "over manual_step.micro_batches(...). Call it within that loop."
            )
        if not isinstance(loss, Tensor) or loss.dim():
            got = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise TaskError(
                f"manual_step.backward takes a loss of one number, and got {got}. Pass its mean "
                "over the micro-batch: loss.mean()."
            )
        if not loss.requires_grad:
            raise TaskError(NO_GRADIENT)
        leaves, names = self._context.leaves, tuple(current.names)
        if leaves is not None and names not in leaves.checked:
            leaves.check(loss, micro, names)
        loss = at_least_fp32(loss)
        share = self._share_of(micro)
        current.seen.add(micro.position)
        if not share:
            current.loss = torch.zeros_like(loss.detach())
            return
        seed = torch.full((), share, dtype=loss.dtype, device=loss.device)
        with self._without_autocast():
            self._optimizers.add_gradient(
                loss,
                seed,
                current.names,
                retain_graph=retain_graph or create_graph,
                create_graph=create_graph,
            )
        part = loss.detach() * share
        current.loss = part if current.loss is None else current.loss + part

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
            found = self._optimizers.grad(outputs, wanted, **graph)
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
            raise TaskError(
                f"manual_step.clip({name!r}) was called before, for the same gradients."
            )
        self._clipped[name] = self._clip(name, max_norm)
        return self._clipped[name].total

    def step(self, name: str) -> None:
        """Update the parameters of an optimizer: unscale, clip if `clip` was not called, and step.

        It waits for the device if the host checks for values that are not finite, as under fp16.

        Args:
            name: the optimizer.

        Raises:
            TaskError: there are no gradients, or micro-batches are missing.
        """
        norm = self._clipped.pop(name, None) or self._clip(name, None)
        current = self._ready.pop(name)
        assert current.loss is not None
        self.norms.append(norm)
        label = "+".join(current.names)
        if not any(current.loss is loss for loss in self.losses.get(label, ())):
            self.losses.setdefault(label, []).append(current.loss)
        rate = self._optimizers.set_rate(name, self.index)
        if self._world.is_first:  # other ranks have the same
            self.logged.append(Logged(f"{name}/grad_norm", norm.total, 1.0))
            device = norm.total.device
            shown = torch.full((), rate, dtype=sum_dtype(device), device=device)
            self.logged.append(Logged(f"{name}/lr", shown, 1.0))
        if self._context.after_first_backward is not None:
            self._context.end_first_backward()
        self._optimizers.step(name, current.loss, norm.total, pending=bool(self._ready))

    def log(self, name: str, value: Tensor) -> None:
        """Log the mean of a scalar tensor over the step, without waiting for the device.

        It is the mean over the micro-batches of all ranks that log it, weighted by their items.

        Args:
            name: its name in the events.
            value: a scalar tensor; it is detached here.

        Raises:
            TaskError: the value is not a scalar tensor.
        """
        metrics.log(name, value)

    def randn(self, micro: MicroBatch, *size: int) -> Tensor:
        """Draw normal noise for each sample of a micro-batch.

        A sample gets the same noise however the global batch is split.

        Args:
            micro: the current micro-batch of the loop.
            size: the shape of the noise of one sample.

        Returns:
            A tensor on the device in torch's default dtype, (samples, *size); with
            Task(batched=True) it has a row for each row of the element.
        """
        return self._draw(torch.randn, micro, size)

    def rand(self, micro: MicroBatch, *size: int) -> Tensor:
        """Draw uniform noise from 0 to 1 for each sample of a micro-batch, as `randn` does.

        Args:
            micro: the current micro-batch of the loop.
            size: the shape of the noise of one sample.

        Returns:
            A tensor like that of `randn`.
        """
        return self._draw(torch.rand, micro, size)

    def finish(self) -> None:
        """Check that the step is complete, after the user's function has returned.

        Raises:
            TaskError: gradients were not used, or no optimizer was stepped.
        """
        if self._ready:
            name = next(iter(self._ready))
            raise TaskError(
                f"The step left the gradients of {name!r} unused. Call "
                f"manual_step.step({name!r}) after the loop over "
                f"manual_step.micro_batches({name!r})."
            )
        if not self.norms:
            raise TaskError(
                "The step updated nothing: it called manual_step.step() for no optimizer. Known: "
                f"{', '.join(self._optimizers.by_name)}."
            )
        self._take_logged(self._batch.items / self._world.size)

    def _handle(self, name: str) -> OptimizerHandle:
        known = self._optimizers.by_name
        if name not in known:
            raise TaskError(f"There is no optimizer called {name!r}. {suggest_names(name, known)}")
        return known[name]

    def _clip(self, name: str, max_norm: float | None) -> GradNorm:
        """Reduce and unscale the gradients of a pass; measure and clip those of an optimizer."""
        strategy, current = self._handle(name).strategy, self._ready.get(name)
        if current is None:
            raise TaskError(
                f"There are no gradients of {name!r} to step by. Loop over "
                f"manual_step.micro_batches({name!r}) and call "
                "manual_step.backward(loss, micro_batch) for each."
            )
        if len(current.seen) < len(self._micro_batches):
            raise TaskError(
                f"{name!r} has gradients of {len(current.seen)} of the "
                f"{len(self._micro_batches)} micro-batches of this batch. Loop over all of "
                "manual_step.micro_batches(...), with a manual_step.backward for each."
            )
        assert current.loss is not None
        if not current.is_reduced:  # all gradients of the pass, which a hook may change once
            current.loss, current.is_reduced = strategy.reduce_loss(current.loss), True
            for own in (self._handle(key).strategy for key in current.names):
                own.reduce_grads()
                own.unscale()
            for hook in self._context.on_backward:
                hook(self._context.state)
        if max_norm is not None:
            strategy = copy.copy(strategy)
            strategy.max_norm = max_norm
        return strategy.clip_grad_norm()

    def _draw(self, draw: Any, micro: MicroBatch, size: tuple[int, ...]) -> Tensor:
        """Draw for the global batch and return the rows of `micro`."""
        batch, step = self._batch, self._context.state.progress.step
        key = [step, self._passes - 1, self._draws]
        samples = batch.samples
        if micro.is_ready:  # its rows are not samples of the global batch
            key.append(micro.position)
            samples = micro.rows
        generator = self._context.randomness.noise_generator(*key)
        self._draws += 1
        noise: Tensor = draw((samples, *size), generator=generator, device=generator.device)
        if micro.is_ready:
            return noise
        has_position = batch.end != batch.position  # batches of the user's loop have none
        begin = batch.position if has_position else batch.micro_batches[0].position
        first = min(micro.position - begin, batch.samples - micro.samples)
        return noise[first : first + micro.samples].clone()

    def _share_of(self, micro: MicroBatch) -> float:
        """Return the micro-batch's share of the items of all ranks; 0 for a dummy micro-batch."""
        return micro.items / self._batch.items if self._has_items else 0.0

    def _without_autocast(self) -> AbstractContextManager[Any]:
        """Return the context of a backward pass, without autocast, as torch advises."""
        kind = self._context.randomness.device.type
        if torch.is_autocast_enabled(kind):
            return torch.autocast(kind, enabled=False)
        return nullcontext()

    def _take_logged(self, items: float) -> None:
        if metrics.logged:
            taken = metrics.pop_logged(items)
            self.logged += taken if items else []


def manual_update(
    step: Callable[[ManualStep], object],
    optimizers: OptimizerSet,
    context: StepContext,
    batch: Batch,
    divisor: float,
) -> UpdateResult:
    """Call the step function of a Task; undo its updates if a value is not finite."""
    manual_step = ManualStep(context, optimizers, batch)
    optimizers.begin()
    rolled_back = None
    try:
        with preserve_globals(), context.autocast:
            context.randomness.seed_for("model", context.state.progress.step)  # outside of passes
            step(manual_step)
        manual_step.finish()
    except StepRolledBack as error:
        rolled_back = error.outcome
        metrics.pop_logged()
    outcome, world = optimizers.end(rolled_back), context.strategy.world
    if world.size > 1:
        broadcast_module(context.state.model, weights=False)
    losses = {name: _mean(values) for name, values in manual_step.losses.items()}
    logged = [Logged(f"{name}/loss", value) for name, value in losses.items() if world.is_first]
    logged += manual_step.logged
    total = torch.stack([*losses.values()]).sum() * divisor
    norms = manual_step.norms
    norm = norms[0]
    if len(norms) > 1:
        norm = GradNorm(
            torch.linalg.vector_norm(torch.stack([norm.total for norm in norms])),
            torch.cat([norm.per_parameter for norm in norms]),
            [name for norm in norms for name in norm.names],
        )
    return UpdateResult(outcome, norm, total, logged)


def _mean(values: list[Tensor]) -> Tensor:
    return values[0] if len(values) == 1 else torch.stack(values).mean()
