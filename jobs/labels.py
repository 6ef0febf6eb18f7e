#!/usr/bin/env python3
"""Makes training labels for a step of a recipe: `raypipe labels` behind `ray job submit`.

ray job submit --working-dir . -- python jobs/labels.py db3-task1-700 --data /data/dev.jsonl.bz2 \
    --where split=0 --against split=1 --store /data/store --out /data/labels/web
"""

import sys

from raypipe.api.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["labels", *sys.argv[1:]], whole=True))
