"""Runs side by side: `gmmc compare`."""
