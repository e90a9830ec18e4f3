"""The program of an ejected script: data in memory, one process, a CPU."""

import copy
import hashlib
import math
import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

SEED = 0  # every random number follows from it and from its position in the run
STEPS = 100  # updates of the weights
STEPS_PER_EPOCH = 10  # an epoch reads every sample once
BATCH_SIZE = 64  # samples of an update
RANKS = 2  # processes, which share the samples of an update
MICRO_BATCH_SIZE = 32  # samples of a forward pass; an update adds up the gradients of several
LR = 1e-3  # the peak of the learning rate
WEIGHT_DECAY = 0.01  # how fast weights shrink
MAX_GRAD_NORM = 1.0  # longer gradients are scaled to this: one bad batch must not do harm
CLIP_VALUE = 1.0  # elements of a gradient are limited to this
DTYPE = torch.bfloat16  # of matrix products
INIT_SCALE = 65536.0  # what the loss is multiplied by at first
GROWTH_FACTOR = 2.0  # what the scale is multiplied by after GROWTH_INTERVAL steps
GROWTH_INTERVAL = 2000  # steps in a row without overflow
BACKOFF_FACTOR = 0.5  # what the scale is multiplied by after an overflow
DECAY = 0.999  # the share of the average that an update keeps
AVERAGE_START = 0  # steps before the average begins
AVERAGE_EVERY = 1  # steps between two updates of the average
EVALUATE_EVERY = 10  # steps
EVALUATION_BATCH_SIZE = 64  # changes no result; it has to fit in memory
METRIC = "loss"  # decides which weights are the best
MIN_DELTA = 0.0  # a smaller change is not an improvement
PATIENCE = 10  # evaluations without improvement that end the run
PATIENCE_START = 0  # steps whose evaluations do not count for that
FACTOR = 0.1  # what the learning rate is multiplied by on a plateau
PLATEAU_PATIENCE = 10  # evaluations without improvement that are not yet a plateau
THRESHOLD = 1e-4  # a smaller change is not an improvement to the plateau
COOLDOWN = 0  # evaluations to ignore after a fall of the rate
MIN_FACTOR = 0.0  # the rate stays above this share of its peak
TRAINED_FROM: dict[str, float] = {}  # by module, the first step in which it is trained
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)  # with running statistics
NEW: tuple[str, ...] = ()  # modules that keep their random initial weights
THREADS = 1  # another number of them sums in another order
WORKERS = 2  # processes that load samples ahead; any number of them gives the same weights
LOG_EVERY = 50  # steps
SAVE_EVERY = 10  # steps
LAST = Path("last.pt")  # run the script again to resume from it
BEST = Path("best.pt")  # the weights to use


class Parts(NamedTuple):
    """What the recipe brings; a script has only the fields that it needs."""

    model: Any
    init: dict[str, Tensor] | None
    teacher: Any
    loss: Callable[[Tensor, Tensor], Tensor]
    train: Any
    val: Any
    sampled_by: Any
    collate_fn: Callable[[list[Any]], Any]
    metrics: dict[str, Callable[[Tensor, Tensor], Any]]
    ratios: dict[str, Callable[[Tensor, Tensor], Any]]
    of_all: dict[str, Callable[[Tensor, Tensor], Any]]


def task() -> Parts:
    """Return the parts; a script has the function of its recipe."""
    raise NotImplementedError


def sum_loss(outputs: Tensor, targets: Tensor, taught: Tensor | None = None) -> Tensor:
    """Return the loss summed over its items; a script has that of its Plan."""
    raise NotImplementedError


def count_items(targets: Tensor) -> float:
    """Return what the loss is a mean over; a script has an expression for it."""
    raise NotImplementedError


def make_optimizer(model: nn.Module) -> Optimizer:
    """Return the optimizer; a script has that of its Plan."""
    raise NotImplementedError


def lr_factor(step: int) -> float:
    """Return the factor on the learning rate; a script has that of its schedule."""
    raise NotImplementedError


@dataclass
class Progress:
    """How far the run is; a checkpoint has it beside the weights."""

    step: int = 0  # updates so far
    skipped: int = 0  # of them, because a gradient overflowed  # ? scales
    best: float | None = None  # value of METRIC  # ? val
    since_best: int = 0  # evaluations  # ? early_stop
    scale: float = 1.0  # the share of the learning rate that plateaus have left  # ? plateau
    plateau_best: float | None = None  # value of METRIC  # ? plateau
    bad: int = 0  # evaluations in a row without improvement  # ? plateau
    cooling: int = 0  # evaluations still to ignore  # ? plateau


