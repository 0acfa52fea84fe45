"""One module per evaluation, all `evaluate(model, data, cfg) -> Result`; `registry` runs them."""
