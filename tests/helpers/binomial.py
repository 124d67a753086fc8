"""Whether counts of draws fit their probability."""

import numpy as np


def near(observed, expected, total):
    """Within five standard deviations of a binomial count."""
    return abs(observed - expected * total) < 5 * np.sqrt(total * expected * (1 - expected))
