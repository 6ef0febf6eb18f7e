"""A page of a browser that notes what it asked for and complained about; pictures for the documentation."""

import os
from pathlib import Path

SHOTS = os.environ.get("RAYPIPE_SCREENSHOTS")  # a folder that gets pictures for the documentation


def opened(browser, url, width=1100):
    page = browser.new_page()
    page.set_viewport_size({"width": width, "height": 820})
    page.asked, page.wrong = [], []
    page.on("request", lambda r: page.asked.append(r.url))
    page.on("pageerror", lambda e: page.wrong.append(str(e)))
    page.on("console", lambda m: page.wrong.append(m.text) if m.type in ("error", "warning") else None)
    page.goto(url)
    return page


def shot(page, name):
    if SHOTS:
        page.screenshot(path=str(Path(SHOTS) / f"{name}.png"))
