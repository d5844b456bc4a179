"""Measures Agentix beside floors and peers: `python -m bench [part ...] [--write]`."""
