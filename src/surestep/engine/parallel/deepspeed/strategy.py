"""DeepSpeed's ZeRO shards optimizer state, gradients or parameters over the ranks.

DeepSpeed's engine moves gradients and parameters; surestep divides by the items of the global
batch, and checks that a step is finite before it is taken. The package is imported here only, when
the strategy is made: that takes seconds.

Source: https://deepspeed.readthedocs.io/en/latest/zero3.html
"""

import json
import logging
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.nn import functional

from surestep.base.errors import ConfigError, TaskError
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.parallel.base import NO_GRADIENT, NOTHING
from surestep.engine.parallel.deepspeed.state import ZeroState
from surestep.engine.parallel.distributed import DistributedStrategy
from surestep.engine.parallel.guards import all_finite
from surestep.engine.parallel.manual_allreduce import broadcast_module
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import WHOLE, State
from surestep.engine.step_outcome import GradNorm, StepOutcome
from surestep.engine.task.init_weights import summarize_names

# They update each element separately, so it does not matter where ZeRO splits; torch's Adagrad
# creates its state at once, of full tensors.
ELEMENT_BY_ELEMENT = (
    *(optim.Adadelta, optim.Adam, optim.Adamax, optim.AdamW, optim.ASGD, optim.NAdam),
    *(optim.RAdam, optim.RMSprop, optim.Rprop, optim.SGD),
)


class DeepSpeedStrategy(DistributedStrategy):
    """The methods of a step on a DeepSpeed engine.

    Attributes:
        engine: DeepSpeed's engine.
        stage: of ZeRO: 0 shards nothing, 1 the optimizer, 2 gradients too, 3 parameters too.
    """

    copies_model = False
    takes = ("zero_stage", "deepspeed", "offload")
    extra = "deepspeed"
    has_param_grads = False
    runs_manual_steps = False
    reads_each_step = True
    allows_warm_up = False

    def __init__(self, plan: Plan, state: State, world: Communicator, name: str = WHOLE) -> None:
        super().__init__(plan, state, world, name)
        if plan.parallel_zero_stage:
            _check_optimizer(self.optimizer, self.parameters)
            self.optimizer.state.clear()  # of full tensors; DeepSpeed's are shards
        names = dict(zip(map(id, self.parameters), self.names, strict=True))
        groups = [
            [names[id(parameter)] for parameter in group["params"] if id(parameter) in names]
            for group in self.optimizer.param_groups
        ]
        self._linear = functional.linear  # ZeRO 3 replaces it for the whole process
        self.engine: Any = _create_engine(plan, state.model, self.optimizer)
        self.stage = int(self.engine.zero_optimization_stage())
        if self.stage:
            state.keeper = ZeroState(self.engine, state.model, groups, world)
        self.module = self.engine
        self.max_norm = None  # DeepSpeed clips, by "gradient_clipping"
        self.step = self._step
        self.unscale = lambda: None  # DeepSpeed does it in its step
        # bf16 with stage 1 uses a different optimizer: each rank has the gradients of all.
        self.has_all_grads = hasattr(self.engine.optimizer, "fp32_groups_gradient_flat_partition")
        self.offloads = plan.parallel_offload != "off"
        self.scaled = plan.precision == "fp16"
        self.device = plan.device
        self.model = state.model
        self.has_buffers = any(True for _ in state.model.buffers())
        self._reached: set[str] = set()
        self._hooks = [
            parameter.register_hook(lambda _, name=name: self._reached.add(name))
            for name, parameter in zip(self.names, self.parameters, strict=True)
        ]

    @classmethod
    def label(cls, plan: Plan) -> str:
        """Return the strategy with the stage of ZeRO."""
        return f"deepspeed ZeRO {plan.parallel_zero_stage}"

    def sync_grads(self, *, when: bool) -> AbstractContextManager[Any]:
        """Set which backward is the last of a step; `no_sync` fails under ZeRO 2 and 3.

        As with DDP, the buffers of rank 0 become those of all when gradients are summed.
        """
        self.engine.set_gradient_accumulation_boundary(when)
        if when and self.has_buffers:
            broadcast_module(self.model, weights=False)
        return NOTHING

    def backward(self, loss_sum: Tensor, items: float) -> None:
        """Run backward from ranks / items, since DeepSpeed divides by the ranks.

        DeepSpeed's division by the accumulation steps is off: the items are those of all.
        """
        if not loss_sum.requires_grad:
            raise TaskError(NO_GRADIENT)
        self.engine.backward(loss_sum * (self.world.size / items), scale_wrt_gas=False)

    def clip_grad_norm(self) -> GradNorm:
        """Measure the norm over all ranks, above stage 0 of all parameters together."""
        if self._hooks:
            self._check_all_reached()
        if not self.stage:
            return super().clip_grad_norm()
        squares = [torch.linalg.vector_norm(grad).double() ** 2 for grad in self._gradients()]
        total = torch.stack(squares).sum() if squares else torch.zeros((), dtype=torch.float64)
        total = total.to(self.device)
        dist.all_reduce(total)
        scale = self.engine.optimizer.loss_scale if self.scaled else 1.0
        norm = (total.sqrt() / scale).float()
        return GradNorm(norm, norm.new_empty(0), [])

    def leave(self) -> None:
        """Remove DeepSpeed's hooks from the model, and its functions from torch."""
        from deepspeed.utils import groups

        self.engine.destroy()
        for hook in (self.engine.module_forward_pre_hook, self.engine.module_forward_post_hook):
            hook.remove()
        # It has copies of torch's groups, which end with the process group.
        groups._release_process_group_references(None)
        torch_functional: Any = functional
        torch_functional.linear = self._linear

    def _check_all_reached(self) -> None:
        """Check in the first step that each parameter that is not frozen has a gradient somewhere.

        DeepSpeed's flat tensors have 0 for the others, which decay and momentum would update.
        """
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        trained = [n for n, p in zip(self.names, self.parameters, strict=True) if p.requires_grad]
        unused = [name for name in trained if name not in self._reached]
        unused_by_rank = [json.loads(t) for t in self.world.all_gather_text(json.dumps(unused))]
        nowhere = set.intersection(*map(set, unused_by_rank))
        if nowhere:
            names = summarize_names([name for name in unused if name in nowhere], 8)
            raise TaskError(
                f"No gradient reaches {names} in the first step. DeepSpeed treats that as a "
                "gradient of 0, by which decay and momentum would update it. Freeze what is never "
                "used (requires_grad_(False)), or remove it from the model; if it is used in some "
                "steps only, set parallel.strategy='ddp' and parallel.find_unused_parameters=True."
            )

    def _gradients(self) -> Iterator[Tensor]:
        """Yield this rank's shards of the gradients, averaged over the ranks."""
        optimizer = self.engine.optimizer
        if self.has_all_grads:
            yield from optimizer.fp32_groups_gradient_flat_partition
        elif self.offloads and self.stage == 3:
            yield from (tensor.grad for tensor in optimizer.fp32_partitioned_groups_flat)
        elif self.offloads:
            yield from (tensor.grad for tensor in optimizer.single_partition_of_fp32_groups)
        else:
            for shards in optimizer.averaged_gradients.values():
                yield from (shard for shard in shards or () if shard is not None)

    def _step(self, loss_sum: Tensor, grad_norm: Tensor) -> StepOutcome:
        """Step if loss and norm are finite; they are the same on all ranks."""
        if all_finite(loss_sum, grad_norm):
            self.engine.step()
            return StepOutcome(True)
        if not self.stage:
            self.engine.zero_grad()
            return StepOutcome(False, nonfinite=True)
        if self.has_all_grads:
            self.engine.optimizer.clear_hp_grads()
            self.engine.optimizer.clear_lp_grads()
            return StepOutcome(False, nonfinite=True)
        scaler = self.engine.optimizer.loss_scaler
        overflow = self.scaled and all_finite(loss_sum) and scaler.cur_scale > 1
        before = dict(vars(scaler))
        with _report_overflow(self.engine.optimizer):
            self.engine.step()
        if not overflow:
            vars(scaler).update(before)
        return StepOutcome(False, overflow=overflow, nonfinite=not overflow)


