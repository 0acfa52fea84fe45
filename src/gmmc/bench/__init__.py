"""`gmmc bench`: speed of sampling and training against a plain reference loop."""
