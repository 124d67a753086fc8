"""Studies by name: tables and figures of the paper; `scales` and `paper` hold what they share."""
