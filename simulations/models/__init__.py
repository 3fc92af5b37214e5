"""Next-word models: pure functions of weights, in the form that TFF trains."""

from simulations.models import lstm, transformer
from simulations.models.next_word import (
  FINITE,
  Model,
  correct_words,
  functional_model,
  ignored_targets,
  next_word_loss,
)
from simulations.models.registry import build
