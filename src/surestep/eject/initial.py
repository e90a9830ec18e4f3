"""The initial weights of an ejected script, and its teacher."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from surestep.base.errors import RecipeError
from surestep.eject.choices import Choices, flags_of
from surestep.engine.losses.distillation import Distillation
from surestep.engine.task.init_weights import InitWeights
from surestep.engine.task.task import Task


def choose_initial(task: Task, model: nn.Module) -> Choices:
    """Return what the initial weights of a Task choose of `templates/program.py`.

    Raises:
        RecipeError: they are in a file, or their names are not those of the model.
    """
    init: Any = task.init
    if init is None:
        return Choices()
    assert isinstance(init, InitWeights)
    if not isinstance(init.weights, Mapping):
        raise RecipeError(
            f"eject does not print Task(init={init.typed}), a file. Load it in the recipe: "
            f"init=torch.load({init.typed}, weights_only=True)."
        )
    new = tuple(f"{name.rstrip('.')}." for name in init.skip)
    own = [name for name in model.state_dict() if not name.startswith(new)]
    given = [name for name in init.weights if not name.startswith(new)]
    unknown = [name for name in new if not hasattr(model, name.partition(".")[0])]
    if sorted(own) != sorted(given) or unknown or init.prefix or init.into:
        raise RecipeError(
            "eject prints initial weights with the names of the model, without modules that are "
            "named in skip. Rename them in the recipe, and leave out prefix=, into= and wildcards."
        )
    return Choices(flags_of(new=bool(new)), {"NEW": new})


def choose_teacher(task: Task) -> Choices:
    """Return what the teacher of a Task chooses of `templates/program.py`.

    Raises:
        RecipeError: the loss gets its outputs, and eject prints them for one loss.
    """
    has_teacher = task.teacher is not None
    if has_teacher and not isinstance(task.loss, Distillation):
        raise RecipeError(
            "eject prints Task(teacher=...) with surestep.losses.distillation() alone. Use it."
        )
    builds = has_teacher and not isinstance(task.teacher, nn.Module)
    if has_teacher:
        return Choices(flags_of(teacher=True, builds_teacher=builds))
    calls = (", teacher(x[part])", ", teacher(x[rows])", ", teacher")
    return Choices(renamed=dict.fromkeys(calls, ""))
