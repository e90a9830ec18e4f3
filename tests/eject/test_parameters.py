"""A script's `task` has the parameters that its lines read."""

from surestep.eject.parameters import remove_unused

RECIPE = '''import torch


def task(width: int = 8, alpha: float = 0.5, samples=200) -> Parts:
    """Learn.

    Args:
        width: of the model.
        alpha: weight of the loss, in
            [0, 1].
        samples: of the data.
    """
    return Parts(model=network({width}), train=rows({samples}))


def rows(alpha):
    return alpha
'''


def write(width: str, samples: str) -> str:
    return RECIPE.format(width=width, samples=samples)


def test_parameter_that_nothing_reads_is_removed_with_its_line_of_the_docstring():
    text = remove_unused(write("width", "samples"))
    assert "def task(width: int = 8, samples=200) -> Parts:\n" in text
    assert '        width: of the model.\n        samples: of the data.\n    """\n' in text
    assert text.endswith(write("width", "samples").partition("    return")[2])


def test_docstring_without_parameters_has_no_list_of_them():
    text = remove_unused(write("8", "200"))
    assert 'def task() -> Parts:\n    """Learn."""\n    return' in text


def test_parameters_that_are_read_stay_as_they_are_written():
    text = write("width + alpha", "samples")
    assert remove_unused(text) == text
