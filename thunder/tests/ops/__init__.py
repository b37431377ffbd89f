"""torch's own database of operations as the judge of this compiler: see `columns` for what is checked."""
