"""The pages of runs: the report file, and the viewer that serves one run or compares two."""
