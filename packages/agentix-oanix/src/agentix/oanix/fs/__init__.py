"""File services that hold or find content: memory, host directories, archives and their layers."""
