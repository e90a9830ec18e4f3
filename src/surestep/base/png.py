"""Write pictures as PNG files, without a library."""

import struct
import zlib

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOR_TYPES = {1: 0, 3: 2, 4: 6}  # by channels: gray, RGB, RGBA


def encode_png(pixels: bytes, height: int, width: int, channels: int) -> bytes:
    """Return a PNG file of 8-bit pixels; the same pixels give the same bytes.

    Args:
        pixels: height * width * channels bytes, row by row.
        height: in pixels.
        width: in pixels.
        channels: 1 (gray), 3 (RGB) or 4 (RGBA).

    Source: https://www.w3.org/TR/png-3/
    """
    stride = width * channels
    rows = (pixels[start : start + stride] for start in range(0, height * stride, stride))
    lines = b"".join(b"\0" + row for row in rows)  # each row without a filter
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOR_TYPES[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return _SIGNATURE + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
