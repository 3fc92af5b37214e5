"""What an experiment is: a TOML file, checked as a whole before work starts."""

from __future__ import annotations

import copy
import dataclasses
import math
import pathlib
import sys
from typing import Any, Optional

import dacite

from tff_bandmf import documents, errors, strategies

if sys.version_info >= (3, 11):
  import tomllib
else:
  import tomli as tomllib

# Noise of a run that claims nothing; next to the strategy families.
NO_NOISE = 'none'
FAMILIES = (NO_NOISE, *strategies.FAMILIES)
DOCSTRINGS = 'docstrings'
STACKOVERFLOW = 'stackoverflow'
SGD = 'sgd'
ADAM = 'adam'
SERVER_OPTIMIZERS = (SGD, ADAM, 'yogi')
ARCHITECTURES = ('lstm', 'transformer')


@dataclasses.dataclass(frozen=True)
class Data:
  """Which text, and how it is cut.

  Attributes:
    corpus: 'docstrings'; 'stackoverflow' for TFF's, with TFF's word counts; or
      the path of a SQLite file of TFF's form, whose words are counted.
    data_dir: of the files of StackOverflow; None to let TFF download them.
    vocabulary_file: one word a line, most frequent first; None to take the
      most frequent words of the corpus.
    vocabulary_size: words, special ids not counted.
    max_sentences_per_client: further ones are left out.
    sequence_length: words of a sentence.
  """

  corpus: str = DOCSTRINGS
  data_dir: Optional[str] = None
  vocabulary_file: Optional[str] = None
  vocabulary_size: int = 10_000
  max_sentences_per_client: int = 256
  sequence_length: int = 20

  def __post_init__(self):
    if self.data_dir is not None and self.corpus != STACKOVERFLOW:
      raise ValueError(
          errors.invalid(
              'data.data_dir', self.data_dir,
              f'is for data.corpus={STACKOVERFLOW}, not {self.corpus}',
              'change the one or leave out the other'))


@dataclasses.dataclass(frozen=True)
class Model:
  """The network; the defaults are the LSTM of the literature.

  Attributes:
    architecture: 'lstm' or 'transformer'.
    embedding_size: of a word; of an LSTM's projection before the softmax too,
      and all of a transformer's width.
    embedding_scale: initial embeddings are uniform in +- this.
    lstm_size: units of an LSTM.
    tied: whether the softmax uses the embedding; a transformer's always does.
    skip: whether an LSTM's projection also sees the embedding of the last word.
    layers: of a transformer.
    heads: of a transformer; they divide embedding_size.
    feed_forward_size: hidden units of a transformer's layer.
  """

  architecture: str = 'lstm'
  embedding_size: int = 96
  embedding_scale: float = 0.05
  lstm_size: int = 670
  tied: bool = False
  skip: bool = False
  layers: int = 2
  heads: int = 4
  feed_forward_size: int = 384

  def __post_init__(self):
    if self.architecture not in ARCHITECTURES:
      raise ValueError(
          errors.invalid(
              'model.architecture', self.architecture, 'is not known',
              f'use one of {", ".join(ARCHITECTURES)}'))
    if self.architecture == 'transformer' and self.skip:
      raise ValueError(
          errors.invalid(
              'model.skip', True, 'is for an LSTM',
              'leave it out, or model.architecture'))
    if self.architecture == 'transformer' and self.embedding_size % max(
        1, self.heads):
      raise ValueError(
          errors.invalid(
              'model.embedding_size', self.embedding_size,
              f'must be a multiple of model.heads={self.heads}',
              'change one of them'))


