"""Many processes that share optimizer, gradients or parameters by DeepSpeed's ZeRO.

DeepSpeed's engine moves gradients and parameters; ours is the division by the items of the whole
batch, and the check that a step is finite, which all ranks agree on before it is taken.
Source: https://deepspeed.readthedocs.io/en/latest/zero3.html
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, optim
from torch.nn import functional

from surestep.base.errors import TaskError
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.optim.deepspeed_adam import adam
from surestep.engine.parallel.deepspeed.engine import create_engine, destroy_engine
from surestep.engine.parallel.deepspeed.state import ZeroState
from surestep.engine.parallel.deepspeed.unused_params import UnusedParamCheck
from surestep.engine.parallel.distributed import DistributedStrategy
from surestep.engine.parallel.manual_allreduce import broadcast_module
from surestep.engine.parallel.nonfinite_guard import all_finite
from surestep.engine.parallel.single import NO_GRADIENT, NOTHING
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import WHOLE, State
from surestep.engine.step_outcome import GradNorm, StepOutcome


class DeepSpeedStrategy(DistributedStrategy):
    """The verbs of a step on a DeepSpeed engine.

    Attributes:
        engine: DeepSpeed's own; what it says of itself is what it does.
        stage: of ZeRO: 0 shares nothing, 1 the optimizer, 2 gradients too, 3 parameters too.
    """

    copies_model = False
    has_zero_stages = True
    extra = "deepspeed"
    has_param_grads = False
    runs_manual_steps = False
    reads_each_step = True
    allows_warm_up = False

    def __init__(self, plan: Plan, state: State, world: Communicator, name: str = WHOLE) -> None:
        super().__init__(plan, state, world, name)
        if plan.parallel_zero_stage:
            _check(self.optimizer, self.parameters, plan)
            self.optimizer.state.clear()  # of whole tensors; DeepSpeed's are pieces
        names = dict(zip(map(id, self.parameters), self.names, strict=True))
        groups = [
            [names[id(each)] for each in group["params"] if id(each) in names]
            for group in self.optimizer.param_groups
        ]
        self._linear = functional.linear  # ZeRO 3 puts its own in its place, for the whole process
        self.engine: Any = create_engine(plan, state.model, self.optimizer)
        self.stage = int(self.engine.zero_optimization_stage())
        if self.stage:
            state.keeper = ZeroState(self.engine, state.model, groups, world)
        self.module = self.engine
        self.max_norm = None  # DeepSpeed clips, by "gradient_clipping"
        self.step = self._step
        self.unscale = _nothing
        # bf16 with stage 1 is an optimizer of its own: each rank keeps the gradients of all.
        self.whole_grads = hasattr(self.engine.optimizer, "fp32_groups_gradient_flat_partition")
        self.offloads = plan.parallel_offload != "off"
        self.scaled = plan.precision == "fp16"
        self.device = plan.device
        self.model = state.model
        self.has_buffers = any(True for _ in state.model.buffers())
        self.reached: UnusedParamCheck | None = UnusedParamCheck(self.names, self.parameters, world)

    @classmethod
    def label(cls, plan: Plan) -> str:
        """Return the stage of ZeRO too."""
        return f"deepspeed ZeRO {plan.parallel_zero_stage}"

    @classmethod
    def make_optimizer(cls, plan: Plan, groups: Any) -> torch.optim.Optimizer | None:
        """Return DeepSpeed's Adam if it is chosen."""
        if plan.optim_implementation == "deepspeed":
            return adam(plan, groups)
        return super().make_optimizer(plan, groups)

    def sync_grads(self, *, when: bool) -> AbstractContextManager[Any]:
        """Say which backward is the last of a step: `no_sync` asserts under ZeRO 2 and 3.

        As with DDP, the buffers of the first rank are those of all where gradients are added up.
        """
        self.engine.set_gradient_accumulation_boundary(when)
        if when and self.has_buffers:
            broadcast_module(self.model, weights=False)
        return NOTHING

    def backward(self, loss_sum: Tensor, items: float) -> None:
        """Go backward from ranks / items, since DeepSpeed divides by the ranks.

        Its own division by the steps of accumulation is left out: the items are those of all.
        """
        if not loss_sum.requires_grad:
            raise TaskError(NO_GRADIENT)
        self.engine.backward(loss_sum * (self.world.size / items), scale_wrt_gas=False)

    def clip_grad_norm(self) -> GradNorm:
        """Measure the norm over all ranks; DeepSpeed clips by it within its step.

        Above stage 0 each rank holds pieces of gradients, so that of single parameters there is
        no norm.
        """
        if self.reached is not None:
            self.reached.check()
            self.reached = None
        if not self.stage:
            return super().clip_grad_norm()
        squares = [torch.linalg.vector_norm(each).double() ** 2 for each in self._gradients()]
        total = torch.stack(squares).sum() if squares else torch.zeros((), dtype=torch.float64)
        total = total.to(self.device)
        dist.all_reduce(total)
        scale = self.engine.optimizer.loss_scale if self.scaled else 1.0
        norm = (total.sqrt() / scale).float()
        return GradNorm(norm, norm.new_empty(0), [])

    def leave(self) -> None:
        """Take DeepSpeed's hooks off the model, and its functions out of torch."""
        destroy_engine(self.engine)
        torch_functional: Any = functional
        torch_functional.linear = self._linear

    def _gradients(self) -> Iterator[Tensor]:
        """Yield this rank's pieces of the gradients, averaged over the ranks."""
        optimizer = self.engine.optimizer
        if self.whole_grads:
            yield from optimizer.fp32_groups_gradient_flat_partition
        elif self.offloads:
            flat = "fp32_partitioned_groups_flat" if self.stage == 3 else _FLAT
            yield from (each.grad for each in getattr(optimizer, flat))
        else:
            for pieces in optimizer.averaged_gradients.values():
                yield from (each for each in pieces or () if each is not None)

    def _step(self, loss_sum: Tensor, grad_norm: Tensor) -> StepOutcome:
        """Step where loss and norm are finite, which are the same on all ranks."""
        if all_finite(loss_sum, grad_norm):
            self.engine.step()
            return StepOutcome(True)
        if not self.stage:
            self.engine.zero_grad()
            return StepOutcome(False, nonfinite=True)
        if self.whole_grads:
            self.engine.optimizer.clear_hp_grads()
            self.engine.optimizer.clear_lp_grads()
            return StepOutcome(False, nonfinite=True)
        scaler = self.engine.optimizer.loss_scaler
        overflow = self.scaled and all_finite(loss_sum) and scaler.cur_scale > 1
        kept = dict(vars(scaler))
        with _overflowing(self.engine.optimizer):
            self.engine.step()
        if not overflow:
            vars(scaler).update(kept)
        return StepOutcome(False, overflow=overflow, nonfinite=not overflow)


