import sys

from tessera.lab.cli import main

# Processes that measure import this module too.
if __name__ == "__main__":
    sys.exit(main())
