"""PyTorch training where every step is right."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from surestep.base.version import VERSION

if TYPE_CHECKING:
    from surestep.base.config import Config as Config
    from surestep.base.errors import SurestepError as SurestepError
    from surestep.base.groups.average import Average as Average
    from surestep.base.groups.data import Data as Data
    from surestep.base.groups.evaluation import EarlyStop as EarlyStop
    from surestep.base.groups.evaluation import Validation as Validation
    from surestep.base.groups.optim import Optim as Optim
    from surestep.base.groups.parallel import Parallel as Parallel
    from surestep.base.groups.parameters import Group as Group
    from surestep.base.groups.precision import Scaler as Scaler
    from surestep.base.groups.record import Checkpoint as Checkpoint
    from surestep.base.groups.record import Logging as Logging
    from surestep.base.groups.schedule import Schedule as Schedule
    from surestep.base.not_set import NOT_SET as NOT_SET
    from surestep.engine import losses as losses
    from surestep.engine.callback import Callback as Callback
    from surestep.engine.callback import Request as Request
    from surestep.engine.carry import Carry as Carry
    from surestep.engine.data import orders as orders
    from surestep.engine.data import transforms as transforms
    from surestep.engine.data.batched import BatchedDataset as BatchedDataset
    from surestep.engine.data.batched import batch_by_tokens as batch_by_tokens
    from surestep.engine.data.lanes import Lanes as Lanes
    from surestep.engine.evaluation import metrics as metrics
    from surestep.engine.evaluation.whole_set import whole_set as whole_set
    from surestep.engine.measure.saliency import input_gradients as input_gradients
    from surestep.engine.metrics import InputMetric as InputMetric
    from surestep.engine.metrics import log as log
    from surestep.engine.model.initial import Init as Init
    from surestep.engine.seed import seed_at as seed_at
    from surestep.engine.seed import set_seed as set_seed
    from surestep.engine.state import State as State
    from surestep.engine.task import Learner as Learner
    from surestep.engine.task import Task as Task
    from surestep.engine.turn import Turn as Turn
    from surestep.record.run import Run as Run
    from surestep.trainer.prepare import prepare as prepare
    from surestep.trainer.replay import replay as replay
    from surestep.trainer.trainer import Trainer as Trainer

_HOMES = {
    "Average": "surestep.base.groups.average",
    "Checkpoint": "surestep.base.groups.record",
    "Data": "surestep.base.groups.data",
    "EarlyStop": "surestep.base.groups.evaluation",
    "Group": "surestep.base.groups.parameters",
    "Logging": "surestep.base.groups.record",
    "NOT_SET": "surestep.base.not_set",
    "Optim": "surestep.base.groups.optim",
    "Parallel": "surestep.base.groups.parallel",
    "Scaler": "surestep.base.groups.precision",
    "Schedule": "surestep.base.groups.schedule",
    "Validation": "surestep.base.groups.evaluation",
    "BatchedDataset": "surestep.engine.data.batched",
    "batch_by_tokens": "surestep.engine.data.batched",
    "Callback": "surestep.engine.callback",
    "Carry": "surestep.engine.carry",
    "Config": "surestep.base.config",
    "Lanes": "surestep.engine.data.lanes",
    "Init": "surestep.engine.model.initial",
    "Request": "surestep.engine.callback",
    "Run": "surestep.record.run",
    "State": "surestep.engine.state",
    "SurestepError": "surestep.base.errors",
    "Learner": "surestep.engine.task",
    "Task": "surestep.engine.task",
    "Turn": "surestep.engine.turn",
    "Trainer": "surestep.trainer.trainer",
    "losses": "surestep.engine",
    "InputMetric": "surestep.engine.metrics",
    "input_gradients": "surestep.engine.measure.saliency",
    "log": "surestep.engine.metrics",
    "metrics": "surestep.engine.evaluation",
    "orders": "surestep.engine.data",
    "prepare": "surestep.trainer.prepare",
    "replay": "surestep.trainer.replay",
    "seed_at": "surestep.engine.seed",
    "set_seed": "surestep.engine.seed",
    "transforms": "surestep.engine.data",
    "whole_set": "surestep.engine.evaluation.whole_set",
}
__all__ = sorted(_HOMES)
__version__ = VERSION


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    # `import surestep` must not import torch: each public name is fetched on first use.
    if name not in _HOMES:
        raise AttributeError(f"module 'surestep' has no attribute {name!r}")
    home = import_module(_HOMES[name])
    if not hasattr(home, name):  # a module, which is there once it is imported
        import_module(f"{_HOMES[name]}.{name}")
    value = getattr(home, name)
    globals()[name] = value
    return value
