"""What another library's error says, for a message of one line."""


def first_line(error: BaseException) -> str:
    """The first line of the error's text; of one without a text, its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


LONGEST, _END = 1_500, 300
"""Characters of an error on the terminal, and how many of them its end, which tells the remedy, has."""


def shortened(text: str) -> str:
    """``text`` on one line, without the middle of a long one: a value that it quotes may have a million characters."""
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - _END]} ... {text[-_END:]}"
