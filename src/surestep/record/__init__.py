"""The Run folder: config, plan, environment, events, checkpoints."""
