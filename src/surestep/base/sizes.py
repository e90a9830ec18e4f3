"""Numbers of bytes, as people read them."""


def byte_count(value: int | None) -> str:
    """Show bytes in the unit that fits; what is not known is said to be so."""
    if value is None:
        return "not known"
    size, unit = float(value), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
