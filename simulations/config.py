"""What an experiment is: a TOML file, checked as a whole before work starts."""

from __future__ import annotations

import copy
import dataclasses
import math
import sys
from typing import Any, Optional

import dacite

from tff_bandmf import errors, strategies

if sys.version_info >= (3, 11):
  import tomllib
else:
  import tomli as tomllib

# Noise of a run that claims nothing; next to the strategy families.
NO_NOISE = 'none'
PLACEMENTS = (None, 'state', 'tape', 'regenerate')
FAMILIES = (NO_NOISE, *strategies.FAMILIES)
DOCSTRINGS = 'docstrings'


@dataclasses.dataclass(frozen=True)
class Data:
  """Which text, and how it is cut.

  Attributes:
    corpus: 'docstrings', or the path of a SQLite file of TFF's form.
    vocabulary_size: words, special ids not counted.
    max_sentences_per_client: further ones are left out.
    sequence_length: words of a sentence.
  """

  corpus: str = DOCSTRINGS
  vocabulary_size: int = 10_000
  max_sentences_per_client: int = 256
  sequence_length: int = 20


@dataclasses.dataclass(frozen=True)
class Model:
  """The LSTM; the defaults are those of the literature.

  Attributes:
    embedding_size: of a word, and of the projection before the softmax.
    lstm_size: units.
    tied: whether the softmax uses the embedding.
    skip: whether the projection also sees the embedding of the last word.
    embedding_scale: initial embeddings are uniform in +- this.
  """

  embedding_size: int = 96
  lstm_size: int = 670
  tied: bool = False
  skip: bool = False
  embedding_scale: float = 0.05


@dataclasses.dataclass(frozen=True)
class Training:
  """Federated averaging.

  Attributes:
    rounds: n.
    clients_per_round: cohort size, also the divisor of the mean.
    batch_size: sentences of a client's step; every client does one epoch.
    client_learning_rate: of a client's SGD.
    server_learning_rate: of the server's SGD on the noised mean.
    server_momentum: in [0, 1).
    server_cooldown_rounds: last rounds, in which the server's learning rate
      falls linearly towards 0.
    evaluate_every: rounds between validations and checkpoints.
    evaluation_sentences: sentences of a validation; the test takes all.
    seed: of initial weights, cohorts and the order of sentences; never of
      noise, whose key comes from the operating system.
  """

  rounds: int
  clients_per_round: int
  batch_size: int = 16
  client_learning_rate: float = 0.5
  server_learning_rate: float = 1.0
  server_momentum: float = 0.9
  server_cooldown_rounds: int = 0
  evaluate_every: int = 10
  evaluation_sentences: int = 10_000
  seed: int = 0


@dataclasses.dataclass(frozen=True)
class Privacy:
  """The guarantee.

  Attributes:
    family: strategy family, or 'none' for no noise and no claim.
    bands: of a banded family; what it and the other parameters of a family
      are when they are not given, `tff_bandmf.optimize.families` says.
    buffers: of a BLT.
    b0: of robust Toeplitz.
    objective: 'mean' or 'max' error.
    min_sep: b, r2 - r1 of two rounds of one client, enforced.
    max_participations: k, enforced; None leaves it to min_sep.
    epsilon: to calibrate the noise to.
    delta: of epsilon.
    l2_norm_clip: clipping norm of an update.
    noise_placement: 'state', 'tape', 'regenerate' (banded-inverse families),
      or None to choose by size.
    secure_noise: whether z comes from AES; needs a tape.
  """

  family: str
  min_sep: int
  epsilon: float
  delta: float
  l2_norm_clip: float
  max_participations: Optional[int] = None
  bands: Optional[int] = None
  buffers: Optional[int] = None
  b0: Optional[int] = None
  objective: str = 'mean'
  noise_placement: Optional[str] = None
  secure_noise: bool = False


@dataclasses.dataclass(frozen=True)
class Config:
  """An experiment.

  Attributes:
    compare: runs to make next to the main one: name to the keys they change,
      for instance {'identity': {'privacy.family': 'identity'}}.
  """

  data: Data
  model: Model
  training: Training
  privacy: Privacy
  compare: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    for group in ('data', 'model', 'training', 'privacy'):
      for field in dataclasses.fields(getattr(self, group)):
        _check_positive(
            f'{group}.{field.name}',
            getattr(getattr(self, group), field.name))
    training, privacy = self.training, self.privacy
    if training.server_momentum >= 1:
      raise ValueError(
          errors.invalid(
              'training.server_momentum', training.server_momentum,
              'must be below 1', 'use 0.9, say'))
    if privacy.family not in FAMILIES:
      raise ValueError(
          errors.invalid(
              'privacy.family', privacy.family, 'is not known',
              f'use one of {", ".join(FAMILIES)}'))
    if privacy.noise_placement not in PLACEMENTS:
      raise ValueError(
          errors.invalid(
              'privacy.noise_placement', privacy.noise_placement,
              'is not known',
              'use state, tape or regenerate, or leave it out'))
    if privacy.secure_noise and privacy.noise_placement not in (None, 'tape'):
      raise ValueError(
          errors.invalid(
              'privacy.noise_placement', privacy.noise_placement,
              'cannot make secure noise', 'use tape, or leave it out'))
    if privacy.objective not in ('mean', 'max'):
      raise ValueError(
          errors.invalid(
              'privacy.objective', privacy.objective, 'is not known',
              'use mean or max'))
    if privacy.delta >= 1:
      raise ValueError(
          errors.invalid(
              'privacy.delta', privacy.delta, 'must be below 1',
              'use less than 1 / population'))
    if (privacy.bands or 0) > training.rounds:
      raise ValueError(
          errors.invalid(
              'privacy.bands', privacy.bands,
              f'must not exceed training.rounds={training.rounds}',
              'use fewer bands'))


