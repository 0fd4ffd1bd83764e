"""`python -m raylfl`: the same as the command `raylfl`."""

import sys

from raylfl.cli import main

sys.exit(main())
