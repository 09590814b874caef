"""Mutations of files: bytes changed, lost, doubled and cut; numbers made extreme; archives packed again."""

from __future__ import annotations

import io
import zipfile
import zlib
from random import Random

SPECIAL = (0, 9, 10, 13, 34, 39, 44, 59, 91, 92, 93, 123, 125, 127, 128, 255)
TOKENS = (
    *(b"\x00", b'"', b"\n\n", b"\t", b"\xef\xbb\xbf", "词".encode(), b"1e999", b"NaN", b"-1", b"inf", b"[" * 200),
    *(b"9" * 5000, b"\xff\xfe", b"{", b"}", b"null", b"\\ud800", b"../" * 400, b"a" * 5000, b"\r", b"__label__", b"="),
    *(b"<!DOCTYPE x>", b"&x;", "𝟛".encode(), "²".encode(), "\u202e".encode(), b"\\", b"#", b"%s", b"0x10", b"1_000"),
)
NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1)


def mutate(data: bytes, rng: Random) -> bytes:
    """The bytes with one to five mutations."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 5)):
        mutate_once(changed, rng)
    return bytes(changed)


def mutate_once(data: bytearray, rng: Random) -> None:
    place = rng.randrange(len(data) + 1)
    kind = rng.choice(("flip", "set", "lose", "double", "insert", "number", "swap", "cut"))
    if kind == "flip" and place < len(data):
        data[place] ^= 1 << rng.randrange(8)
    elif kind == "set" and place < len(data):
        data[place] = rng.choice((*SPECIAL, rng.randrange(256)))
    elif kind == "lose":
        del data[place : place + rng.randint(1, 20)]
    elif kind == "double":
        data[place:place] = data[place : place + rng.randint(1, 60)]
    elif kind == "insert":
        data[place:place] = rng.choice(TOKENS)
    elif kind == "number":
        size = rng.choice((1, 2, 4, 8))
        value = rng.choice(NUMBERS) & ((1 << 8 * size) - 1)
        data[place : place + size] = value.to_bytes(size, rng.choice(("little", "big")))
    elif kind == "swap" and len(data) > 4:
        other = rng.randrange(len(data))
        length = rng.randint(1, 16)
        data[place : place + length], data[other : other + length] = (
            data[other : other + length],
            data[place : place + length],
        )
    elif rng.random() < 0.3:
        del data[place:]


def mutate_file(name: str, data: bytes, rng: Random) -> bytes:
    """A mutated file; of archives and PNG mostly what is inside, with checksums that are right again."""
    inside = rng.random() < 0.7
    if data[:2] == b"PK" and inside:
        return mutate_zip(data, rng)
    if data[:8] == b"\x89PNG\r\n\x1a\n" and inside:
        return mutate_png(data, rng)
    if data[:2] == b"\x1f\x8b" and inside:
        return zlib.compress(mutate(zlib.decompress(data, 31), rng), wbits=31)
    return mutate(data, rng)


def mutate_zip(data: bytes, rng: Random) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new:
        members = old.namelist()
        chosen = set(rng.sample(members, min(len(members), rng.randint(1, 2))))
        for name in members:
            content = old.read(name)
            if name in chosen and rng.random() < 0.05:
                continue
            new.writestr(name, mutate(content, rng) if name in chosen else content)
    return file.getvalue()


def mutate_png(data: bytes, rng: Random) -> bytes:
    """A PNG with one mutated chunk whose length and checksum are right."""
    chunks, place = [], 8
    while place + 8 <= len(data):
        length = int.from_bytes(data[place : place + 4], "big")
        chunks.append((data[place + 4 : place + 8], data[place + 8 : place + 8 + length]))
        place += 12 + length
    number = rng.randrange(len(chunks))
    kind, content = chunks[number]
    if kind == b"IDAT" and rng.random() < 0.5:
        content = zlib.compress(mutate(zlib.decompress(content), rng))
    else:
        content = mutate(content, rng)
    chunks[number] = (kind, content)
    packed = [
        len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")
        for kind, content in chunks
    ]
    return data[:8] + b"".join(packed)
