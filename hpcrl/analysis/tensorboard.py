"""Event files as TensorBoard reads them, written without it: records of protocol-buffer messages with checksums."""

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

_POLYNOMIAL = 0x82F63B78
"""Of CRC-32C, bits reversed."""


def _table() -> list[int]:
    rows = []
    for row in range(256):
        for _ in range(8):
            row = row >> 1 ^ (_POLYNOMIAL if row & 1 else 0)
        rows.append(row)
    return rows


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli) of some bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def write_events(path: Path, rows: Iterable[tuple[float, int, Mapping[str, float]]]) -> None:
    """Write rows of (wall time [s], step, tag to number) into a new event file.

    Raises
    ------
    OSError
        The file exists, or cannot be written.
    """
    with open(path, "xb") as stream:
        stream.write(_record(_double(1, 0.0) + _bytes(3, b"brain.Event:2")))
        for wall_seconds, step, values in rows:
            summary = b"".join(_bytes(1, _bytes(1, tag.encode()) + _float(2, value)) for tag, value in values.items())
            stream.write(_record(_double(1, wall_seconds) + _varint(2 << 3) + _varint(step) + _bytes(5, summary)))


def _record(message: bytes) -> bytes:
    """Length, its checksum, the message, its checksum (TFRecord)."""
    length = struct.pack("<Q", len(message))
    return length + _masked_crc(length) + message + _masked_crc(message)


def _masked_crc(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _bytes(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _double(field: int, number: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", number)


def _float(field: int, number: float) -> bytes:
    return _varint(field << 3 | 5) + struct.pack("<f", number)
