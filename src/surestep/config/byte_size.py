"""Amounts of memory as text: 24GB is 24 * 10^9 bytes, 512MiB is 512 * 2^20."""

import re

from surestep.config.duration import parse_number

_UNITS = {
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)},
}
_TEXT = re.compile(r"(.*?)\s*([kmgt]?i?b)", re.IGNORECASE)


def parse_bytes(text: str) -> float | None:
    """Parse an amount with a unit, such as "24GB"; return None if it is none."""
    match = _TEXT.fullmatch(text.strip())
    amount = parse_number(match[1]) if match else None
    return None if match is None or amount is None else amount * _UNITS[match[2].lower()]
