"""The command `agentix-namespace` as `python -m agentix.namespace_sdk`."""

import sys

from agentix.namespace_sdk.command import main

sys.exit(main())
