"""What works with runs as a whole: studies and sweeps, comparisons, figures, prices of cuts, and the preview."""
