"""Which calls of a script move something to a GPU."""

from __future__ import annotations

from surestep.doctor.source.values import Attribute, Call, Constant, Either, Unknown, Value


def moves_to_gpu(call: Call) -> bool:
    """Return whether a method moves its object to a device that is not certainly the CPU."""
    if call.path == ".cuda":
        return True
    return call.path == ".to" and _may_be_gpu(call.argument(0, "device"))


def _may_be_gpu(value: Value | None) -> bool:
    match value:
        case Constant(value=str() as name):
            return name.startswith("cuda")
        case Call(path="torch.device"):
            first = value.argument(0, "device")
            return not (isinstance(first, Constant) and first.value == "cpu")
        case Either(options=options):  # 'cuda' if torch.cuda.is_available() else 'cpu'
            return any(_may_be_gpu(option) for option in options)
        case Attribute(name=name) | Unknown(name=name):
            return name == "device"
    return False
