"""Importing a namespace in a child process, and asking it questions there."""
