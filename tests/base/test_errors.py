import inspect

from surestep.base import errors
from surestep.base.errors import NonFiniteError, SurestepError, suggest_names


def test_the_tree_on_top_of_the_file_is_the_tree():
    classes = [each for _, each in inspect.getmembers(errors, inspect.isclass)]
    children = {each.__name__ for each in classes if each.__base__ is SurestepError}
    drawn = {line.split()[1] for line in errors.__doc__.splitlines() if line[:1] in "├└" and line}
    assert drawn == children


def test_near_names_come_first():
    assert suggest_names("epoch", ["epochs", "seed"]) == "Did you mean 'epochs'?"
    assert suggest_names("lerning_rate", ["learning_rate", "learning_rates"]) == (
        "Did you mean 'learning_rate' or 'learning_rates'?"
    )


def test_with_nothing_near_all_are_listed():
    assert suggest_names("zzz", ["epochs", "seed"]) == "Known: epochs, seed."
    assert suggest_names("zzz", []) == "There are none here."


def test_a_nonfinite_error_tells_step_loss_and_parameters():
    error = NonFiniteError("bad", step=3, loss=1.5, parameters=["head.weight"])
    assert (error.step, error.loss, error.parameters) == (3, 1.5, ["head.weight"])


def test_of_many_names_only_the_nearest_are_said():
    known = [f"group.option_{n}" for n in range(99)] + ["loop"]
    said = suggest_names("foo", known)
    assert said.startswith("The nearest of 100: loop, ")
    assert said.count(",") == 4
