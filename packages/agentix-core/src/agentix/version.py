"""The version that all distributions of this release carry."""

__all__ = ["VERSION"]

VERSION = "0.1.0"
