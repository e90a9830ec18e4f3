"""The composition root: `prepare()`, `Session`, `Trainer`. It wires the parts."""

import surestep.base.posix  # noqa: F401  # before modules that need its signals
