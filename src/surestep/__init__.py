"""PyTorch training where every step is right."""

from __future__ import annotations

from surestep.base.version import VERSION

# As in `typing`, whose import takes longer than the rest of what a command does before it notes
# signals.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from surestep import errors as errors
    from surestep.base.errors import SurestepError as SurestepError
    from surestep.config.config import Config as Config
    from surestep.config.doctor import Doctor as Doctor
    from surestep.config.groups import Average as Average
    from surestep.config.groups import Checkpoint as Checkpoint
    from surestep.config.groups import Data as Data
    from surestep.config.groups import EarlyStop as EarlyStop
    from surestep.config.groups import Logging as Logging
    from surestep.config.groups import Report as Report
    from surestep.config.groups import Scaler as Scaler
    from surestep.config.groups import Validation as Validation
    from surestep.config.not_set import NOT_SET as NOT_SET
    from surestep.config.optim import Optim as Optim
    from surestep.config.parallel import Parallel as Parallel
    from surestep.config.param_groups import ParamGroup as ParamGroup
    from surestep.config.schedule import Schedule as Schedule
    from surestep.engine import losses as losses
    from surestep.engine import metrics as metrics
    from surestep.engine.batch import Batch as Batch
    from surestep.engine.batch import MicroBatch as MicroBatch
    from surestep.engine.data import batch_transforms as batch_transforms
    from surestep.engine.data import samplers as samplers
    from surestep.engine.data.batched import BatchedDataset as BatchedDataset
    from surestep.engine.data.batched import batch_by_tokens as batch_by_tokens
    from surestep.engine.data.bptt import BPTTDataset as BPTTDataset
    from surestep.engine.evaluate.input_gradients import input_gradients as input_gradients
    from surestep.engine.evaluate.predict import Predictions as Predictions
    from surestep.engine.metrics.base import InputMetric as InputMetric
    from surestep.engine.metrics.base import log as log
    from surestep.engine.metrics.whole_set import whole_set as whole_set
    from surestep.engine.model.stateful_rnn import StatefulRNN as StatefulRNN
    from surestep.engine.plan.plan import Plan as Plan
    from surestep.engine.rng import derive_seed as derive_seed
    from surestep.engine.rng import set_seed as set_seed
    from surestep.engine.state.state import State as State
    from surestep.engine.step.callback import Callback as Callback
    from surestep.engine.step.callback import Request as Request
    from surestep.engine.step.callback import SavedCheckpoint as SavedCheckpoint
    from surestep.engine.step.log_point import LogPoint as LogPoint
    from surestep.engine.step.manual_step import ManualStep as ManualStep
    from surestep.engine.step.train_step import StepResult as StepResult
    from surestep.engine.task.init_weights import InitWeights as InitWeights
    from surestep.engine.task.task import OptimizerSpec as OptimizerSpec
    from surestep.engine.task.task import Task as Task
    from surestep.engine.value import Metrics as Metrics
    from surestep.laws.proof import Proof as Proof
    from surestep.laws.prove import prove_laws as prove_laws
    from surestep.laws.prove_data import prove_data as prove_data
    from surestep.record.checkpoint.reader import CheckpointInfo as CheckpointInfo
    from surestep.record.history import History as History
    from surestep.record.plot import plot as plot
    from surestep.record.run import Run as Run
    from surestep.record.runs import RunList as RunList
    from surestep.record.runs import RunSummary as RunSummary
    from surestep.record.runs import runs as runs
    from surestep.reports.write import report as report
    from surestep.tracking.tracker import Tracker as Tracker
    from surestep.trainer.decision_regions import DecisionRegions as DecisionRegions
    from surestep.trainer.find_lr import LrRangeTest as LrRangeTest
    from surestep.trainer.find_lr import find_lr as find_lr
    from surestep.trainer.prepare import prepare as prepare
    from surestep.trainer.replay import replay as replay
    from surestep.trainer.session import Session as Session
    from surestep.trainer.trainer import Trainer as Trainer
    from surestep.tuning.search import SearchResult as SearchResult
    from surestep.tuning.search import search as search

