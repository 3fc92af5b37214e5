"""Text, split among clients."""
