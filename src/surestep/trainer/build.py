"""From a planned task to the training loop and the parts of a step."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from torch import nn

from surestep.base.errors import ConfigError
from surestep.base.warn import warn
from surestep.engine.buffers import initial_values
from surestep.engine.checks.batch_norm import check_training, check_validation
from surestep.engine.checks.first_batch import FirstBatchResult, check_first_batch
from surestep.engine.checks.task import check_model, check_teacher
from surestep.engine.data.batch_loader import BatchLoader, make_loader
from surestep.engine.data.bptt import check_stateful_rnn
from surestep.engine.data.dataloader import loader_settings
from surestep.engine.data.dataset import count_samples
from surestep.engine.data.lengths import EPOCH_LENGTHS
from surestep.engine.data.smaller_batches import retry_in_smaller_batches
from surestep.engine.data.stream_loader import checkpoint_state
from surestep.engine.device import name_stage
from surestep.engine.distributed.communicator import ALONE, Communicator
from surestep.engine.losses.adapt import Loss
from surestep.engine.losses.multi import code_of_losses
from surestep.engine.losses.state import own_module, state_of_loss
from surestep.engine.model.activation_checkpointing import activation_checkpointing
from surestep.engine.model.attributes import preserve_attributes
from surestep.engine.model.compile import compile_model, disable_compile
from surestep.engine.model.frozen_weights import note_base
from surestep.engine.model.precision import autocast, grad_scaler
from surestep.engine.model.preserve import BufferSnapshot
from surestep.engine.modes import TrainModes, preserve_weights, set_modes
from surestep.engine.optim.build import build_optimizer
from surestep.engine.optim.freezing import (
    check_requires_grad,
    freeze_permanent,
    frozen_norm_modules,
    make_unfreeze_schedule,
    trained_modules,
)
from surestep.engine.optim.multi import build_optimizers
from surestep.engine.optim.param_groups import ParameterGroup, make_param_groups, parameters_of
from surestep.engine.own_generators import (
    OwnGenerators,
    check_own_generators,
    own_generators,
    seed_late_generators,
)
from surestep.engine.parallel.manual_allreduce import ManualAllReduceStrategy, broadcast_module
from surestep.engine.parallel.strategy import strategy_class
from surestep.engine.plan.batching import BatchLayout
from surestep.engine.plan.plan import Plan
from surestep.engine.resolve.data import why_not_split
from surestep.engine.rng import GlobalGenerators, ModelRNG
from surestep.engine.schedule.groups import GroupSchedule
from surestep.engine.schedule.lr import PlateauState, make_lr_factor
from surestep.engine.state.average import NAME as AVERAGE
from surestep.engine.state.average import AveragedWeights, with_swa_lr
from surestep.engine.state.state import WHOLE, State, Stateful, trainable_parameters
from surestep.engine.step.callback import Callback, stateful_callbacks
from surestep.engine.step.lbfgs import lbfgs_update
from surestep.engine.step.loop import Loop
from surestep.engine.step.manual_step import manual_update
from surestep.engine.step.multi_optimizer import OptimizerHandle, OptimizerSet, OptimizerSnapshot
from surestep.engine.step.separate_draws import seed_steps
from surestep.engine.step.train_step import StepContext
from surestep.engine.step.unheld_leaves import UnheldLeafCheck
from surestep.engine.task.task import Task
from surestep.trainer.forward_writes import RestoreWrites
from surestep.trainer.planning import PreparedTask
from surestep.trainer.rank_consistency import warm_up_ddp
from surestep.trainer.try_on_ranks import find_size_on_ranks


class BuiltLoop(NamedTuple):
    """A training loop, with what it found that the parts of the run need.

    Attributes:
        loop: takes the steps.
        planned: its task, with the options.
        check_requires_grad: checks, at log points, what your code froze or unfroze.
        leaves: checks the tensors that get a gradient.
        writes: restores what a forward changes.
        seed_late_generators: seeds generators that the first step made.
    """

    loop: Loop
    planned: PreparedTask
    check_requires_grad: Callable[..., None]
    leaves: UnheldLeafCheck
    writes: RestoreWrites
    seed_late_generators: Callable[[], None]


def build(
    planned: PreparedTask,
    settings: ExitStack,
    callbacks: Sequence[Callback],
    *,
    fresh: bool,
    world: Communicator = ALONE,
) -> BuiltLoop:
    """Put the model on its device, check the first batch, and build the training loop.

    `settings` restores what is changed here when the session closes; `fresh` weights are new.
    """
    plan, task, loss = planned.plan, planned.task, planned.loss
    check_model(planned.model)
    check_stateful_rnn(task, planned.model, plan)
    check_teacher(loss.teacher, planned.model)
    teacher = () if loss.teacher is None else loss.teacher.modules()
    modes = [(module, module.training) for module in (*planned.model.modules(), *teacher)]
    compiles = plan.compile != "off"
    settings.enter_context(  # before FSDP wraps the blocks
        activation_checkpointing(planned.model, plan.activation_checkpointing, compiles=compiles)
    )
    strategy = strategy_class(plan.parallel_strategy)
    model = planned.model
    if plan.parallel_sync_batchnorm:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    with name_stage(f"while the model was placed on {plan.device}"):
        model = strategy.prepare_model(model, plan)
        loss.to(plan.device)
    loader = make_loader(task.train, "train", task=task, loss=loss, plan=plan, training=True)
    settings.callback(loader.close)
    first = _try_first_batch(planned, model, loader, fresh=fresh, is_alone=world.size == 1)
    settings.enter_context(compile_model(model, plan, in_blocks=strategy.gathers_blocks))
    context, groups = make_step_context(plan, task, model, loss, settings, world)
    trained = trained_modules(context.train_modes, model, plan, groups)
    _check_batch_norm(planned, model, trained, first.narrow_norms, loader)
    state = context.state
    state.built = initial_values(model)
    if plan.checkpoint_weights == "trained":
        note_base(state)
    state.callback_states = stateful_callbacks(callbacks) | _states_of_data(loader, state, plan)
    state.callback_states |= state_of_loss(loss) | _states_of_options(state)
    found = _find_generators(planned, context)
    context.transform, context.signature = loader.transform, first.signature
    leaves = _watch_leaves(planned, context, settings)
    settings.callback(set_modes, modes)
    loop = Loop(context, loader, plan)
    writes = RestoreWrites(first, loop)
    check = check_requires_grad(state)
    if world.size > 1 and task.step is None and strategy.allows_warm_up:
        is_known = planned.info.fitting is not None and planned.info.fitting.is_recorded
        if planned.fits and strategy.copies_model and not is_known:
            find_size_on_ranks(context, loader, plan, why_not_split(planned.info))
        warm_up_ddp(context, loader, plan)
    state.unfreezing = make_unfreeze_schedule(model, plan, groups, context.train_modes)
    return BuiltLoop(
        loop,
        planned,
        check,
        leaves,
        writes,
        partial(seed_late_generators, found, context.randomness.generators),
    )


def _try_first_batch(
    planned: PreparedTask, model: nn.Module, loader: BatchLoader, *, fresh: bool, is_alone: bool
) -> FirstBatchResult:
    """Check the first batch, in smaller micro-batches if it runs out of memory and may be split."""
    plan, task, loss = planned.plan, planned.task, planned.loss
    codes = (model, loss.teacher, *code_of_losses(loss).values(), *task.metrics.values())
    check = partial(
        check_first_batch,
        model,
        loader,
        task,
        autocast(plan),
        fresh=fresh,
        judged_by=plan.validation_metric,
        skips=plan.on_nonfinite == "skip",
    )
    can_split = planned.fits and is_alone and not why_not_split(planned.info)
    with (
        name_stage("at the first batch"),
        disable_compile(model),
        preserve_weights(model),
        preserve_attributes(*codes, task.batch_transform),
    ):
        return retry_in_smaller_batches(check, loader, lambda *_: can_split)


def _states_of_data(loader: BatchLoader, state: State, plan: Plan) -> dict[str, Stateful]:
    """Return what a checkpoint holds of the training data, by name."""
    if loader.lengths is None:
        return checkpoint_state(loader.source, state)
    loader.report_length = partial(_warn_of_length, state, plan)
    return {EPOCH_LENGTHS: loader.lengths}


def _warn_of_length(state: State, plan: Plan, epoch: int, before: int, samples: int) -> None:
    steps = samples // plan.batch_size if plan.data_drop_last else -(-samples // plan.batch_size)
    if plan.limit_train_batches is not None:
        steps = min(steps, plan.limit_train_batches)
    warn(
        f"The training data had {before} samples in the epoch before, and has {samples} now. They "
        f"count from step {state.progress.step + 1} on, the first of epoch {epoch + 1}, which has "
        f"{steps} steps. The run ends after step {plan.total_steps} as planned, and a duration of "
        f"1 epoch is {plan.steps_per_epoch} steps as before."
    )


def _states_of_options(state: State) -> dict[str, Stateful]:
    """Return the states of schedules and of the average, by their names in a checkpoint."""
    found: dict[str, Stateful] = {
        f"plateau of {name}": plateau for name, plateau in state.plateaus.items()
    }
    if state.average is not None:
        found[AVERAGE] = state.average
    return found


def _watch_leaves(
    planned: PreparedTask, context: StepContext, settings: ExitStack
) -> UnheldLeafCheck:
    """Check the tensors that get a gradient, until the session closes."""
    task = planned.task
    codes = code_of_losses(planned.loss) | {"step": task.step, "inputs": task.inputs}
    leaves = context.strategy.list_leaves(context.state.model)
    context.leaves = UnheldLeafCheck(context.state, codes, leaves)
    settings.callback(context.leaves.close)
    return context.leaves


def _find_generators(planned: PreparedTask, context: StepContext) -> OwnGenerators:
    """Find the generators that the code of a step owns, and seed them for each micro-batch."""
    model = context.state.model
    of_task = {"step": planned.task.step, "optimizer": context.state.optimizers}
    found = own_generators(model, code_of_losses(planned.loss) | of_task)
    check_own_generators(found, model, planned.plan.activation_checkpointing)
    context.randomness.generators += found.found
    return found


def make_step_context(
    plan: Plan, task: Task, model: nn.Module, loss: Loss, settings: ExitStack, world: Communicator
) -> tuple[StepContext, Sequence[ParameterGroup]]:
    """Build the optimizers and the parts of a step; return also the parameter groups."""
    strategy = strategy_class(plan.parallel_strategy)
    groups: Sequence[ParameterGroup] = ()
    keep_eval = list(task.keep_eval)
    if task.optimizers:
        before = list(trainable_parameters(model).values())
        optimizers = build_optimizers(plan, task, model, settings, strategy.make_optimizer)
        keep_eval += frozen_norm_modules(model, before)
    else:
        groups = make_param_groups(model, plan)
        settings.enter_context(freeze_permanent(model, groups))
        optimizers = {
            WHOLE: build_optimizer(plan, task.optimizer, model, groups, strategy.make_optimizer)
        }
    state = State(model, optimizers, grad_scaler(plan))
    train_modes = TrainModes(model, tuple(keep_eval))
    if plan.average.kind != "none":
        trained = [p for optimizer in optimizers.values() for p in parameters_of(optimizer)]
        state.average = AveragedWeights(plan.average, model, trained, train_modes)
    plans = plan.optimizers or {WHOLE: plan}
    for name, optimizer in optimizers.items():
        settings.enter_context(seed_steps(optimizer, name, state, plan.seed, plan.device))
    for name, own in plan.optimizers.items():
        if own.schedule.name == "reduce_on_plateau" and own.schedule != plan.schedule:
            state.plateaus[name] = PlateauState()
    handles = OptimizerSet(
        {name: _optimizer_handle(plans[name], task, state, name, world) for name in optimizers},
        model,
    )
    if task.step is not None and world.size > 1:
        broadcast_module(model, weights=True)
    first = next(iter(handles.by_name.values()))
    settings.callback(first.strategy.leave)
    # Only the usual update, in one process, can be computed again if something draws late.
    can_recompute = world.size == 1 and task.step is None and plan.guard != "line_search"
    generators = GlobalGenerators(can_recompute=can_recompute)
    context = StepContext(
        state=state,
        loss=loss,
        strategy=first.strategy,
        train_modes=train_modes,
        buffers=BufferSnapshot(model, own_module(loss)),
        randomness=ModelRNG(plan.seed, plan.device, generators),
        generators=generators,
        autocast=autocast(plan, cached=task.step is None),
        schedule=first.schedule,
    )
    if task.step is not None and plan.guard == "line_search":
        raise ConfigError(
            "optim.name='lbfgs' evaluates the batch by itself, and the Task has a manual step. Set "
            "a different optim.name."
        )
    if task.step is not None:
        context.custom_update = partial(manual_update, task.step, handles)
    elif plan.guard == "line_search":
        context.custom_update = lbfgs_update
    return context, groups


def _optimizer_handle(
    plan: Plan, task: Task, state: State, name: str, world: Communicator
) -> OptimizerHandle:
    optimizer = state.optimizers[name]
    plateau = state.plateaus.get(name, state.plateau)
    factor = make_lr_factor(plan.schedule, plateau, task.schedule)
    strategy = strategy_class(plan.parallel_strategy)
    if task.step is not None and world.size > 1:
        strategy = ManualAllReduceStrategy
    peak = plan.optim_lr or float(optimizer.param_groups[0]["lr"])
    factor = with_swa_lr(factor, plan.average, peak)
    schedule = state.schedules[name] = GroupSchedule(optimizer, factor, plan.schedule)
    return OptimizerHandle(
        strategy(plan, state, world, name), schedule, OptimizerSnapshot(optimizer)
    )


def _check_batch_norm(
    planned: PreparedTask,
    model: nn.Module,
    trained: set[nn.Module],
    narrow: set[nn.Module],
    loader: BatchLoader,
) -> None:
    """Raise a DataError if BatchNorm gets a single value per channel in some batch.

    `narrow` layers get one value per sample and channel; `trained` modules are in training mode at
    some step.
    """
    if not narrow:
        return
    plan = planned.plan
    check_training(model, narrow & trained, loader.layout, plan.total_steps)
    for split, data in planned.task.val_sets().items():
        own = loader_settings(data)
        size = (own or {}).get("batch_size") or plan.validation_batch_size
        ranks, limit = plan.parallel_ranks, plan.limit_val_batches
        samples = count_samples(data, split)
        layout = BatchLayout(samples, size * ranks, size, ranks=ranks, limit=limit)
        check_validation(model, narrow, split, layout)
