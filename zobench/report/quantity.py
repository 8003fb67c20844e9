"""Numbers as a report prints them: rounded, but to no fewer than three digits."""

from __future__ import annotations

LEAST_DIGITS = 3


def rounded(value: float, form: str) -> str:
    """``value`` in the format ``form``, with more digits where that leaves fewer than three: 1955, 3.42, 0.0731.

    In the format ``g``, a count's, it is written as it is: 2."""
    text = format(value, form)
    digits = sum(character.isdigit() for character in text.lstrip("-0."))
    if value == 0 or form == "g" or digits >= LEAST_DIGITS:
        return text
    return f"{value:#.{LEAST_DIGITS}g}".rstrip(".")
