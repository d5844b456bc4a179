"""Tools for the authors of Agentix namespaces."""
