"""The options that only `fit()` acts on, and what to call instead in your own loop."""

from surestep.config.config import Config

_CALLS = {
    "validation.every": "session.evaluate()",
    "validation.on_start": "session.evaluate()",
    "checkpoint.every": "session.save()",
    "schedule.save_cycles": "session.save()",
}
_PATIENCE = "early_stop.patience"


def describe_ignored(config: Config) -> str:
    """Return a line about the options set that only `fit()` acts on; empty if there are none."""
    options = config.set_options()
    found = [name for name in (*_CALLS, _PATIENCE) if options.get(name)]
    calls = " and ".join(dict.fromkeys(_CALLS[name] for name in found if name in _CALLS))
    sentences = []
    if found:
        it = "them" if len(found) > 1 else "it"
        sentences.append(
            f"Your own loop ignores {', '.join(found)}: only Trainer.fit() acts on {it}."
        )
    if calls:
        sentences.append(f"Call {calls} in the loop, or use Trainer.fit().")
    if _PATIENCE in found:
        sentences.append(
            f"To stop early, leave the loop if session.state.best.since_best is "
            f"{options[_PATIENCE]} after session.evaluate()."
        )
    if options.get("max_time"):
        sentences.append(
            "max_time ends a loop over session.steps() without saving: call session.save() after "
            "the loop."
        )
    return " ".join(sentences)
