"""Lets `python -m agentix.namespace_sdk` be the command `agentix-namespace`."""

import sys

from agentix.namespace_sdk.command import main

sys.exit(main())
