import pytest

from surestep.cli import output as show


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "not known"), (0.0, "0"), (3e-5, "3e-05"), (0.123456, "0.1235")]
)
def test_unknown_number_is_not_shown_as_zero(value, shown):
    assert show.format_number(value) == shown


def test_table_shows_long_names_in_full_and_brackets_unchanged(capsys):
    long = "runs/" + "x" * 200
    show.print_table("A [b] title", (), [("path", long), ("shape", "[red]3[/red]")])
    found = capsys.readouterr()
    assert (found.err, found.out.splitlines()[0]) == ("", "A [b] title")
    assert long in found.out
    assert "[red]3[/red]" in found.out
