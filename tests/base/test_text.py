import pytest

from surestep.base.text import escape_control_chars, format_bytes, format_duration, one_line


def test_terminal_control_characters_are_escaped():
    assert escape_control_chars("a\x1b[2Jb\rc\x9bd\x07") == r"a\x1b[2Jb\rc\x9bd\x07"
    assert escape_control_chars("\u202eabc") == r"\u202eabc"


def test_printable_text_is_unchanged():
    assert escape_control_chars("läßt 你好 → x\ny") == "läßt 你好 → x\ny"


def test_line_breaks_in_a_name_are_escaped():
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
def test_byte_counts_are_shown_in_a_suitable_unit(size, shown):
    assert format_bytes(size) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0123, "0.0123 s"),
        (59.9, "59.9 s"),
        (61, "1 min 1 s"),
        (119.9, "2 min 0 s"),
        (7384, "2 h 3 min"),
    ],
)
def test_duration_is_shown_in_readable_units(seconds, shown):
    assert format_duration(seconds) == shown
