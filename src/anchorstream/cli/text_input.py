"""Text from an argument, a file or standard input, with clear words about what is wrong with it."""

from __future__ import annotations

import sys
from pathlib import Path

from anchorstream.errors import InputError
from anchorstream.text.utf8 import decode


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """The prompt: `prompt`, or the text of `file`, or standard input.

    Raises:
        InputError: both or none are given, it cannot be read, is empty, or is not UTF-8.
    """
    if prompt is not None and file is not None:
        raise InputError("give a prompt or --file, not both")
    if file is not None:
        try:
            text = decode(file.read_bytes(), str(file))
        except OSError as error:
            raise InputError(f"{file} cannot be read: {error.strerror}") from None
    elif prompt is None or prompt == "-":
        if sys.stdin.isatty() and prompt is None:
            raise InputError("there is no prompt: give one as an argument, with --file, or on standard input")
        text = decode(sys.stdin.buffer.read(), "standard input")
    else:
        text = prompt
    if not text:
        raise InputError("the prompt is empty")
    return text
