"""The trackers by name: one file each, and one entry here or an entry point of a package."""

from importlib import import_module
from importlib.util import find_spec

from surestep.base.errors import ConfigError
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
        ConfigError: its package is not installed, or the plug-in cannot be loaded.
    """
    if name in BUILT_IN and find_spec(name) is None:  # the package has the name of the tracker
        raise ConfigError(
            f"The tracker {name!r} needs a package that is not installed. Install it: "
            f"pip install {name}."
        )
    if name in BUILT_IN:
        module, _, kind = BUILT_IN[name].partition(":")
        found = getattr(import_module(f"surestep.tracking.{module}"), kind)
    else:
        found = load_plugin(TRACKERS, name, Tracker)
    tracker: type[Tracker] = found
    return tracker
