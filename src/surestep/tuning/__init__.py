"""Search: many runs of a recipe, with options that a sampler chooses."""

import surestep.base.posix  # noqa: F401  # before modules that need its signals
