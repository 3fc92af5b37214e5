"""Methods of accounting: the Gaussian profile, Monte Carlo, searches."""
