"""The encoding of a text file: a byte-order mark, UTF-8, or what its bytes are plausible for."""

from __future__ import annotations

import re
from typing import NamedTuple

SAMPLE = 1 << 20
"""Bytes that a guess looks at."""
MARKS = {
    b"\xef\xbb\xbf": ("utf-8-sig", "UTF-8"),
    b"\xff\xfe\x00\x00": ("utf-32", "UTF-32"),
    b"\x00\x00\xfe\xff": ("utf-32", "UTF-32"),
    b"\xff\xfe": ("utf-16", "UTF-16"),
    b"\xfe\xff": ("utf-16", "UTF-16"),
}
"""Python's codec and the usual name by the byte-order mark; longer marks first."""
HIGH = re.compile(rb"[\x80-\xff]+")
UTF8 = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
GB_PAIR = re.compile(rb"[\x81-\xfe][\x40-\x7e\x80-\xfe]")
GB_COMMON = re.compile(rb"[\xa1-\xa3\xb0-\xd7][\xa1-\xfe]")
"""Punctuation and the 3,755 characters of GB 2312's first level, which make up almost all of any Chinese text."""
CONTROLS = re.compile(rb"[\x00-\x08\x0b\x0e-\x1f\x7f]")
WESTERN = set("ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑÒÓÔÕÖØÙÚÛÜÝÞßàáâãäåæçèéêëìíîïðñòóôõöøùúûüýþÿŠšŽžŒœŸ‘’“”„‚–—…•€£°§«»©®™¿¡·´\xa0½²ºª")
"""What Western European texts in Windows-1252 (Latin-1) have beyond ASCII."""


class Encoding(NamedTuple):
    """Python's codec, and the name that users know."""

    codec: str
    name: str


def detect_encoding(data: bytes) -> Encoding | None:
    """The encoding of a text; None where it is none that is known, or UTF-8 with damage.

    >>> detect_encoding("很好的酒店 ok".encode("gbk")), detect_encoding("déjà vu".encode("latin-1")).name
    (Encoding(codec='gb18030', name='GB18030'), 'Windows-1252')
    >>> detect_encoding("A打了B".encode()), detect_encoding("中文".encode() + bytes([255])), detect_encoding(bytes(9))
    (Encoding(codec='utf-8', name='UTF-8'), None, None)
    """
    for mark, (codec, name) in MARKS.items():
        if data.startswith(mark):
            return Encoding(codec, name)
    sample = data[:SAMPLE]
    zeros = [sample[n::2].count(0) for n in (0, 1)]
    for start, codec in ((1, "utf-16-le"), (0, "utf-16-be")):  # Latin letters in UTF-16 have a zero byte each
        if 4 * zeros[start] > len(sample) and 20 * zeros[1 - start] < len(sample):
            return Encoding(codec, "UTF-16")
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return guess_legacy_encoding(sample)
    return Encoding("utf-8", "UTF-8") if zeros == [0, 0] or len(sample) > 20 * sum(zeros) else None


def guess_legacy_encoding(sample: bytes) -> Encoding | None:
    """GB18030 or Windows-1252 if the bytes beyond ASCII are plausible for it; None for anything else."""
    high = sum(map(len, HIGH.findall(sample)))
    if sum(map(len, UTF8.findall(sample))) >= 0.9 * high or CONTROLS.search(sample):
        return None
    pairs = GB_PAIR.findall(sample)
    common = [pair for pair in pairs if GB_COMMON.fullmatch(pair)]
    korean = len(common) >= 20 and not any(pair[0] > 0xC8 for pair in common)
    if len(common) >= 0.7 * len(pairs) > 0 and 2 * len(pairs) >= 0.8 * high and not korean:
        return Encoding("gb18030", "GB18030")
    return Encoding("cp1252", "Windows-1252") if is_western(sample, high) else None


def is_western(sample: bytes, high: int) -> bool:
    """Whether the bytes beyond ASCII are accented letters and typographic signs among ASCII letters."""
    text = sample.decode("cp1252", "replace")
    signs = [letter for letter in text if letter > "\x7f"]
    letters = sum(letter.isascii() and letter.isalpha() for letter in text)
    known = sum(letter in WESTERN for letter in signs)
    runs = len(HIGH.findall(sample))
    return known >= 0.9 * len(signs) and high <= 1.5 * runs and high <= letters + 1
