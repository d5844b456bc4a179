"""What tests of `agentix.linux` share with those of deployments."""

from tests.deployments.local.conftest import ordinary_python

__all__ = ["ordinary_python"]
