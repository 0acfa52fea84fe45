"""Runs side by side: the comparison of `gmmc report RUN…`."""
