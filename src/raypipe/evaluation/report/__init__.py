"""Reports of a run for people and programs: files, one HTML page, a console table, progress on the way."""
