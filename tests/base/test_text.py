import pytest

from surestep.base.text import escape_control_chars, format_bytes, one_line


def test_what_steers_a_terminal_is_spelled_out():
    assert escape_control_chars("a\x1b[2Jb\rc\x9bd\x07") == r"a\x1b[2Jb\rc\x9bd\x07"
    assert escape_control_chars("\u202eabc") == r"\u202eabc"


def test_what_is_read_stays():
    assert escape_control_chars("läßt 你好 → x\ny") == "läßt 你好 → x\ny"


def test_line_breaks_of_a_name_are_spelled_out():
    assert one_line("a\nb\x1b[2J") == r"a\nb\x1b[2J"


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (None, "not known"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536 * 1024, "1.5 MiB"),
        (80 * 2**30, "80.0 GiB"),
        (5000 * 2**40, "5000.0 TiB"),
    ],
)
def test_bytes_are_shown_in_the_unit_that_fits(size, shown):
    assert format_bytes(size) == shown
