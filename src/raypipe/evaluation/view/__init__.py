"""Web pages of runs: the report file, and the viewer's pages of one run or of two."""
