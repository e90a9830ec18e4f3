"""The composition root: `prepare()`, `Session`, `Trainer`. It wires the parts."""
