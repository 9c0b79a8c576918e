"""Bytes to text, with clear words about what is wrong with them."""

from __future__ import annotations

from anchorstream.errors import InputError


def decode(data: bytes, where: str) -> str:
    """UTF-8 text, without a byte-order mark.

    Args:
        where: what the bytes are, for the message.

    Raises:
        InputError: bytes that are not UTF-8; the place is named.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{where} is not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}") from None
