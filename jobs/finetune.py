#!/usr/bin/env python3
"""Trains a LoRA adapter on labels and keeps it in the store: `raypipe finetune` behind `ray job submit`.

ray job submit --working-dir . -- python jobs/finetune.py db3-web --labels /data/labels/web --base llama-3-8b
"""

import sys

from raypipe.api.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["finetune", *sys.argv[1:]]))
