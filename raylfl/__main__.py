"""`python -m raylfl` is the command line."""

import sys

from raylfl.cli import main

sys.exit(main())
