"""Builds a namespace: an image, a bundle or an archive of it, the same for the same source."""
