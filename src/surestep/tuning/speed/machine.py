"""The machine that a tuning was measured on, as tuned.toml has it."""

import sys
from collections.abc import Mapping
from typing import Any

from surestep.base.text import format_count, print_escaped
from surestep.config.config import Config
from surestep.engine.distributed.launcher_env import BY_NPROC
from surestep.engine.plan.system import SystemInfo, device_name, read_system
from surestep.engine.resolve.resolver import resolve_device

_NAMES = ("device", "cpus", "torch")


def read_machine(system: SystemInfo, device: Any) -> dict[str, Any]:
    """Return what the speed of a run depends on.

    Args:
        system: this machine.
        device: that the run uses.
    """
    return {
        "device": device_name(system, device),
        "cpus": system.cpus,
        "torch": system.torch_version,
    }


def describe_machine(machine: Mapping[str, Any]) -> str:
    """Return a machine as a text."""
    cpus = machine.get("cpus")
    cores = format_count(cpus, "core") if isinstance(cpus, int) else "an unknown number of cores"
    return f"{machine.get('device')}, {cores}, torch {machine.get('torch')}"


def report_other_machine(tuned: Mapping[str, Any], path: str) -> None:
    """Print a line if options were measured on a machine that differs from this one.

    Args:
        tuned: the table of this name in a file of options, which anyone may have changed.
        path: of the file.
    """
    system = read_system()
    if system.launched.rank > 0 or system.launched.launcher == BY_NPROC:
        return  # another process prints it
    here = read_machine(system, resolve_device(Config(max_steps=1), system))
    if any(tuned.get(name) != here[name] for name in _NAMES):
        print_escaped(
            f"{path} was measured on {describe_machine(tuned)}, and this is "
            f"{describe_machine(here)}. The options are used; to measure them here, run surestep "
            "tune again.",
            sys.stderr,
        )
