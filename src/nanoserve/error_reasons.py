"""Why a file could not be read or written, in the words of one place."""


def reason_of(error: Exception) -> str:
    """Return the reason of a failed read or write, to stand in a sentence.

    The system's words, without the error's number and the path, which the sentence has;
    of bytes that are no text, which is the first; of anything else, what it says of itself.

    Example: `No such file or directory`, or `it is not UTF-8 text (byte 1,024)`.
    """
    if isinstance(error, UnicodeDecodeError):
        return f"it is not {error.encoding.upper()} text (byte {error.start:,})"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
