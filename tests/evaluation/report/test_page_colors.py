"""Texts of all pages can be read in light and in dark: the contrast that WCAG 2.2 asks of text, 4.5 to 1."""

import re
from pathlib import Path

import pytest

import raypipe.text

CSS = (Path(raypipe.text.__file__).parent / "web/base.css").read_text()
PAPERS = {
    "ink": ("paper", "card", "line", "mark", "gold", "add", "del"),
    "soft": ("paper", "card"),
    "deep": ("paper", "card"),
    "bad": ("paper", "card"),
}
"""Color of a text -> what it stands on."""


def colors(text):
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", text))


def luminance(color):
    """As WCAG 2.2 defines it, 0..1."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_what_it_stands_on(scheme):
    light, dark = CSS.partition("@media (prefers-color-scheme: dark)")[::2]
    found = colors(light) | (colors(dark) if scheme == "dark" else {})
    assert colors(dark).keys() == colors(light).keys()
    for text, papers in PAPERS.items():
        for paper in papers:
            low, high = sorted((luminance(found[text]), luminance(found[paper])))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (text, paper)
