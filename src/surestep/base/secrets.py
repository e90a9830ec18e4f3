"""Mask passwords and tokens in messages that are recorded."""

import os
import re

_MASK = "***"
_LONGEST = 300  # characters of an error that are shown
_SHORTEST = 6  # a shorter value may be a part of any word
_USER_INFO = re.compile(r"(?<=://)[^/\s@'\"]+(?=@)")
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|JWT|AUTH", re.IGNORECASE)


def mask_secrets(text: str) -> str:
    """Mask user and password in addresses, and the values of environment variables with secrets.

    A variable has a secret if its name contains a word such as KEY, TOKEN, SECRET or PASSWORD.

    Args:
        text: a message, which may quote the error of a library.

    Returns:
        The text with "***" in place of each secret.

    Example:
        >>> mask_secrets("https://me:pass@host/path answered 401")
        'https://***@host/path answered 401'
    """
    secrets = {
        value
        for name, value in os.environ.items()
        if len(value) >= _SHORTEST and _SECRET_NAME.search(name) and not value.isdigit()
    }
    for secret in sorted(secrets, key=len, reverse=True):
        if secret in text:
            text = text.replace(secret, _MASK)
    return _USER_INFO.sub(_MASK, text) if "://" in text else text


def describe_error(error: Exception) -> str:
    """Return the type and the first line of a library's error, without secrets and final period.

    Args:
        error: of a library, whose message may have many lines.

    Example:
        >>> describe_error(ValueError("no table\\nSELECT 1"))
        'ValueError: no table'
    """
    return f"{type(error).__name__}: {first_line(error)}"


def first_line(error: BaseException) -> str:
    """Return the first line of a library's error, without secrets and final period.

    Args:
        error: of a library, whose message may have many lines.
    """
    return mask_secrets(str(error).strip().partition("\n")[0])[:_LONGEST].rstrip(".")
