#!/usr/bin/env python3
"""Reads files into a store, each line once: `raypipe ingest` behind `ray job submit`.

ray job submit --working-dir . -- python jobs/ingest.py /data/dev.jsonl.bz2 --store /data/store
"""

import sys

from raypipe.api.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["ingest", *sys.argv[1:]]))
