"""What is told of ranks that others wait for: who, in which step, and at which line."""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from surestep.engine.distributed.rank_status import RankStatus

_MOST = 16  # groups of ranks that are told one by one


def blocking_ranks(stands: Mapping[int, RankStatus], silent: Collection[int]) -> list[int]:
    """Return the ranks that the others wait for, as far as that is known.

    Those that say nothing; else those behind. Of these, or where none is behind of all, those that
    do not wait themselves. None where all wait for each other, or all are at work.
    """
    if silent:
        return sorted(silent)
    last = lagging_ranks(stands) or sorted(stands)
    found = [rank for rank in last if not stands[rank].is_waiting] or last
    return found if len(found) < len(stands) else []


def lagging_ranks(stands: Mapping[int, RankStatus]) -> list[int]:
    """Return the ranks that have not come as far as others, whatever lines they are at."""
    places = {rank: each.place for rank, each in stands.items()}
    least, most = min(places.values()), max(places.values())
    return sorted(rank for rank, place in places.items() if place == least < most)


def hang_summary(stands: Mapping[int, RankStatus], silent: Collection[int], waited_s: float) -> str:
    """Return the sentence that names the ranks that are missed."""
    named = [stands[rank].name for rank in blocking_ranks(stands, silent)]
    step = max((each.step or 0 for each in stands.values()), default=0)
    when = f"in step {step}" if step else "before the first step"
    if not named:
        return f"All ranks have waited for each other {when} for {waited_s:.3g} s."
    who = capitalize_first(join_words(named))
    if silent:
        verb = "does" if len(named) == 1 else "do"
        return f"{who} {verb} not answer; the others have waited {when} for {waited_s:.3g} s."
    if not any(each.is_waiting for each in stands.values()):  # as far as their lines tell
        verb = "is" if len(named) == 1 else "are"
        return f"{who} {verb} behind the others, which have stood {when} for {waited_s:.3g} s."
    verb = "keeps" if len(named) == 1 else "keep"
    return f"{who} {verb} the others waiting {when} for {waited_s:.3g} s."


def rank_table(stands: Mapping[int, RankStatus], silent: Mapping[int, float | None]) -> list[str]:
    """Return where each rank stands, a line for those that stand at the same one.

    Args:
        stands: of all ranks.
        silent: since when a rank has said nothing, for those that say nothing.
    """
    first = blocking_ranks(stands, silent)
    groups: dict[tuple[str, bool], list[int]] = {}
    for rank in [*first, *(rank for rank in sorted(stands) if rank not in first)]:
        text = _place(stands[rank], rank in silent, silent.get(rank))
        groups.setdefault((text, rank in first), []).append(rank)
    lines = [
        f"  {_who(ranks, stands)}, {text}" for (text, _), ranks in list(groups.items())[:_MOST]
    ]
    left = sum(len(ranks) for ranks in list(groups.values())[_MOST:])
    return [*lines, f"  and {left} others"] if left else lines


def _who(ranks: list[int], stands: Mapping[int, RankStatus]) -> str:
    return stands[ranks[0]].name if len(ranks) == 1 else f"ranks {format_ranks(ranks)}"


def _place(stand: RankStatus, is_silent: bool, since: float | None) -> str:
    step = "before the first step" if stand.step is None else f"step {stand.step}"
    if is_silent:
        at = "" if since is None else f" at {datetime.fromtimestamp(since):%H:%M:%S}"
        return f"{step}, last heard of{at}: {stand.line}"
    return f"{step}: {stand.line}{' (waits for others)' if stand.is_waiting else ''}"


def describe_lost_rank(stand: RankStatus, *, is_silent: bool) -> str:
    """Return the sentence of a rank that the others could not go on without."""
    verb = "is not heard of any more; it" if is_silent else "did not come; it"
    if stand.step is None:
        return f"{capitalize_first(stand.name)} {verb} was starting."
    return (
        f"{capitalize_first(stand.name)} {verb} {'last stood' if is_silent else 'stands'} at "
        f"{stand.line}."
    )


def capitalize_first(text: str) -> str:
    """Begin a sentence with a text."""
    return text[:1].upper() + text[1:]


def join_words(words: Iterable[str]) -> str:
    """Join words as a sentence does."""
    *before, last = words
    return f"{', '.join(before)} and {last}" if before else last


def format_ranks(ranks: Collection[int]) -> str:
    """Return ranks as "0, 2-7"."""
    found: list[list[int]] = []
    for rank in sorted(ranks):
        if found and found[-1][-1] == rank - 1:
            found[-1][1:] = [rank]
        else:
            found.append([rank])
    return ", ".join("-".join(map(str, each)) for each in found)
