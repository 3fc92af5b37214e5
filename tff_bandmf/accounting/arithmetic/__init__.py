"""What the integers of the noise cost beside exact real numbers."""
