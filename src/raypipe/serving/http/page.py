"""The web page at `/`: one file, no build step, no request to any other host."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import re


def load_page() -> tuple[str, dict[str, str]]:
    """The page and its headers. They allow its own script and its own endpoint, and nothing else."""
    html = importlib.resources.files("raypipe.serving.http").joinpath("page.html").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; script-src {_hash(html, 'script')}; style-src {_hash(html, 'style')}; "
        "connect-src 'self'; img-src data:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    )
    return html, {"content-security-policy": policy, "cache-control": "no-cache"}


def _hash(html: str, tag: str) -> str:
    """The content security policy's hash of the one inline `tag` of a page."""
    [inside] = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    return "'sha256-" + base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode() + "'"
