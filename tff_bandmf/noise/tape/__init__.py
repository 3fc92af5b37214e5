"""The tape: files of y, one for each round, written ahead of the rounds."""
