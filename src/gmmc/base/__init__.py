"""Files, text, progress, seeds, limits: imports nothing of gmmc but errors."""
