"""`python -m raypipe` is the `raypipe` command."""

import sys

from raypipe.cli import main

sys.exit(main())
