"""Models with adapters (LoRA through peft): which of their tensors are the base model's.

peft is not imported: a model of its is known by its `peft_config`.
"""

import re

from torch import Tensor, nn

_WRAPPED = re.compile(r"\.(base_layer|original_module|modules_to_save\.[^.]+)(?=\.)")


def has_adapters(model: nn.Module) -> bool:
    """Say whether peft has put adapters into the model."""
    return hasattr(model, "peft_config")


def base_names(model: nn.Module) -> dict[str, str]:
    """Return the names of tensors that the base model has, each with its name there.

    Several may have the same: of a module that is trained whole, peft keeps the first one too.
    """
    base = getattr(model, "base_model", None)
    mark = str(getattr(base, "prefix", "lora_"))
    found = {}
    for name, value in model.state_dict().items():
        parts = name.split(".")
        if isinstance(value, Tensor) and not any(part.startswith(mark) for part in parts):
            found[name] = _WRAPPED.sub("", name.removeprefix("base_model.model."))
    return found
