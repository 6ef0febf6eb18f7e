"""What the site has beyond the pages of this folder: the README as its first page, and the API's reference.

Called by mkdocs, which mkdocs.yml tells so.
"""

import re
import runpy
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
EXPORTS = runpy.run_path(str(ROOT / "src/raypipe/__init__.py"))["EXPORTS"]  # name -> module
DOCTEST = re.compile(r"(?m)^>>> .*\n(?:(?!\n).*\n)*")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the README, its links made those of the site, and a page with all that `import raypipe` gives."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=readme))
    functions_first = sorted(EXPORTS.items(), key=lambda export: (export[0][0].isupper(), export[0]))
    names = "".join(f"::: {module}.{name}\n\n" for name, module in functions_first)
    files.append(File.generated(config, "api.md", content=f"# The API\n\n{names}"))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Shows the doctests of a page as code: to Markdown their prompt is a quotation."""
    return DOCTEST.sub(lambda found: f"```pycon\n{found[0]}```\n", markdown)
