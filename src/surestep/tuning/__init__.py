"""Search: many runs of a recipe, with options that a sampler chooses."""

import surestep.base.posix  # before modules that need its signals
import surestep.base.torch_release  # noqa: F401  # or names of torch that older ones lack
