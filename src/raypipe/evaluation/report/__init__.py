"""Reports of a run on a console and in an HTML page."""