_HOMES = {
    "Average": "surestep.config.groups",
    "BPTTDataset": "surestep.engine.data.bptt",
    "Batch": "surestep.engine.batch",
    "BatchedDataset": "surestep.engine.data.batched",
    "Callback": "surestep.engine.step.callback",
    "Checkpoint": "surestep.config.groups",
    "CheckpointInfo": "surestep.record.checkpoint.reader",
    "Config": "surestep.config.config",
    "Data": "surestep.config.groups",
    "DecisionRegions": "surestep.trainer.decision_regions",
    "Doctor": "surestep.config.doctor",
    "EarlyStop": "surestep.config.groups",
    "History": "surestep.record.history",
    "InitWeights": "surestep.engine.task.init_weights",
    "InputMetric": "surestep.engine.metrics.base",
    "LogPoint": "surestep.engine.step.log_point",
    "Logging": "surestep.config.groups",
    "LrRangeTest": "surestep.trainer.find_lr",
    "ManualStep": "surestep.engine.step.manual_step",
    "Metrics": "surestep.engine.value",
    "MicroBatch": "surestep.engine.batch",
    "NOT_SET": "surestep.config.not_set",
    "Optim": "surestep.config.optim",
    "OptimizerSpec": "surestep.engine.task.task",
    "Parallel": "surestep.config.parallel",
    "ParamGroup": "surestep.config.param_groups",
    "Plan": "surestep.engine.plan.plan",
    "Predictions": "surestep.engine.evaluate.predict",
    "Proof": "surestep.laws.proof",
    "Report": "surestep.config.groups",
    "Request": "surestep.engine.step.callback",
    "Run": "surestep.record.run",
    "RunList": "surestep.record.runs",
    "RunSummary": "surestep.record.runs",
    "SavedCheckpoint": "surestep.engine.step.callback",
    "Scaler": "surestep.config.groups",
    "Schedule": "surestep.config.schedule",
    "SearchResult": "surestep.tuning.search",
    "Session": "surestep.trainer.session",
    "State": "surestep.engine.state.state",
    "StatefulRNN": "surestep.engine.model.stateful_rnn",
    "StepResult": "surestep.engine.step.train_step",
    "SurestepError": "surestep.base.errors",
    "Task": "surestep.engine.task.task",
    "Tracker": "surestep.tracking.tracker",
    "Trainer": "surestep.trainer.trainer",
    "Validation": "surestep.config.groups",
    "batch_by_tokens": "surestep.engine.data.batched",
    "batch_transforms": "surestep.engine.data.batch_transforms",
    "derive_seed": "surestep.engine.rng",
    "errors": "surestep.errors",
    "find_lr": "surestep.trainer.find_lr",
    "input_gradients": "surestep.engine.evaluate.input_gradients",
    "log": "surestep.engine.metrics.base",
    "losses": "surestep.engine.losses",
    "metrics": "surestep.engine.metrics",
    "plot": "surestep.record.plot",
    "prepare": "surestep.trainer.prepare",
    "prove_data": "surestep.laws.prove_data",
    "prove_laws": "surestep.laws.prove",
    "replay": "surestep.trainer.replay",
    "report": "surestep.reports.write",
    "runs": "surestep.record.runs",
    "samplers": "surestep.engine.data.samplers",
    "search": "surestep.tuning.search",
    "set_seed": "surestep.engine.rng",
    "whole_set": "surestep.engine.metrics.whole_set",
}
__all__ = sorted(_HOMES)
__version__ = VERSION


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    # `import surestep` must not import torch: each public name is fetched on first use.
    if name not in _HOMES:
        raise AttributeError(f"module 'surestep' has no attribute {name!r}")
    import gc  # late: a command notes signals sooner
    import sys
    from importlib import import_module

    # Imports create many objects and no garbage, and a collection scans those of torch too: 0.1 s.
    collects, loaded = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        home = import_module(_HOMES[name])
    except ModuleNotFoundError as error:
        from surestep.base.missing_torch import describe_missing_torch, is_missing_torch

        if not is_missing_torch(error):
            raise
        raise ModuleNotFoundError(
            describe_missing_torch(f"surestep.{name}"), name="torch"
        ) from None
    finally:
        if collects:
            if len(sys.modules) > loaded and not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()  # into the oldest generation, which few collections visit
            gc.enable()
    value = getattr(home, name, home)  # a module does not have its own name
    globals()[name] = value
    return value
