"""WASI preview 1: its 46 functions over a tree of nodes, and their runner."""
