"""The rounds of y as files, written ahead of those that read them."""
