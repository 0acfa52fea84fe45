"""The command line."""

from gmmc.cli.app import main

__all__ = ["main"]