def _check(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], plan: Plan) -> None:
    """Check that the optimizer moves each element by itself, and that all are of fp32.

    Raises:
        TaskError: it does not, or they are not.
    """
    its_own = plan.optim_implementation == "deepspeed"
    if not its_own and not isinstance(optimizer, ELEMENT_BY_ELEMENT):
        names = ", ".join(each.__name__ for each in ELEMENT_BY_ELEMENT)
        raise TaskError(
            f"ZeRO cuts what an optimizer moves anywhere, and whether {type(optimizer).__name__} "
            f"moves each element by itself is not known. Use torch's {names}; or say "
            "parallel.zero_stage=0 or parallel.strategy='ddp'."
        )
    other = {each.dtype for each in parameters} - {torch.float32}
    if other:
        raise TaskError(
            f"ZeRO keeps parameters in fp32, and some are {', '.join(map(str, other))}. Build the "
            "model with model.float(), or say parallel.strategy='ddp'."
        )


# They move each element by itself, so that it does not matter where ZeRO cuts; torch's Adagrad
# makes its state at once, of whole tensors.
ELEMENT_BY_ELEMENT = (
    *(optim.Adadelta, optim.Adam, optim.Adamax, optim.AdamW, optim.ASGD, optim.NAdam),
    *(optim.RAdam, optim.RMSprop, optim.Rprop, optim.SGD),
)
_FLAT = "single_partition_of_fp32_groups"


def _nothing() -> None:
    """DeepSpeed takes its loss scale out of the gradients within its step."""


@contextmanager
def _overflowing(optimizer: Any) -> Iterator[None]:
    """Let DeepSpeed's step meet a norm that overflowed: it moves nothing, and clears up.

    Its own check masks NaN with fp32 and bf16 in some stages, so it is told what we know.
    """
    infinite = torch.tensor(math.inf)
    told: dict[str, Callable[..., Any]] = {
        "scaled_global_norm": lambda *_, **__: infinite,  # stages 1 and 2
        "_get_norm_groups": lambda: [infinite],  # stage 3
        "check_overflow": lambda *_, **__: None,
    }
    checks = getattr(optimizer, "check_grad_overflow", None)
    try:
        optimizer.check_grad_overflow = True
        for name, tell in told.items():
            setattr(optimizer, name, tell)
        yield
    finally:
        for name in told:
            delattr(optimizer, name)
        optimizer.check_grad_overflow = checks
