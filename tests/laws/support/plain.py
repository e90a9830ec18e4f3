"""Plain PyTorch training loops. Nothing here imports surestep."""

import hashlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader, Dataset

Schedule = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]
MakeOptimizer = Callable[[list[dict]], torch.optim.Optimizer]


def distance(a: nn.Module, b: nn.Module) -> float:
    """Return |a - b| / |a| over all parameters."""
    first = torch.cat([parameter.detach().double().flatten() for parameter in a.parameters()])
    second = torch.cat([parameter.detach().double().flatten() for parameter in b.parameters()])
    return float((first - second).norm() / first.norm())


def seed_of(place: str) -> int:
    """Return the documented seed of a position, such as "order 0 3"."""
    digest = hashlib.blake2b(place.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def order_of(samples: int, seed: int, epoch: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed_of(f"order {seed} {epoch}"))
    return torch.randperm(samples, generator=generator)


def two_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Weight decay for matrices; none for biases, normalisation and embeddings."""
    tables = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]
    decay, no_decay = [], []
    for parameter in model.parameters():
        is_table = any(parameter is table for table in tables)
        (no_decay if parameter.dim() < 2 or is_table else decay).append(parameter)
    return [
        {"params": decay, "weight_decay": weight_decay},
        {"params": no_decay, "weight_decay": 0.0},
    ]


def adamw(lr: float = 1e-3, **options) -> MakeOptimizer:
    return lambda groups: torch.optim.AdamW(groups, lr=lr, **options)


def sgd(lr: float = 1e-3, **options) -> MakeOptimizer:
    return lambda groups: torch.optim.SGD(groups, lr=lr, **options)


def constant(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)


def cosine(warmup: int, total: int, floor: float = 0.0) -> Schedule:
    """Make linear warmup, then cosine decay to the floor, from torch's schedulers."""

    def make(optimizer):
        lr = optimizer.param_groups[0]["lr"]
        down = CosineAnnealingLR(optimizer, T_max=total - warmup, eta_min=floor * lr)
        if not warmup:
            return down
        up = LinearLR(optimizer, start_factor=1 / warmup, total_iters=warmup)
        return SequentialLR(optimizer, [up, down], milestones=[warmup])

    return make


def shuffled(
    dataset: Dataset, *, batch_size: int, seed: int = 0, drop_last: bool = False
) -> Iterator:
    """Yield the batches of one epoch after another, without end."""
    epoch = 0
    while True:
        order = order_of(len(dataset), seed, epoch).tolist()
        yield from DataLoader(dataset, batch_size, sampler=order, drop_last=drop_last)
        epoch += 1


def usual_loop(
    model: nn.Module,
    mean_loss: Callable[[Tensor, Tensor], Tensor],
    batches: Iterator,
    *,
    steps: int,
    max_grad_norm: float = 1.0,
    weight_decay: float = 0.01,
    make_optimizer: MakeOptimizer | None = None,
    schedule: Schedule = constant,
) -> list[float]:
    """Train the usual loop; return the gradient norms before clipping."""
    optimizer = (make_optimizer or adamw())(two_groups(model, weight_decay))
    scheduler = schedule(optimizer)
    norms = []
    for _ in range(steps):
        x, y = next(batches)
        optimizer.zero_grad()
        loss = mean_loss(model(x), y)
        loss.backward()
        norms.append(float(clip_grad_norm_(model.parameters(), max_grad_norm)))
        optimizer.step()
        scheduler.step()
    return norms


def exact_loop(
    model: nn.Module,
    sum_loss: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    *,
    steps: int,
    batch_size: int,
    micro_batch_size: int,
    make_optimizer: MakeOptimizer,
    schedule: Schedule = constant,
    max_grad_norm: float = 1.0,
    weight_decay: float = 0.01,
    seed: int = 0,
    transform: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
) -> list[float]:
    """Train with the documented arithmetic and seeds; return the loss of each step."""
    model.train()
    optimizer = make_optimizer(two_groups(model, weight_decay))
    scheduler = schedule(optimizer)
    losses, step, epoch, n = [], 0, 0, len(x)
    while True:
        order = order_of(n, seed, epoch)
        for start in range(0, n, batch_size):
            end = min(start + batch_size, n)
            inputs, targets = x[order[start:end]], y[order[start:end]]
            if transform is not None:
                inputs, targets = transform(inputs, targets)
            optimizer.zero_grad()
            loss_sum = torch.zeros(())
            for first in range(start, end, micro_batch_size):
                rows = slice(first - start, first - start + micro_batch_size)
                torch.manual_seed(seed_of(f"model {seed} {step} {first}"))
                # Copies, since the bits of a sum depend on the address at which a tensor starts.
                loss = sum_loss(model(inputs[rows].clone()), targets[rows].clone())
                (loss / (end - start)).backward()
                loss_sum = loss_sum + loss.detach()
            clip_grad_norm_(model.parameters(), max_grad_norm)
            optimizer.step()
            scheduler.step()
            losses.append(float(loss_sum) / (end - start))
            step += 1
            if step == steps:
                return losses
        epoch += 1
