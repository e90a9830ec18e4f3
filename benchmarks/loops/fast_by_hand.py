"""The plain hand-optimized loop, with the same guard against NaN as surestep.

What a step of the MLP (plain: 930 us, this: 485 us) loses when one trick is taken away, medians of
7 interleaved rounds on an AMD EPYC:

- 213 us: indexing the tensors with a whole batch of rows, no sample-by-sample collate (7 us of it
  by `index_select` over `[rows]`; gathering the whole epoch once and slicing that would gain
  another 20 for twice the memory);
- 126 us: `AdamW(fused=True)`, one kernel for all parameters;
- 36 us: clipping by `_foreach_norm` and `_foreach_mul_`, no grouping by device and dtype;
- 17 us: `grad = None` by hand, no profiler range and no grouping of `zero_grad`;
- 4 us: writing the rate into the group, no LRScheduler;
- nothing on the MLP, whose activations are small: keeping freed memory, on huge pages where the
  kernel gives them; on the wider conv net that is up to a quarter of the step, in processes in
  which glibc would return it;
- nothing on a CPU: reading the losses together every 50 steps; on an accelerator it is the wait.

The guard costs 20 us: once a loss or a gradient norm was not finite, `found_inf` stays 1.0 and the
fused optimizer updates nothing any more, until the log point reads it and raises.
"""

import torch
from torch import Tensor

from benchmarks.rules import (
    LR,
    MAX_GRAD_NORM,
    READ_EVERY,
    WEIGHT_DECAY,
    Stopwatch,
    Trained,
    lr_factor,
)
from benchmarks.tasks import Task
from surestep.engine.allocator import read_allocator, reserve_huge_pages, retain_freed_memory


def keep_memory() -> None:
    """Retain freed memory as surestep's Plan does; few people would write this by hand."""
    if retain_freed_memory() and read_allocator().huge_pages:
        reserve_huge_pages()


def clip(gradients: list[Tensor]) -> Tensor:
    """Scale the gradients down to the allowed norm; give the norm before, still on the device."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    torch._foreach_mul_(gradients, (norm / MAX_GRAD_NORM).clamp_(min=1.0).reciprocal_())
    return norm


class Guard:
    """Stop the optimizer, on the device, from the first loss or norm that is not finite."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        device = optimizer.param_groups[0]["params"][0].device
        self.nonfinite = torch.zeros((), device=device)
        self.found_inf = torch.zeros((), device=device)
        vars(optimizer).update(grad_scale=None, found_inf=self.found_inf)

    def watch(self, loss: Tensor, norm: Tensor) -> None:
        total = loss + norm
        self.nonfinite.add_(total - total)  # x - x is 0, or NaN for ever where x is not finite
        torch.ne(self.nonfinite, 0.0, out=self.found_inf)


def read(losses: list[Tensor], guard: Guard) -> float:
    """Wait for the device once: raise if a step was not finite, else give the mean loss."""
    if guard.found_inf.item():
        raise FloatingPointError("A loss or gradient norm was not finite in the last 50 steps.")
    mean = torch.stack(losses).mean().item()
    losses.clear()
    return mean


def train(task: Task, steps: int) -> Trained:
    """Train with every trick for a warm-up and `steps` timed steps."""
    keep_memory()
    stopwatch, losses, unread = Stopwatch(steps, task.device), [], []
    model, autocast = task.build().to(task.device), task.autocast()
    inputs, targets = task.place(task.inputs, task.targets)  # all of the data
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=LR, weight_decay=WEIGHT_DECAY, fused=True)
    group = optimizer.param_groups[0]
    guard = Guard(optimizer)
    model.train()
    step = 0
    while step < stopwatch.total:
        for rows in torch.randperm(len(inputs), device=task.device).split(task.batch_size):
            stopwatch.tick()
            with autocast:
                outputs = model(inputs.index_select(0, rows))
                loss = task.loss(outputs, targets.index_select(0, rows))
            loss.backward()
            norm = clip([p.grad for p in parameters if p.grad is not None])
            guard.watch(loss.detach(), norm)
            group["lr"] = LR * lr_factor(step, stopwatch.total)
            optimizer.step()
            for p in parameters:
                p.grad = None
            unread.append(loss.detach())
            step += 1
            if step % READ_EVERY == 0:
                losses.append(read(unread, guard))
            if step == stopwatch.total:
                break
    return Trained(stopwatch, model, optimizer, losses)
