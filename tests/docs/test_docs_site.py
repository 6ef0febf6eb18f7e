"""`make docs`: every page is listed, and the site builds without a broken link."""

import os
import subprocess
import sys

import pytest
import yaml
from prose import ROOT

GENERATED = {"index.md", "api.md"}  # docs/hooks.py


def pages(nav):
    """The files that a part of the navigation names."""
    for entry in nav:
        for below in entry.values() if isinstance(entry, dict) else [entry]:
            if isinstance(below, list):
                yield from pages(below)
            else:
                yield below


def test_every_page_is_listed_once():
    listed = list(pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    there = {str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")}
    assert sorted(listed) == sorted(there | GENERATED)


@pytest.mark.drill
def test_the_site_is_built_with_the_readme_the_api_and_no_broken_link(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    assert "make eval" in (tmp_path / "index.html").read_text()
    assert 'id="raypipe.api.run.evaluate"' in (tmp_path / "api.html").read_text()
    one_row = (tmp_path / "one-row.html").read_text()
    assert "&gt;&gt;&gt; " in one_row and "<blockquote>" not in one_row
