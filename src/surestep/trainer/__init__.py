"""The composition root: `prepare()`, `Session`, `Trainer`. It wires the parts."""

import surestep.base.posix  # before modules that need its signals
import surestep.base.torch_release  # noqa: F401  # or names of torch that older ones lack
