"""The command line as `python -m raylfl`."""

import sys

from raylfl.cli import main

sys.exit(main())
