"""The tape: files of the noise y_t, one for each round, written in advance."""
