"""Text from files that anybody may have written, as a terminal may be given it."""


def printable(text: str) -> str:
    """Return text with what would steer a terminal spelled out: \\x1b for escape."""
    return "".join(each if each.isprintable() or each == "\n" else _spelled(each) for each in text)


def _spelled(character: str) -> str:
    return character.encode("unicode_escape").decode()
