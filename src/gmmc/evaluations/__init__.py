"""One module per evaluation, listed by `registry` and run by `evaluate`; `attacks` has the attacks."""
