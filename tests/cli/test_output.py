import pytest

from surestep.cli import output as show


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "not known"), (0.0, "0"), (3e-5, "3e-05"), (0.123456, "0.1235")]
)
def test_unknown_number_is_not_shown_as_zero(value, shown):
    assert show.format_number(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0123, "0.0123 s"), (59.9, "59.9 s"), (61, "1 min 1 s"), (119.9, "2 min 0 s")],
)
def test_duration_is_shown_in_readable_units(seconds, shown):
    assert show.format_duration(seconds) == shown


def test_table_shows_long_names_in_full_and_brackets_unchanged(capsys):
    long = "runs/" + "x" * 200
    show.print_table("A [b] title", (), [("path", long), ("shape", "[red]3[/red]")])
    found = capsys.readouterr()
    assert (found.err, found.out.splitlines()[0]) == ("", "A [b] title")
    assert long in found.out
    assert "[red]3[/red]" in found.out