@contextmanager
def _report_overflow(optimizer: Any) -> Iterator[None]:
    """Have DeepSpeed skip its step and clear up; its own check misses NaN in some stages."""
    infinite = torch.tensor(math.inf)
    replaced: dict[str, Callable[..., Any]] = {
        "scaled_global_norm": lambda *_, **__: infinite,  # stages 1 and 2
        "_get_norm_groups": lambda: [infinite],  # stage 3
        "check_overflow": lambda *_, **__: None,
    }
    before = getattr(optimizer, "check_grad_overflow", None)
    try:
        optimizer.check_grad_overflow = True
        for name, function in replaced.items():
            setattr(optimizer, name, function)
        yield
    finally:
        for name in replaced:
            delattr(optimizer, name)
        optimizer.check_grad_overflow = before


def _check_optimizer(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> None:
    if not isinstance(optimizer, ELEMENT_BY_ELEMENT):
        names = ", ".join(optimizer.__name__ for optimizer in ELEMENT_BY_ELEMENT)
        raise TaskError(
            f"ZeRO splits parameters anywhere, and whether {type(optimizer).__name__} updates each "
            f"element separately is not known. Use torch's {names}; or set parallel.zero_stage=0 "
            "or parallel.strategy='ddp'."
        )
    other = {parameter.dtype for parameter in parameters} - {torch.float32}
    if other:
        raise TaskError(
            f"ZeRO keeps parameters in fp32, and some are {', '.join(map(str, other))}. Build the "
            "model with model.float(), or set parallel.strategy='ddp'."
        )


def _create_engine(plan: Plan, model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    """Return an engine over the model and the optimizer, whose groups get flat tensors."""
    with _prepared_environment(plan):
        import deepspeed

        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        # Between processes of one machine it would compile an op instead of using gloo: minutes.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        try:
            engine, *_ = deepspeed.initialize(
                model=model, optimizer=optimizer, config=dict(plan.parallel_deepspeed)
            )
        except (AssertionError, ValueError) as error:
            raise ConfigError(
                f"DeepSpeed rejects its configuration: {error}. `surestep plan` shows it, and the "
                "options that it was made from."
            ) from error
    # DeepSpeed calls these by the names that they had before torch 2.13, in every step.
    warnings.filterwarnings(
        "ignore", r"`torch\.distributed\.\w+` is deprecated", category=FutureWarning
    )
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(plan.precision)
    if half is not None:
        # DeepSpeed disables a torch.autocast that it did not create. Its own "torch_autocast"
        # would stay on, in a global, for each later engine of this process.
        engine.torch_autocast_enabled = lambda: True
        engine.torch_autocast_dtype = lambda: half
    return engine


@contextmanager
def _prepared_environment(plan: Plan) -> Iterator[None]:
    """Keep DeepSpeed's output off stdout, and set its device and local rank."""
    variables = {"LOCAL_RANK": str(plan.device.index or 0)}
    if plan.device.type == "cpu":
        variables["DS_ACCELERATOR"] = "cpu"
    added = variables.keys() - os.environ.keys()
    os.environ.update({name: variables[name] for name in added})
    try:
        with warnings.catch_warnings(), redirect_stdout(sys.stderr):
            warnings.simplefilter("ignore")  # of DeepSpeed's own code
            yield
    finally:
        for name in added:
            del os.environ[name]
