"""Run the command `agentix-oanix` as `python -m agentix.oanix`."""

import logging
import sys

from agentix.oanix.command import main

if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    sys.exit(main())
