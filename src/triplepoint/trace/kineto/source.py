"""The bytes of a trace file, plain or gzip, or one line saying why it is not one."""

import zlib
from pathlib import Path

from triplepoint.errors import UserError

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_ADVICE = "launch the run again, or remove the file"


def read_source(path: Path) -> bytes:
    """Return the JSON text of a trace file.

    Args:
        path: File as the profiler wrote it: plain or gzip, in one member or several.

    Returns:
        The text, starting with `{` or `[`.

    Raises:
        UserError: If the file is missing, empty, truncated, damaged, or no trace at all.
    """
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, IsADirectoryError):
        raise UserError(f"{path}: no such trace file") from None
    if raw.startswith(_ZSTD):
        raise UserError(f"{path.name}: compressed with zstd, expected gzip or plain JSON; run `unzstd` on it first")
    text = _gunzip(path, raw) if raw.startswith(_GZIP) else raw
    _check_is_json(path, text)
    return text


def _gunzip(path: Path, raw: bytes) -> bytes:
    parts = []
    rest = raw
    while rest.startswith(_GZIP):
        member = zlib.decompressobj(wbits=31)
        try:
            parts.append(member.decompress(rest))
        except zlib.error as error:
            raise UserError(f"{path.name}: gzip stream is damaged ({error}); {_ADVICE}") from None
        if not member.eof:
            raise UserError(
                f"{path.name}: gzip stream ends after {len(raw)} bytes, the trace is truncated (was the job killed?); "
                + _ADVICE
            )
        rest = member.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _check_is_json(path: Path, text: bytes) -> None:
    start = text[:256].lstrip(b"\xef\xbb\xbf \t\r\n")
    if not start:
        raise UserError(f"{path.name}: the file is empty, expected a Kineto trace; {_ADVICE}")
    if start.startswith(b"<"):
        raise UserError(f"{path.name}: this is an HTML or XML page, expected a Kineto trace in JSON; download it again")
    if not start.startswith((b"{", b"[")):
        found = start[:12].decode("ascii", "backslashreplace")
        raise UserError(f"{path.name}: starts with {found!r}, expected a Kineto trace in JSON (`{{` or `[`)")


def explain_damage(path: Path, text: bytes, reason: str) -> UserError:
    """Return the error for a text that is not the JSON of a trace.

    Args:
        path: File it came from.
        text: The text that did not decode.
        reason: What the decoder said.
    """
    if "truncated" in reason:
        return UserError(
            f"{path.name}: JSON ends after {len(text)} bytes, the trace is truncated (was the job killed?); {_ADVICE}"
        )
    return UserError(f"{path.name}: not a readable Kineto trace ({reason}); {_ADVICE}")
