"""Next-word models, whose logits are pure functions of the weights."""

from simulations.models.next_word import (
  Accuracy,
  Model,
  accuracies,
  next_word_loss,
)
from simulations.models.registry import build
