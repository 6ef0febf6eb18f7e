"""The web page at `/`: it shows evidence by the code of a run's page, and calls no other host."""

from __future__ import annotations

from raypipe.report import web_page


def load_page() -> tuple[str, dict[str, str]]:
    """The page and its headers. They allow its own script and its own endpoint, and nothing else."""
    styles, scripts = ("base.css", "endpoint.css"), ("dom.js", "evidence.js", "endpoint.js")
    html, policy = web_page.page("endpoint.html", styles, scripts, True, {})
    policy = f"{policy}; frame-ancestors 'none'"
    return html, {"content-security-policy": policy, "cache-control": "no-cache"}
