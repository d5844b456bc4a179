"""The standard services of an environment: its task and its logs."""
