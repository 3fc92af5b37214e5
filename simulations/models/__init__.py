"""Next-word models: pure functions of weights."""

from simulations.models.next_word import (
  Model,
  correct_words,
  ignored_targets,
  next_word_loss,
)
from simulations.models.registry import build
