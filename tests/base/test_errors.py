from surestep.base.errors import NonFiniteError, suggest_names


def test_similar_names_are_suggested():
    assert suggest_names("epoch", ["epochs", "seed"]) == "Did you mean 'epochs'?"
    assert suggest_names("lerning_rate", ["learning_rate", "learning_rates"]) == (
        "Did you mean 'learning_rate' or 'learning_rates'?"
    )


def test_option_of_a_group_is_suggested_for_its_own_name():
    known = ["average.lr", "optim.lr", "optim.name", *map(str, range(99))]
    assert suggest_names("lr", known) == "Did you mean 'optim.lr' or 'average.lr'?"


def test_all_names_are_listed_if_none_is_similar():
    assert suggest_names("zzz", ["epochs", "seed"]) == "Known: epochs, seed."
    assert suggest_names("zzz", []) == "There are none here."


def test_nonfinite_error_has_step_loss_and_parameters():
    error = NonFiniteError("bad", step=3, loss=1.5, parameters=["head.weight"])
    assert (error.step, error.loss, error.parameters) == (3, 1.5, ["head.weight"])


def test_only_the_nearest_of_many_names_are_listed():
    known = [f"group.option_{n}" for n in range(99)] + ["loop"]
    message = suggest_names("foo", known)
    assert message.startswith("The nearest of 100: loop, ")
    assert message.count(",") == 4
