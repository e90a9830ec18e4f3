"""What eject cannot print, each with what to set instead."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from surestep.base.errors import RecipeError
from surestep.base.plugins import OPTIMIZERS, SCHEDULES, plugin_names
from surestep.config.config import Config
from surestep.config.not_set import NOT_SET
from surestep.config.optim import BUILT_IN as OPTIMIZER_NAMES
from surestep.config.optim import FIND
from surestep.eject.data import data_problems, loads
from surestep.eject.templates.program import NORMS
from surestep.eject.training import has_micro_batches
from surestep.engine.optim.param_roles import sparse_embeddings
from surestep.engine.plan.batching import find_largest_share
from surestep.engine.plan.fitting import FIT
from surestep.engine.plan.plan import Plan
from surestep.engine.schedule.curves import CURVES, decay_steps
from surestep.engine.step.callback import Callback
from surestep.engine.task.task import Task

# Options that decide lines or numbers of a script, by full name or group.
PRINTED = (
    *("average.kind", "average.decay", "average.warmup", "average.start", "average.every"),
    *("average.buffers", "average.anneal", "batch_size", "checkpoint.every", "clip_value"),
    *("data.drop_last", "data.num_workers", "data.shuffle", "deterministic", "early_stop"),
    *(
        "epochs",
        "limit_train_batches",
        "logging.every",
        "max_grad_norm",
        "max_steps",
        "micro_batch_size",
    ),
    *("num_threads", "optim", "scaler", "schedule", "seed", "validation.batch_size"),
    *("validation.every", "validation.metric", "validation.mode"),
)
# Options that change no weight, and have no counterpart in a script of one process on a CPU.
WITHOUT_COUNTERPART = (
    *("checkpoint.async_save", "checkpoint.keep_best", "checkpoint.keep_every"),
    *("checkpoint.keep_last", "checkpoint.mirror", "compile_blocks", "cpu_allocator"),
    *("cudnn_benchmark", "data.keep_decoded", "data.persistent_workers", "data.pin_memory"),
    *("data.prefetch_factor", "doctor", "logging.graph", "logging.histograms"),
    *("logging.mlflow_model", "logging.mlflow_registered_model", "logging.per_layer"),
    *("logging.progress", "logging.tracker_wait", "logging.trackers", "max_nonfinite_steps"),
    *("max_rollbacks", "parallel", "profile", "report"),
)
# Options of which a script can have some values alone.
VALUES: Mapping[str, tuple[Any, ...]] = {
    "activation_checkpointing": ("off",),
    "average.lr": (None,),
    "channels_last": (False,),
    "checkpoint.weights": ("all",),
    "compile": ("off",),
    "cuda_graph": (False,),
    "data.group_by_length": (False,),
    "data.shuffle_buffer": (None,),
    "device": (torch.device("cpu"),),
    "exclude_samples": (None,),
    "limit_val_batches": (None,),
    "matmul_precision": ("highest",),
    "max_time": (None,),
    "on_nonfinite": ("raise",),
    "on_spike": ("warn", "off"),
    "precision": ("fp32", "bf16", "fp16"),
    "sdpa_backend": ("auto",),
    "validation.on_start": (False,),
    "validation.weights": ("raw", "average"),
}
# What a Plan has beside the options, and follows from them.
_DERIVED = (
    *("batch_layout", "batch_transform", "checkpoint.min_seconds", "data.decoded_bytes"),
    *("data.randomness", "data.resume", "data.sampler", "guard", "loss", "not_checked"),
    *("steps_per_epoch", "total_steps"),
)
_STRATEGIES = (NOT_SET, "auto", "ddp", "single")
_ONLY_OBSERVING = ("on_end", "on_exception")
_SPLIT_OPTIMIZERS = ("adamw8bit", "lbfgs", "muon", "sparse_adam")


def check_config(config: Config) -> None:
    """Check that no option is measured when the run starts, or shards what a script does not.

    Raises:
        RecipeError: one does.
    """
    if config.parallel.strategy not in _STRATEGIES:
        raise RecipeError(_explain_strategy(config.parallel.strategy))
    if config.optim.lr == FIND:
        raise RecipeError(
            "optim.lr='find' is measured when a run starts. Set the number that `surestep lr-find` "
            "prints, such as optim.lr=1e-3."
        )
    if config.micro_batch_size == FIT:
        raise RecipeError(
            "micro_batch_size='fit' is found when a run starts. Set a number, such as "
            "micro_batch_size=32."
        )


def check_plan(plan: Plan, task: Task) -> None:
    """Check that a script can have all options of a Plan.

    Args:
        plan: the options.
        task: what is trained.

    Raises:
        RecipeError: with the options that it cannot have.
    """
    problems = [*_option_problems(plan), *_schedule_problems(plan)]
    if plan.parallel_ranks > 1:
        problems += _rank_problems(plan, task)
    if problems:
        raise RecipeError("\n".join(problems))


def _option_problems(plan: Plan) -> Iterator[str]:
    values = {option: value for option, value, _ in plan.decisions}
    for option, value in values.items():
        if option in VALUES:
            if value not in VALUES[option]:
                instead = " or ".join(f"{option}={_shown(one)}" for one in VALUES[option])
                yield f"eject does not print {option}={_shown(value)}. Set {instead}."
        elif not is_classified(option) and value:
            yield f"eject does not print {option}={_shown(value)}, of a plug-in. Leave it out."
    if plan.optim_name in _SPLIT_OPTIMIZERS or plan.optim_name in plugin_names(
        OPTIMIZERS, OPTIMIZER_NAMES
    ):
        yield f"eject does not print optim.name={plan.optim_name!r}. Set optim.name='adamw'."
    if plan.average.kind != "none":
        yield from _average_problems(plan)
    for option in ("validation.every", "checkpoint.every", "logging.every"):
        duration = values.get(option)
        if duration is not None and duration.unit not in ("steps", "epochs"):
            yield f"eject does not print {option}={duration}. Set {option}='1 epoch'."


def _explain_strategy(name: str) -> str:
    return f"eject does not print parallel.strategy={name!r}. Set parallel.strategy='ddp'."


def _rank_problems(plan: Plan, task: Task) -> Iterator[str]:
    """Yield what a script of several processes cannot have."""
    ranks = plan.parallel_ranks
    if plan.parallel_strategy != "ddp":
        yield _explain_strategy(plan.parallel_strategy)
    if has_micro_batches(plan):
        share = find_largest_share(plan.batch_size, ranks)
        yield f"eject prints ranks without micro-batches. Set micro_batch_size={share}."
    if loads(task):
        yield "eject prints ranks for data in memory: a pair of tensors. Eject without --ranks."
    elif not plan.data_drop_last and 0 < len(task.train[0]) % plan.batch_size < ranks:
        yield (
            f"The last batch of an epoch has fewer samples than {ranks} ranks. Set "
            "data.drop_last=True."
        )
    if task.sampler is not None:
        yield "eject prints ranks without a sampler. Leave out Task(sampler=...), or --ranks."
    if plan.average.buffers == "recompute":
        yield "eject prints ranks without average.buffers='recompute'. Set 'average'."
    if any("freeze" in str(group) for group in plan.optim_groups or ()):
        yield "eject prints ranks without frozen modules. Leave out freeze, or --ranks."


def is_classified(option: str) -> bool:
    """Return whether it is known what an option means for a script."""
    groups = (option, option.partition(".")[0])
    known = (*PRINTED, *WITHOUT_COUNTERPART, *_DERIVED)
    return option in VALUES or any(name in known for name in groups)


def _average_problems(plan: Plan) -> Iterator[str]:
    spec = plan.average
    if plan.precision == "fp16":
        yield "eject does not print an average under fp16. Set average.kind='none'."
    if spec.counted_from != spec.start or spec.interval != int(spec.interval):
        yield (
            f"eject prints an average whose start is a whole number of epochs, and not "
            f"average.start at step {spec.start}. Set average.start='1 epoch'."
        )
    if plan.validation_weights == "raw" and plan.validation_metric is not None:
        yield "eject evaluates the average. Set validation.weights='average'."


def _schedule_problems(plan: Plan) -> Iterator[str]:
    name = plan.schedule.name
    if name in plugin_names(SCHEDULES, tuple(CURVES)):
        yield f"eject does not print {name!r}, the schedule of a plug-in. Use 'cosine'."
    if plan.schedule.momentum is not None and (
        plan.precision == "fp16" or decay_steps(plan.schedule) <= 0
    ):
        yield (
            "eject does not print a momentum that changes with the rate under fp16, or in a run "
            "that is all warm-up. Set schedule.cycle_momentum=False."
        )


def _shown(value: Any) -> str:
    return repr(str(value)) if isinstance(value, (str, torch.device)) else str(value)


_FIELDS: Mapping[str, tuple[Callable[[Task], bool], str]] = {
    "step": (lambda task: task.step is not None, "a manual step"),
    "batch_transform": (lambda task: task.batch_transform is not None, "a transform of batches"),
    "inputs": (lambda task: task.inputs is not None, "a function of the batch"),
    "optimizer": (lambda task: task.optimizer is not None, "an optimizer of the Task"),
    "schedule": (lambda task: task.schedule is not None, "a schedule of the Task"),
    "keep_eval": (lambda task: bool(task.keep_eval), "modules that stay in eval mode"),
    "loss": (lambda task: isinstance(task.loss, Mapping), "several losses"),
    "reduction": (lambda task: task.reduction != "mean", "a loss that is a sum"),
    "batched": (lambda task: task.batched, "data in ready batches"),
}


def check_task(task: Task) -> None:
    """Check that a script can have what a Task brings.

    Raises:
        RecipeError: with all that it cannot have.
    """
    problems = [
        f"eject does not print Task({field}=...): {what}. Leave it out."
        for field, (has, what) in _FIELDS.items()
        if has(task)
    ]
    problems += data_problems(task)
    problems += [
        f"metrics[{name!r}] is a {type(metric).__name__}, which eject does not print. Write a "
        "function of (outputs, targets)."
        for name, metric in task.metrics.items()
        if hasattr(metric, "compute")
    ]
    if problems:
        raise RecipeError("\n".join(problems))


def check_callbacks(callbacks: Iterable[Callback]) -> None:
    """Check that a run without its callbacks is the same.

    Raises:
        RecipeError: one acts during the run, so it may stop it or change it.
    """
    for callback in callbacks:
        kind = type(callback)
        acting = [
            name
            for name in vars(Callback)
            if name.startswith("on_")
            and name not in _ONLY_OBSERVING
            and getattr(kind, name) is not getattr(Callback, name)
        ]
        if acting:
            raise RecipeError(
                f"The callback {kind.__name__} has {', '.join(acting)}, which may stop the run or "
                "change it, and eject prints no callbacks. Leave it out of the recipe."
            )


def check_statistics(plan: Plan, model: nn.Module, task: Task) -> None:
    """Check that a script can compute the statistics of the averaged model again.

    Raises:
        RecipeError: it cannot.
    """
    if plan.average.buffers != "recompute":
        return
    known = [m for m in model.modules() if isinstance(m, NORMS) and m.track_running_stats]
    own = sum(len([*module.buffers(recurse=False)]) for module in known)
    if own != len([*model.buffers()]) or plan.optim_groups or loads(task) or task.sampler:
        raise RecipeError(
            "eject prints average.buffers='recompute' for models whose buffers are BatchNorm's, "
            "without optim.groups and samplers, and for data in memory. Set "
            "average.buffers='average'."
        )


def check_model(model: nn.Module, modules: set[str]) -> None:
    """Check that the classes of a model are torch's, or in the recipe.

    Args:
        model: of the run.
        modules: the recipe, and the built-in recipes that it imports.

    Raises:
        RecipeError: one is not.
    """
    for name, module in model.named_modules():
        kind = type(module)
        if kind.__module__ not in modules and kind.__module__.partition(".")[0] != "torch":
            raise RecipeError(
                f"The model has a {kind.__name__} of {kind.__module__}"
                f"{f' at {name!r}' if name else ''}, whose source eject does not copy. Write its "
                "class in the recipe."
            )
    if sparse_embeddings(model):
        raise RecipeError(
            "eject prints no sparse gradients. Build the embedding with sparse=False."
        )
    if any(parameter.dtype != torch.float32 for parameter in model.parameters()):
        raise RecipeError("eject prints models whose weights are float32 alone. Use model.float().")
