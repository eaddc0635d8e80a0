"""Smaller pictures: what a browser writes with filters, packed without them."""

import struct
import zlib

SIGNATURE = b"\x89PNG\r\n\x1a\n"
# Bytes of a pixel, by the type of colour: RGB, and RGB with alpha.
PIXEL = {2: 3, 6: 4}


def chunks(data):
    """The chunks of a PNG file: name and content."""
    at = len(SIGNATURE)
    while at < len(data):
        length, name = struct.unpack(">I4s", data[at:at + 8])
        yield name, data[at + 8:at + 8 + length]
        at += 12 + length


def paeth(left, above, corner):
    """The neighbour that is nearest to left + above - corner (PNG specification, 9.4)."""
    to_left, to_above = abs(above - corner), abs(left - corner)
    to_corner = abs(left + above - 2 * corner)
    if to_left <= to_above and to_left <= to_corner:
        return left
    return above if to_above <= to_corner else corner


def unfiltered(kind, line, above, pixel):
    """A line of a picture without its filter (PNG specification, 9.2)."""
    line = bytearray(line)
    for at in range(len(line)):
        left = line[at - pixel] if at >= pixel else 0
        corner = above[at - pixel] if at >= pixel else 0
        guess = (0, left, above[at], (left + above[at]) // 2, paeth(left, above[at], corner))[kind]
        line[at] = (line[at] + guess) & 255
    return bytes(line)


def lines(data):
    """Width, height, bytes of a pixel, and the lines of a picture with 8 bits for each colour."""
    content = {}
    for name, part in chunks(data):
        content[name] = content.get(name, b"") + part
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", content[b"IHDR"])
    assert depth == 8 and colour in PIXEL and not interlaced, (depth, colour, interlaced)
    pixel, packed = PIXEL[colour], zlib.decompress(content[b"IDAT"])
    length, above, found = width * pixel, bytes(width * pixel), []
    for row in range(height):
        start = row * (length + 1)
        kind, line = packed[start], packed[start + 1:start + 1 + length]
        above = line if kind == 0 else unfiltered(kind, line, above, pixel)
        found.append(above)
    return content[b"IHDR"], found


def smaller(data):
    """The same picture in fewer bytes. Large areas of one colour repeat, and filters hide that."""
    header, found = lines(data)
    packed = zlib.compress(b"".join(b"\0" + line for line in found), 9)
    parts = [(b"IHDR", header), (b"IDAT", packed), (b"IEND", b"")]
    return SIGNATURE + b"".join(
        struct.pack(">I", len(part)) + name + part + struct.pack(">I", zlib.crc32(name + part))
        for name, part in parts)
