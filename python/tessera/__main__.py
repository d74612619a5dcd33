"""``python -m tessera``: the command ``tessera``."""

from tessera._command import main

main()
