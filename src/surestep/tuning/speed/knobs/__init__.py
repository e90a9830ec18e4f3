"""The knobs that `surestep tune` tries, one module each. See `knob.py` for what a module has."""
