"""Makes the rounds of y on the host and on devices."""
