"""Runs the command `agentix-agentserver` as `python -m agentix.agentserver`."""

import sys

from agentix.agentserver.command import main

if __name__ == "__main__":
    sys.exit(main())
