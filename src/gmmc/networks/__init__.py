"""Feature extractors φ, heads, and the CPU threads that they compute with."""
