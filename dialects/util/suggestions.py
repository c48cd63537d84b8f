"""``; did you mean 'x'?`` for names that do not exist."""

from collections.abc import Iterable


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Return a hint to append to a message, or '' when nothing comes close."""
    from difflib import get_close_matches  # only on the way to an error: start-up time

    close = get_close_matches(name, list(candidates), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""
