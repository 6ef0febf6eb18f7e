#!/usr/bin/env python3
"""Answers the stored questions that have no answer yet: `raypipe answer` behind `ray job submit`.

ray job submit --working-dir . -- python jobs/answer.py local --store /data/store
"""

import sys

from raypipe.api.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["answer", *sys.argv[1:]]))