_TRUTH_VALUES = ('model.tied', 'model.skip', 'privacy.secure_noise')
# Numbers that may be 0.
_MAY_BE_ZERO = (
    'training.seed', 'training.server_momentum',
    'training.server_cooldown_rounds')


def _check_positive(name: str, value: Any) -> None:
  if isinstance(value, bool) and name not in _TRUTH_VALUES:
    raise ValueError(
        errors.invalid(name, value, 'must be a number', 'correct it'))
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    return
  if value < 0 or not math.isfinite(value) or (
      value == 0 and name not in _MAY_BE_ZERO):
    raise ValueError(
        errors.invalid(
            name, value, 'must be finite and '
            + ('at least 0' if name in _MAY_BE_ZERO else 'positive'),
            'change it in the configuration file or with --set'))


def load(path: str, settings: tuple[str, ...] = ()) -> Config:
  """Returns the experiment in a TOML file.

  Args:
    path: of the file.
    settings: 'group.key=value' changes, values in TOML's syntax; a bare word
      is a string.

  Raises:
    ValueError: no TOML, an unknown or missing key, or a value out of range.
    OSError: the file cannot be read.
  """
  with open(path, 'rb') as stream:
    try:
      tree = tomllib.load(stream)
    except tomllib.TOMLDecodeError as error:
      raise ValueError(
          errors.invalid('config', path, f'is no TOML: {error}', 'correct it')
      ) from error
  for setting in settings:
    key, equals, text = setting.partition('=')
    if not equals:
      raise ValueError(
          errors.invalid(
              'set', setting, 'must be KEY=VALUE',
              'for instance --set training.seed=1'))
    try:
      value = tomllib.loads(f'value = {text}')['value']
    except tomllib.TOMLDecodeError:
      value = text
    _assign(tree, key, value)
  return _from_tree(tree)


def changed(config: Config, changes: dict[str, Any]) -> Config:
  """Returns the experiment with some 'group.key' values replaced.

  Raises:
    ValueError: an unknown key or a value out of range.
  """
  tree = copy.deepcopy(dataclasses.asdict(config))
  tree['compare'] = {}
  for key, value in changes.items():
    _assign(tree, key, value)
  return _from_tree(tree)


def with_seed(config: Config, seed: int) -> Config:
  """Returns the experiment, and those it is compared with, with this seed."""
  return dataclasses.replace(
      config, training=dataclasses.replace(config.training, seed=seed))


def _assign(tree: dict[str, Any], key: str, value: Any) -> None:
  """Sets a dotted key of nested tables, in place."""
  *groups, name = key.split('.')
  for group in groups:
    tree = tree.setdefault(group, {})
    if not isinstance(tree, dict):
      raise ValueError(
          errors.invalid(
              key, value, 'is not a key', 'see simulations/config.py'))
  tree[name] = value


def _from_tree(tree: dict[str, Any]) -> Config:
  """Returns the checked experiment of a parsed file."""
  try:
    config = dacite.from_dict(
        Config, tree, dacite.Config(strict=True, type_hooks={float: _to_float}))
  except dacite.UnexpectedDataError as error:
    raise ValueError(
        errors.invalid(
            'config', ', '.join(sorted(error.keys)), 'is no known key',
            'see simulations/config.py')) from error
  except dacite.DaciteFieldError as error:
    raise ValueError(
        errors.invalid(
            'config', error.field_path, str(error),
            'see simulations/config.py')) from error
  for name, changes in config.compare.items():
    if not name.replace('-', '').replace('_', '').isalnum():
      raise ValueError(
          errors.invalid(
              'compare', name, 'must be a plain name', 'it names a folder'))
    for key in changes:
      if not key.startswith(('training.', 'privacy.')):
        raise ValueError(
            errors.invalid(
                f'compare.{name}', key, 'must be a training or privacy key',
                'compared runs share data and model'))
    changed(config, changes)
  return config


def _to_float(value: Any) -> Any:
  """Returns an integer of the file as the float that a field wants."""
  return float(value) if type(value) is int else value
