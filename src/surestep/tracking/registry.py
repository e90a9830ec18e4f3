"""The trackers by name: one file each, and one entry here or an entry point of a package."""

from importlib import import_module

from surestep.base.plugins import TRACKERS, load_plugin
from surestep.tracking.tracker import Tracker

BUILT_IN = {
    "tensorboard": "tensorboard:TensorBoardTracker",
    "mlflow": "mlflow:MLflowTracker",
    "wandb": "wandb:WandbTracker",
}


def tracker_class(name: str) -> type[Tracker]:
    """Return the class of a tracker.

    Raises:
        ConfigError: the plug-in cannot be loaded.
    """
    if name in BUILT_IN:
        module, _, kind = BUILT_IN[name].partition(":")
        found = getattr(import_module(f"surestep.tracking.{module}"), kind)
    else:
        found = load_plugin(TRACKERS, name, Tracker)
    tracker: type[Tracker] = found
    return tracker
