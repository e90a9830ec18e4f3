"""Search: many runs of a recipe, with options that a sampler chooses."""
