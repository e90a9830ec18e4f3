"""Check the rules that a run ignores."""

from collections.abc import Mapping

from surestep.base.errors import ConfigError, suggest_names
from surestep.config.config import Config
from surestep.config.doctor import reasons_by_code
from surestep.config.group import placed
from surestep.doctor.rule import list_codes


def check_ignored(config: Config, origins: Mapping[str, str]) -> None:
    """Check the codes of `doctor.ignore`.

    Args:
        config: the options that are set.
        origins: where each was set, by full name.

    Raises:
        ConfigError: there is no such rule.
    """
    ignored = config.doctor.ignore
    codes = list_codes()
    for code in reasons_by_code(ignored) if isinstance(ignored, tuple) else ():
        if code in codes:
            continue
        by_name = next((known for known, name in codes.items() if name == code.lower()), None)
        meant = f"Use its code, {by_name}." if by_name else suggest_names(code, codes)
        sentence = f"There is no rule {code!r} to ignore. {meant}"
        where = {**config.locations(), **origins}
        raise ConfigError(placed("doctor.ignore", sentence, where))
