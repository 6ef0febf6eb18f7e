#!/usr/bin/env python3
"""Computes missing answers of a dataset, scores it, writes a report: `raypipe eval` behind `ray job submit`.

ray job submit jobs/eval.py                                    the demo, on a head started in the checkout
ray job submit --working-dir . -- python jobs/eval.py local --data /data/dev.jsonl.bz2 --store /data/store
"""

import sys

from raypipe.api.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["eval", *sys.argv[1:]], whole=True))
