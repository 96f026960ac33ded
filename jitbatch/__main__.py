"""`python -m jitbatch` is the command `jitbatch`."""

import sys

from jitbatch.cli import main

if __name__ == "__main__":
    sys.exit(main())