def set_momentum(optimizer: Optimizer, step: int) -> None:
    """Set the momentum of a step; a script has that of its schedule."""
    raise NotImplementedError


def derive_seed(*place: str | int) -> int:
    """Return the seed of a position in the run, such as ("order", SEED, epoch).

    So no generator has a state to save. A hash gives similar positions unrelated seeds.
    """
    digest = hashlib.blake2b(" ".join(map(str, place)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # the 63 bits that torch takes


def seed_generators(seed: int) -> None:
    """Seed the generators of torch, numpy and Python, each with other bits."""
    torch.manual_seed(seed)
    np.random.seed(derive_seed("numpy", seed) % 2**32)
    random.seed(derive_seed("python", seed))


def make_teacher(parts: Parts) -> nn.Module:
    """Return the teacher, which is not trained and has no dropout."""
    teacher: nn.Module = parts.teacher()  # ? builds_teacher
    teacher = parts.teacher  # ? !builds_teacher
    return teacher.eval().requires_grad_(False)


def load_initial(model: nn.Module, weights: dict[str, Tensor] | None) -> None:
    """Start from the weights of another training, if there are any."""
    if weights is None:
        return
    model.load_state_dict(weights)  # ? !new
    # Of both without the new modules: a name that only one of them has is an error.  # ? new
    given = {name: value for name, value in weights.items() if not name.startswith(NEW)}  # ? new
    own = model.state_dict().items()  # ? new
    kept = {name: value for name, value in own if name.startswith(NEW)}  # ? new
    model.load_state_dict(given | kept)  # ? new


def freeze(model: nn.Module, step: int) -> None:
    """Freeze the modules that are trained later; a frozen BatchNorm keeps its statistics."""
    for name, start in TRAINED_FROM.items():
        model.get_submodule(name).requires_grad_(step >= start)  # ? !norms
        frozen = model.get_submodule(name).requires_grad_(step >= start)  # ? norms
        for module in frozen.modules():  # ? norms
            if isinstance(module, NORMS):
                module.train(step >= start)


@lru_cache(maxsize=1)  # one order serves all steps of its epoch
def epoch_order(epoch: int, samples: int) -> Tensor:
    """Return the index of the sample at each position of an epoch."""
    generator = torch.Generator().manual_seed(derive_seed("order", SEED, epoch))  # ? shuffle
    return torch.randperm(samples, generator=generator)  # ? shuffle
    return torch.arange(samples)  # ? !shuffle


def read_batches(parts: Parts, start: int) -> Iterator[Any]:
    """Return the batches of the steps from one on; a script has that of its data."""
    raise NotImplementedError


def step_scaled(optimizer: Optimizer, scaler: torch.amp.GradScaler) -> bool:
    """Step unless a gradient overflowed; return whether none did."""
    scale = scaler.get_scale()
    scaler.step(optimizer)  # does nothing if a gradient is not finite
    scaler.update()  # then lowers the scale
    return scaler.get_scale() >= scale


def check_optimizer(optimizer: Optimizer, model: nn.Module) -> None:
    """Check that the optimizer has all weights that are ever trained."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    wanted = {id(p) for p in model.parameters() if p.requires_grad}
    assert wanted <= held, "the optimizer does not have all weights"


def take_step(
    model: nn.Module,
    optimizer: Optimizer,
    parts: Parts,  # ? takes_parts
    batch: Any,  # ? loads
    progress: Progress,
    teacher: nn.Module,  # ? teacher
    scaler: torch.amp.GradScaler,  # ? scales
) -> float:
    """Update the weights once; return the loss before it."""
    epoch, batch = divmod(progress.step, STEPS_PER_EPOCH)  # ? !loads
    (x, y), position = parts.train, batch * BATCH_SIZE  # ? !loads
    rows = epoch_order(epoch, len(x))[position : position + BATCH_SIZE]  # ? !loads
    position = progress.step % STEPS_PER_EPOCH * BATCH_SIZE  # ? loads
    x, y = batch  # ? loads !many
    freeze(model, progress.step)  # ? freezes !scales
    freeze(model, progress.step - progress.skipped)  # ? freezes scales
    buffers = [buffer.clone() for buffer in model.buffers()]  # ? scales buffers
    optimizer.zero_grad()  # backward() adds to the gradients that are there
    # The loss is a sum, divided by the items of the whole batch: in a mean of means,  # ? many
    # the samples of a smaller micro-batch would count more.  # ? many
    total, items = 0.0, count_items(y[rows])  # ? many !loads
    total, items = 0.0, sum(count_items(y) for _, y in batch)  # ? many loads
    items = count_items(y[rows])  # of which the loss is a mean  # ? !many
    rank = dist.get_rank()  # ? ranks
    begin, end = len(rows) * rank // RANKS, len(rows) * (rank + 1) // RANKS  # ? ranks
    rows, position = rows[begin:end], position + begin  # the share of this process  # ? ranks
    for part in rows.split(MICRO_BATCH_SIZE):  # | many
        # Seeded by the position, so that a resumed run draws the same, for dropout as an example.
        torch.manual_seed(derive_seed("model", SEED, progress.step, position))
        # Matrix products in 16 bits, the loss in 32; the weights stay in 32.  # ? half
        with torch.autocast("cpu", dtype=DTYPE):  # | half
            loss = sum_loss(model(x[part]), y[part], teacher(x[part]))  # ? many !own
            loss = parts.loss(model(x[part]), y[part]) * count_items(y[part])  # ? many own
            loss = sum_loss(model(x[rows]), y[rows], teacher(x[rows]))  # ? !many !own
            loss = parts.loss(model(x[rows]), y[rows]) * items  # ? !many own
        assert loss.shape == (), f"the loss has the shape {tuple(loss.shape)}"  # ? checks
        # DDP divides the sum of the gradients of all processes by their number.  # ? ranks
        # In fp16 small gradients would be zero: scale the loss up before the way back.  # ? scales
        scaler.scale(loss * (1 / items)).backward()  # ? scales
        (loss * (1 / items)).backward()  # ? weighted !scales
        (loss / items).backward()  # ? !weighted !scales
        total, position = total + loss.item(), position + len(part)  # ? many
    mean = total / items  # ? many
    summed = loss.detach()  # ? ranks
    dist.all_reduce(summed)  # over the processes  # ? ranks
    mean = summed.item() / items  # ? ranks
    mean = loss.item() / items  # ? !many !ranks
    if not math.isfinite(mean):  # after such a step, every weight would be NaN
        raise FloatingPointError(f"The loss of step {progress.step + 1} is {mean}.")
    lost = [p for p in model.parameters() if p.requires_grad and p.grad is None]  # ? checks
    assert not lost, "a weight gets no gradient"  # ? checks
    scaler.unscale_(optimizer)  # before clipping, which needs the true lengths  # ? scales
    nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)  # ? clip_norm scales
    nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM, error_if_nonfinite=True)  # ? strict
    nn.utils.clip_grad_value_(model.parameters(), CLIP_VALUE)  # ? clip_value
    # The rate follows from the step: there is no scheduler to step in time, or to save.  # ? factor
    factor = lr_factor(progress.step)  # ? factor !scales
    factor = lr_factor(progress.step - progress.skipped)  # ? factor scales
    factor *= progress.scale  # ? factor plateau
    factor = progress.scale  # ? !factor plateau
    for group in optimizer.param_groups:  # ? scheduled
        group["lr"] = LR * factor  # ? !named
        group["lr"] = group["peak"] * factor  # ? named
    set_momentum(optimizer, progress.step)  # ? cycles
    optimizer.step()  # ? !scales
    if not step_scaled(optimizer, scaler):  # ? scales
        progress.skipped += 1  # the schedule waits
        for buffer, before in zip(model.buffers(), buffers, strict=True):  # ? buffers
            buffer.copy_(before)  # the batch counts for nothing
    progress.step += 1
    return mean


@torch.no_grad()
def evaluate(
    model: nn.Module,
    parts: Parts,
    teacher: nn.Module,  # ? teacher
) -> dict[str, float]:
    """Return the loss and the metrics of the validation data."""
    model.eval()  # no dropout, and BatchNorm uses its running statistics
    (x, y), sums = parts.val, defaultdict[str, float](float)  # ? !loads
    sums = defaultdict[str, float](float)  # ? loads
    counts = defaultdict[str, float](float)  # ? !by_sample
    seen = []  # ? of_all
    wanted = []  # ? of_all loads
    for rows in torch.arange(len(x)).split(EVALUATION_BATCH_SIZE):
        # Sums, divided at the end: a mean of means would weigh a short last batch too much.
        with torch.autocast("cpu", dtype=DTYPE):  # | half
            outputs = model(x[rows])
            sums["loss"] += sum_loss(outputs, y[rows], teacher(x[rows])).item()  # ? !own
            loss = parts.loss(outputs, y[rows])  # ? own
        sums["loss"] += (loss * count_items(y[rows])).item()  # ? own
        counts["loss"] += count_items(y[rows])  # ? !by_sample
        for name, metric in parts.metrics.items():  # ? metrics
            sums[name] += float(metric(outputs, y[rows])) * count_items(y[rows])  # ? by_items
            counts[name] += count_items(y[rows])  # ? by_items
            sums[name] += float(metric(outputs, y[rows])) * len(rows)  # ? !by_items
            counts[name] += len(rows)  # ? !by_items !by_sample
        for name, ratio in parts.ratios.items():  # ? ratios
            total, count = ratio(outputs, y[rows])
            sums[name] += float(total)
            counts[name] += float(count)
        seen.append(outputs.float())  # ? of_all
        wanted.append(y)  # ? of_all loads
    model.train()
    values = {name: sums[name] / len(x) for name in sums}  # ? by_sample
    values = {name: sums[name] / counts[name] for name in sums}  # ? !by_sample
    for name, function in parts.of_all.items():  # not means: they need all outputs  # ? of_all
        values[name] = float(function(torch.cat(seen), y))  # ? !loads
        values[name] = float(function(torch.cat(seen), torch.cat(wanted)))  # ? loads
    return values


def note_plateau(progress: Progress, value: float) -> None:
    """Lower the learning rate if METRIC has not improved for PLATEAU_PATIENCE evaluations."""
    best = progress.plateau_best
    limit = math.inf if best is None else best - THRESHOLD  # ? lower absolute
    limit = -math.inf if best is None else best + THRESHOLD  # ? !lower absolute
    limit = math.inf if best is None else best * (1 - THRESHOLD)  # ? lower !absolute
    limit = -math.inf if best is None else best * (1 + THRESHOLD)  # ? !lower !absolute
    if value < limit:  # ? lower
        progress.plateau_best, progress.bad = value, 0
    if value > limit:  # ? !lower
        progress.plateau_best, progress.bad = value, 0
    else:
        progress.bad += 1
    if progress.cooling > 0:
        progress.cooling, progress.bad = progress.cooling - 1, 0
    if progress.bad > PLATEAU_PATIENCE:
        progress.cooling, progress.bad = COOLDOWN, 0
        lower = max(progress.scale * FACTOR, MIN_FACTOR)
        if (progress.scale - lower) * LR > 1e-8:  # a smaller fall changes nothing
            progress.scale = lower


def recompute_statistics(average: nn.Module, parts: Parts) -> None:
    """Give BatchNorm the statistics of an epoch with the averaged weights."""
    for norm in average.modules():
        if isinstance(norm, NORMS):
            norm.reset_running_stats()
            norm.momentum = None  # the mean over all batches
    average.train()
    (x, _), position = parts.train, 0
    for batch in epoch_order(0, len(x))[: STEPS_PER_EPOCH * BATCH_SIZE].split(BATCH_SIZE):
        for rows in batch.split(MICRO_BATCH_SIZE):
            torch.manual_seed(derive_seed("statistics", SEED, position))
            with torch.autocast("cpu", dtype=DTYPE):  # | half
                average(x[rows])
            position += len(rows)


@torch.no_grad()
def update_average(
    average: nn.Module,
    model: nn.Module,
    step: int,
    parts: Parts,  # ? recompute
) -> None:
    """Move the average towards the weights after a step, if it is time."""
    updates, rest = divmod(step - AVERAGE_START, AVERAGE_EVERY)
    if updates > 0 and rest == 0:
        # A young average forgets faster: it would be mostly the initial weights.  # ? ema_warmup
        decay = min(DECAY, updates / (9 + updates))  # ? ema_warmup
        share = 1.0 if updates == 1 else 1 - decay  # ? ema_warmup
        share = 1.0 if updates == 1 else 1 - DECAY  # ? ema !ema_warmup
        share = 1 / updates  # the mean of all of them  # ? !ema
        for averaged, weight in zip(average.parameters(), model.parameters(), strict=True):
            if weight.requires_grad:
                averaged.lerp_(weight, share)
        recompute_statistics(average, parts)  # ? recompute
    for own, buffer in zip(average.buffers(), model.buffers(), strict=True):  # ? buffers !recompute
        own.copy_(buffer)  # ? !mean_buffers
        if not buffer.is_floating_point():  # a count of batches  # ? mean_buffers
            own.copy_(buffer)
        elif updates > 0 and rest == 0:  # ? mean_buffers
            own.lerp_(buffer, share)


def save(path: Path, **state: Any) -> None:
    """Write a checkpoint, all of it or nothing."""
    if dist.get_rank() > 0:  # the other processes have the same weights  # ? ranks
        return
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)  # a crash before this leaves the old file


def make_scaler() -> torch.amp.GradScaler:
    """Return the loss scale."""
    return torch.amp.GradScaler(
        "cpu",
        init_scale=INIT_SCALE,
        growth_factor=GROWTH_FACTOR,
        growth_interval=GROWTH_INTERVAL,
        backoff_factor=BACKOFF_FACTOR,
    )


def train() -> None:
    """Train from the start, or from the last checkpoint."""
    if os.environ.get("WORLD_SIZE") != str(RANKS):  # ? ranks
        raise SystemExit(f"Start the script with torchrun --nproc-per-node {RANKS}.")
    dist.init_process_group("gloo")  # ? ranks
    torch.manual_seed(derive_seed("recipe", SEED))  # for what task() draws
    parts = task()
    torch.manual_seed(derive_seed("build", SEED))  # for the initial weights  # ? builds
    model, progress = parts.model(), Progress()  # ? builds
    model, progress = parts.model, Progress()  # ? !builds
    load_initial(model, parts.init)  # ? init
    teacher = make_teacher(parts)  # ? teacher
    torch.use_deterministic_algorithms(True)  # ? deterministic
    torch.set_num_threads(THREADS)  # ? threads
    optimizer = make_optimizer(model)
    check_optimizer(optimizer, model)  # ? checks
    average = copy.deepcopy(model)  # ? average
    scaler = make_scaler()  # ? scales
    if LAST.exists():
        saved = torch.load(LAST, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        average.load_state_dict(saved["average"])  # ? average
        scaler.load_state_dict(saved["scaler"])  # ? scales
        progress = Progress(**saved["progress"])
    ended = progress.step == STEPS  # ? !early_stop
    ended = progress.step == STEPS or progress.since_best == PATIENCE  # ? early_stop
    model.train()  # dropout is on, and BatchNorm uses the statistics of the batch
    ddp = DistributedDataParallel(model)  # averages the gradients of all processes  # ? ranks
    batches = read_batches(parts, progress.step)  # ? loads
    while not ended:
        loss = take_step(model, optimizer, parts, next(batches), progress, teacher, scaler)  # ? one
        loss = take_step(ddp, optimizer, parts, next(batches), progress, teacher, scaler)  # ? ranks
        step = progress.step
        update_average(average, model, step, parts)  # ? average
        if step % LOG_EVERY == 0 and dist.get_rank() == 0:  # ? logs ranks
            print(f"step {step}: loss {loss:.4f}")
        if step % LOG_EVERY == 0:  # ? logs !ranks
            print(f"step {step}: loss {loss:.4f}")
        if step % EVALUATE_EVERY == 0 or step == STEPS:  # ? val
            chosen = average if step >= AVERAGE_START + AVERAGE_EVERY else model  # ? average
            # BatchNorm has seen other samples in each process: use the first one's.  # ? shares
            for buffer in chosen.buffers():  # ? shares average
                dist.broadcast(buffer, 0)
            for buffer in model.buffers():  # ? shares !average
                dist.broadcast(buffer, 0)
            values = evaluate(chosen, parts, teacher)  # ? average
            values = evaluate(model, parts, teacher)  # ? !average
            print(f"step {step}:", *(f"{name} {value:.4g}" for name, value in values.items()))
            value, best = values[METRIC], progress.best
            better = best is None or value < best  # ? lower !delta
            better = best is None or best - value > MIN_DELTA  # ? lower delta
            better = best is None or value > best  # ? !lower !delta
            better = best is None or value - best > MIN_DELTA  # ? !lower delta
            progress.since_best += 1  # ? early_stop !late_patience
            progress.since_best += step > PATIENCE_START  # ? late_patience
            if better and math.isfinite(value):
                progress.best = value
                progress.since_best = 0  # ? early_stop
                save(BEST, model=chosen.state_dict(), step=step)  # ? average
                save(BEST, model=model.state_dict(), step=step)  # ? !average
            note_plateau(progress, value)  # ? plateau
        ended = step == STEPS  # ? !early_stop
        ended = step == STEPS or progress.since_best == PATIENCE  # ? early_stop
        if step % SAVE_EVERY == 0 or ended:  # after the evaluation, which is then not repeated
            save(
                LAST,
                model=model.state_dict(),
                optimizer=optimizer.state_dict(),  # with its moments
                average=average.state_dict(),  # ? average
                scaler=scaler.state_dict(),  # ? scales
                progress=asdict(progress),
            )
    # Before its threads have released all tensors, the end of a group may wait for ever.  # ? ranks
    dist.barrier()  # ? ranks
    dist.destroy_process_group()  # ? ranks
