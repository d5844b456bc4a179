"""Gateways: the ways into an organism and out of it, each of which establishes who sends."""