@dataclasses.dataclass(frozen=True)
class Training:
  """Federated averaging.

  Attributes:
    rounds: n.
    clients_per_round: cohort size, also the divisor of the mean.
    batch_size: sentences of a client's step; every client does one epoch.
    client_learning_rate: of a client's SGD.
    server_optimizer: 'sgd', 'adam' or 'yogi', on the noised mean.
    server_learning_rate: of the server's optimiser.
    server_momentum: in [0, 1); beta_1 of an adaptive optimiser.
    server_beta_2: in [0, 1), of an adaptive optimiser.
    server_epsilon: of an adaptive optimiser, what it adds to a divisor.
    server_warmup_rounds: first rounds, in which the server's learning rate
      rises linearly.
    server_cooldown_rounds: last rounds, in which the server's learning rate
      falls linearly.
    server_cooldown_end: towards this fraction of it.
    client_groups: clients of a round are dealt to this many groups; those of a
      group train one after the other, in one call of TFF. Memory and
      parallelism grow with it; a few times the cores is a good number.
    evaluate_every: rounds between validations and checkpoints.
    evaluation_sentences: sentences of a validation; the test takes all.
    seed: of initial weights, cohorts and the order of sentences; never of
      noise, whose key comes from the operating system.
  """

  rounds: int
  clients_per_round: int
  batch_size: int = 16
  client_learning_rate: float = 0.5
  server_optimizer: str = SGD
  server_learning_rate: float = 1.0
  server_momentum: float = 0.9
  server_beta_2: float = 0.999
  server_epsilon: float = 1e-3
  server_warmup_rounds: int = 0
  server_cooldown_rounds: int = 0
  server_cooldown_end: float = 0.0
  client_groups: int = 8
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
    zeroing_norm: an update with a coordinate above this counts as zero; None
      for no such bound.
    simulated_clients_per_round: what the cohort stands for, if it is to stand
      for a larger one: the guarantee is calibrated for that, and the noise of
      the sum is lower by clients_per_round over this. The guarantee is then
      none of the run itself, and its files say so.
    max_memory_bytes: of a tape, for the noise that it remembers; more goes to
      a file.
  """

  family: str
  min_sep: int
  epsilon: float
  delta: float
  l2_norm_clip: float
  zeroing_norm: Optional[float] = None
  simulated_clients_per_round: Optional[int] = None
  max_memory_bytes: Optional[int] = None
  max_participations: Optional[int] = None
  bands: Optional[int] = None
  buffers: Optional[int] = None
  b0: Optional[int] = None
  objective: str = 'mean'


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
    for name in ('server_momentum', 'server_beta_2', 'server_cooldown_end'):
      value = getattr(training, name)
      if value >= 1:
        raise ValueError(
            errors.invalid(
                f'training.{name}', value, 'must be below 1',
                'correct it; see simulations/config.py'))
    if training.server_optimizer not in SERVER_OPTIMIZERS:
      raise ValueError(
          errors.invalid(
              'training.server_optimizer', training.server_optimizer,
              'is not known', f'use one of {", ".join(SERVER_OPTIMIZERS)}'))
    if (privacy.simulated_clients_per_round or math.inf
        ) <= training.clients_per_round:
      raise ValueError(
          errors.invalid(
              'privacy.simulated_clients_per_round',
              privacy.simulated_clients_per_round,
              'must exceed training.clients_per_round='
              f'{training.clients_per_round}', 'leave it out'))
    if privacy.family not in FAMILIES:
      raise ValueError(
          errors.invalid(
              'privacy.family', privacy.family, 'is not known',
              f'use one of {", ".join(FAMILIES)}'))
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


_TRUTH_VALUES = ('model.tied', 'model.skip')
# Numbers that may be 0.
_MAY_BE_ZERO = (
    'training.seed', 'training.server_momentum', 'training.server_beta_2',
    'training.server_warmup_rounds', 'training.server_cooldown_rounds',
    'training.server_cooldown_end')


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
  tree = read(path)
  apply_settings(tree, settings)
  return from_tree(tree)


def read(path: str) -> dict[str, Any]:
  """Returns the content of a TOML file.

  Raises:
    ValueError: it is no TOML.
    OSError: the file cannot be read.
  """
  content = documents.content(pathlib.Path(path))
  try:
    return tomllib.loads(content.decode())
  # Of bytes that are no UTF-8, and of tables in tables without end, too.
  except (RecursionError, ValueError) as error:
    raise ValueError(
        errors.invalid('config', path, f'is no TOML: {error}', 'correct it')
    ) from error


def apply_settings(tree: dict[str, Any], settings: tuple[str, ...]) -> None:
  """Changes a parsed file, in place, as `load` says of its `settings`."""
  for setting in settings:
    key, equals, text = setting.partition('=')
    if not equals:
      raise ValueError(
          errors.invalid(
              'set', setting, 'must be KEY=VALUE',
              'for instance --set training.seed=1'))
    try:
      value = tomllib.loads(f'value = {text}')['value']
    except (RecursionError, ValueError):
      value = text
    _assign(tree, key, value)


def changed(config: Config, changes: dict[str, Any]) -> Config:
  """Returns the experiment with some 'group.key' values replaced.

  Raises:
    ValueError: an unknown key or a value out of range.
  """
  tree = copy.deepcopy(dataclasses.asdict(config))
  tree['compare'] = {}
  for key, value in changes.items():
    _assign(tree, key, value)
  return from_tree(tree)


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


def from_tree(tree: dict[str, Any]) -> Config:
  """Returns the checked experiment of a parsed file.

  Raises:
    ValueError: an unknown or missing key, or a value out of range.
  """
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
  except OverflowError as error:
    raise ValueError(
        errors.invalid(
            'config', 'an integer', 'is larger than any number that is meant',
            'correct it')) from error
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
