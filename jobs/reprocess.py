#!/usr/bin/env python3
"""Recomputes what changed, reports which answers differ: `raypipe eval --changes` behind `ray job submit`.

ray job submit --working-dir . -- python jobs/reprocess.py local --store /data/store --out /data/next
"""

import sys

from raypipe.api.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["eval", "--changes", *sys.argv[1:]]))
