"""Tools for the authors of Agentix namespaces."""

from agentix.namespace_sdk.testing import assert_stub_matches_impl, mounted_runtime

__all__ = ["assert_stub_matches_impl", "mounted_runtime"]
