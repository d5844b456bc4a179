"""The Agentix runtime: one small server in each sandbox."""

from agentix.runtime.app import create_app
from agentix.runtime.settings import Settings

__all__ = ["Settings", "create_app"]
