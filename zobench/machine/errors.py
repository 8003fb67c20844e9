"""What another library's error says, for a message of one line."""


def first_line(error: BaseException) -> str:
    """The first line of the error's text; of one without a text, its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
