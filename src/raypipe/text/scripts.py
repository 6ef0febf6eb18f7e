"""Scripts that put no space between words: where their letters may be parted, and which letters they are."""

from __future__ import annotations

import numpy as np

SPACELESS = (
    (0x0E01, 0x0E3A), (0x0E40, 0x0E4E),  # Thai
    (0x0E81, 0x0ECE), (0x1000, 0x103F), (0x1050, 0x108F), (0x1780, 0x17D3),  # Lao, Burmese, Khmer
    (0x2E80, 0x2FDF), (0x3005, 0x3007), (0x3021, 0x3035), (0x3041, 0x309F), (0x30A1, 0x30FA),
    (0x30FC, 0x30FF), (0x3105, 0x312F), (0x31A0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF), (0xFF66, 0xFF9F), (0x1B000, 0x1B16F), (0x20000, 0x3FFFF),  # Chinese and Japanese
)  # fmt: skip
"""First and last letters of each range, ascending."""
HANGUL = ((0x1100, 0x11FF), (0x3131, 0x318E), (0xA960, 0xA97F), (0xAC00, 0xD7FF))
"""Korean has spaces, but its endings are part of a word: it is searched as the scripts above are."""
_ATTACHED = (  # letters that stand with the one before: vowel signs, tones, marks of length and repetition
    (0x0E30, 0x0E3A), (0x0E45, 0x0E4E), (0x0EB0, 0x0EBC), (0x0EC8, 0x0ECE), (0x102B, 0x103E),
    (0x1056, 0x1059), (0x17B4, 0x17D3), (0x3005, 0x3005), (0x3099, 0x309C), (0x30FC, 0x30FE),
    (0xFF70, 0xFF70), (0xFF9E, 0xFF9F),
)  # fmt: skip
_PARTING = ((0x0F0B, 0x0F0E), (0x1361, 0x1361))  # marks behind a word of Tibetan, and between Ethiopic words
_ASCII = ((0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A))  # letters and digits


def character_class(*ranges: tuple[int, int]) -> str:
    """The ranges as they stand in a class of a pattern."""
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


def word_starts(codes: np.ndarray) -> np.ndarray:
    """(len,) bool: where a letter of such a script begins a word of its own, and where one of another script
    that follows it does, and what follows a mark between words. `codes` (len,) uint32: the characters of a
    text. Punctuation stands with the word before it."""
    starts = np.zeros(len(codes), bool)
    high = np.flatnonzero(codes >= SPACELESS[0][0])  # few in most texts
    letters = high[_within(codes[high], SPACELESS)]
    starts[letters[~_within(codes[letters], _ATTACHED)]] = True
    behind = letters[letters + 1 < len(codes)] + 1
    starts[behind[_within(codes[behind], _ASCII)]] = True
    marks = high[_within(codes[high], _PARTING)] + 1
    starts[marks[marks < len(codes)]] = True
    return starts


def _within(codes: np.ndarray, ranges: tuple[tuple[int, int], ...]) -> np.ndarray:
    borders = np.array([border for first, last in ranges for border in (first, last + 1)], codes.dtype)
    inside: np.ndarray = np.searchsorted(borders, codes, side="right") % 2 == 1
    return inside
