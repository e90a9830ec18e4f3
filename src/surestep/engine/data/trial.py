"""Whether a stream goes on rightly by its own state: tried on its first samples."""

from itertools import islice
from typing import Any

from surestep.engine.data.own_state import Own, Part, copied, has_state
from surestep.engine.data.packing import packed
from surestep.engine.data.stream import LOOKED_AT, Reader, digest
from surestep.engine.seed import LoadingRandomness, seed_loading

HALF = LOOKED_AT // 2


def why_read_again(stream: Any) -> str:
    """Say why a stream cannot go on by its own state; nothing where it can, as far as one sees.

    What comes after some samples is compared with what comes after loading the state there.
    """
    with LoadingRandomness():
        try:
            return _owner_fails(stream) or _state_fails(stream)
        except Exception as error:  # of the user's code; whoever reads it next says so
            return f"reading its first samples failed: {error!r}"


def _owner_fails(stream: Any) -> str:
    own = Own()
    seed_loading(0)
    own.begin(stream, 0)
    if own.owner is None:
        return "it has no state_dict() and load_state_dict()"
    try:
        if has_state(stream):
            copied(stream)
    except Exception as error:  # of the user's classes, which may raise anything
        return f"its state would be loaded into a copy, and it cannot be copied: {error!r}"
    return ""


def _state_fails(stream: Any) -> str:
    reader, own = Reader(stream, seed=0), Own()
    samples = reader.samples(0, own=own)
    before = list(islice(samples, HALF))
    name = type(own.owner).__name__
    try:
        state = packed(own.owner.state_dict())
    except TypeError as error:
        return f"the state of {name} has a {error}, which has no form in JSON or safetensors"
    except Exception as error:
        return f"state_dict() of {name} failed: {error!r}"
    after = [digest(each) for each in islice(samples, HALF)]
    again = Own(Part(len(before), len(before), state))
    try:
        found = [digest(each) for each in islice(reader.samples(0, own=again), HALF)]
    except Exception as error:
        return f"load_state_dict() of {name} failed: {error!r}"
    if found == after:
        return ""
    return f"after loading its state of {len(before)} samples, {name} goes on with others"
