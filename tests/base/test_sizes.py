import pytest

from surestep.base.text import format_bytes


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
