#!/usr/bin/env python3
"""Brings the corpus half of a recipe up to date over a store: `raypipe index` behind `ray job submit`.

ray job submit --working-dir . -- python jobs/index.py local --store /data/store
"""

import sys

from raypipe.api.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["index", *sys.argv[1:]]))
