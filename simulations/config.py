"""The configuration of an experiment: dataclasses that check their values."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import pathlib
import typing
from collections.abc import Iterator, Sequence
from typing import Any, Optional, Union

from tff_bandmf import accounting, clipping_norm, errors, strategies, workloads
from tff_bandmf import participation as participation_lib

# Value of `privacy.family` for a run without noise and without a guarantee.
NO_NOISE = 'none'
FAMILIES = (NO_NOISE, *strategies.SEARCHED)
PREFIX = 'prefix'
MOMENTUM = 'momentum'
SGD = 'sgd'
_PARTICIPATIONS = (participation_lib.MinSep.name, participation_lib.Budget.name)
ADAM = 'adam'
SERVER_OPTIMIZERS = (SGD, ADAM, 'yogi')
ARCHITECTURES = ('lstm', 'transformer')
PUBLIC = 'public'


@dataclasses.dataclass(frozen=True)
class Data:
  """The text of an experiment, its vocabulary and its maximum sizes.

  Attributes:
    corpus: 'docstrings' for docstrings of Python packages; 'chitchat' for chats
      of people; 'stackoverflow' for TFF's StackOverflow data set; or the path
      of a SQLite file in the format of TFF's `SqlClientData`.
    data_dir: folder with the files of 'stackoverflow' or 'chitchat'. If it is
      None, TFF downloads 'stackoverflow', and 'chitchat' is read from its
      Python package.
    vocabulary_file: file with one word a line, most frequent first. If None,
      the words come from the train split. Exceptions: 'stackoverflow' takes
      TFF's word counts, and 'chitchat' takes the words of 'docstrings'.
    vocabulary_size: number of words, >= 1, not counting special ids such as
      padding.
    max_sentences_per_client: maximum number of sentences of a client, >= 1;
      only the client's first sentences are used.
    sequence_length: maximum number of words of a sentence, >= 1; a longer
      sentence loses its last words.
    unit: noun that the report uses for one client, such as 'person'.
  """

  corpus: str = 'docstrings'
  data_dir: Optional[str] = None
  vocabulary_file: Optional[str] = None
  vocabulary_size: int = 10_000
  max_sentences_per_client: int = 256
  sequence_length: int = 20
  unit: str = 'client'


@dataclasses.dataclass(frozen=True)
class Model:
  """The network; by default the LSTM of TFF's StackOverflow baseline.

  Attributes:
    architecture: 'lstm' or 'transformer'.
    embedding_size: dimension of word embeddings, of an LSTM's projection before
      the softmax, and of a transformer's layers, >= 1.
    embedding_scale: number > 0; initial embeddings are uniform in
      [-embedding_scale, embedding_scale].
    lstm_size: number of units of an LSTM, >= 1.
    tied: whether the softmax of an LSTM uses the embedding matrix; the softmax
      of a transformer always uses it.
    skip: whether the projection of an LSTM also receives the embedding of the
      last word.
    layers: number of layers of a transformer, >= 1.
    heads: number of attention heads of a transformer, >= 1; a divisor of
      embedding_size.
    feed_forward_size: number of hidden units of a transformer's layer, >= 1.
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
    _check_one_of('model.architecture', self.architecture, ARCHITECTURES)
    if self.architecture == 'transformer' and self.skip:
      raise errors.value_error(
        'model.skip=True: is for an LSTM; leave out model.skip or '
        'model.architecture'
      )
    if self.architecture == 'transformer' and self.embedding_size % max(
      1, self.heads
    ):
      raise errors.value_error(
        f'model.embedding_size={self.embedding_size}: must be a multiple of '
        f'model.heads={self.heads}; change one of them'
      )


@dataclasses.dataclass(frozen=True)
class Training:
  """The settings of federated averaging.

  Attributes:
    rounds: number of rounds of the run, >= 1.
    clients_per_round: number of clients of a round, >= 1; the expected number
      if cohorts are sampled. The sum of updates is divided by this number.
    batch_size: number of sentences in one SGD step of a client, >= 1. In a
      round a client trains once on each of its sentences.
    client_learning_rate: learning rate of a client's SGD, > 0.
    server_optimizer: 'sgd', 'adam' or 'yogi'.
    server_learning_rate: learning rate of the server's optimiser, > 0.
    server_momentum: momentum of SGD on the server, or beta_1 of 'adam' and
      'yogi', in [0, 1).
    server_beta_2: beta_2 of 'adam' and 'yogi', in [0, 1).
    server_epsilon: number > 0 that 'adam' and 'yogi' add to the denominator of
      a step.
    server_warmup_rounds: number of rounds, >= 0, at the start of the run in
      which the server's learning rate rises linearly from 5 % to 100 %.
    server_cooldown_rounds: number of rounds, >= 0, at the end of the run in
      which the server's learning rate falls linearly from 100 % to 5 %.
    server_learning_rates: list with one number >= 0 for each round, in place of
      warm-up and cooldown; the learning rate of a round is its number times
      server_learning_rate. If None, the rate is constant between warm-up and
      cooldown.
    server_weight_decay: fraction of the model, in [0, 1], that the server
      removes in a round whose learning rate is server_learning_rate; in another
      round the fraction is proportional to the learning rate.
    client_groups: number of groups into which the clients of a round are
      divided, >= 1. The clients of a group train one after the other, in one
      call of TFF. As many groups as cores occupy all cores; each further
      group costs memory and time for its sum.
    evaluate_every: number of rounds from one validation to the next, >= 1.
    evaluation_sentences: number of sentences in a validation, >= 1. The final
      test uses all sentences of the test split.
    seed: seed, >= 0, of initial weights, of the order of sentences, and of
      cohorts that are not sampled in secret. The noise does not depend on the
      seed; its key comes from the operating system.
    init: 'public' to start from weights that were pre-trained on public text
      without noise; the folder of a finished run to start from its last model;
      None to start from random weights.
    init_corpus: name or path of the public text for init = 'public', a value
      that data.corpus may also have.
    init_epochs: number of passes over the public text, >= 1.
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
  server_learning_rates: Optional[list[float]] = None
  server_weight_decay: float = 0.0
  client_groups: int = 8
  evaluate_every: int = 10
  evaluation_sentences: int = 10_000
  seed: int = 0
  init: Optional[str] = None
  init_corpus: str = 'docstrings'
  init_epochs: int = 2

  @property
  def server_schedule(self) -> workloads.Workload:
    """The workload: the linear map from updates to the models of SGD."""
    warmup = min(1.0, self.server_warmup_rounds / self.rounds)
    cooldown = self.server_cooldown_rounds / self.rounds
    return workloads.Workload(
      self.server_momentum,
      warmup,
      min(1.0 - warmup, cooldown),
      self.server_weight_decay,
      self.server_learning_rates,
    )


@dataclasses.dataclass(frozen=True)
class Privacy:
  """The mechanism, the participation and the target guarantee.

  Attributes:
    family: name of a strategy family, or path of a strategy file; 'none' trains
      without noise and without a guarantee.
    parameters: parameters of the family. In a file each parameter is a key of
      [privacy]. The optimiser chooses the parameters that are not given.
    workload: 'prefix' to minimise the error of prefix sums of updates, or
      'momentum' to minimise the error of the models that the server's SGD
      computes with its momentum, its learning rates and its weight decay.
    objective: 'mean' to minimise the mean over the rounds of the squared error,
      'max' to minimise its maximum, or 'last' to minimise its value in the last
      round; or a list with the weight >= 0 of each round.
    min_sep: integer >= 1. With participation = 'min-sep', two rounds r1 < r2 of
      a client have r2 - r1 >= min_sep. With 'budget', min_sep and
      max_participations define the largest sensitivity of a client. With
      amplification = 'b-min-sep', sampled rounds have r2 - r1 >= min_sep. With
      'balls-in-bins' there are min_sep bins. 'cyclic-poisson' does not use
      min_sep.
    max_participations: maximum number of rounds in which a client takes part,
      >= 1; None means that only min_sep limits the number.
    participation: 'min-sep' enforces min_sep and max_participations. 'budget'
      allows a client any rounds with at most the sensitivity of
      max_participations rounds that are min_sep apart.
    apart: minimum separation, in [1, min_sep], that 'budget' enforces; 1 if
      None.
    horizon: maximum number of rounds to which a run with 'budget' may be
      extended, >= rounds. If None, 10 * rounds for a family that defines its
      matrix for every number of rounds, else rounds.
    epsilon: target epsilon of the whole run, > 0.
    delta: delta of the guarantee, in (0, 1).
    l2_norm_clip: maximum L2 norm of an update, > 0. An adaptive clip has this
      value in the first round.
    clip_quantile: target fraction of updates whose norm is below the clip. An
      adaptive clip rises after a round whose fraction is below the target, and
      falls after a round whose fraction is above it. If None, the clip is
      constant.
    clip_rate: change of the logarithm of an adaptive clip in a round, divided
      by the distance of the fraction from clip_quantile; 0.2 if None.
    clip_fraction_weight: weight of the coordinate that an adaptive clip adds to
      each update. The coordinate says whether the norm is below the clip, and
      the fraction is estimated from these coordinates. If None, the weight
      increases the noise by 1 %.
    clip_until: index of the round from which an adaptive clip is constant. If
      None, the clip changes until the end.
    zeroing_norm: maximum absolute value of the coordinates of an update. An
      update with a larger coordinate is replaced by zero. If None, there is no
      maximum.
    simulated_clients_per_round: cohort size of a larger run that this run
      simulates, or None. The guarantee is calibrated for the larger run, and
      the noise of the sum is multiplied by clients_per_round divided by
      simulated_clients_per_round. The guarantee does not hold for this run, and
      the report of this run says so.
    max_memory_bytes: maximum memory in bytes for past noise. If past noise
      needs more, all of it is stored in a file. None sets no maximum.
    memory_copies: maximum number of vectors of past noise in memory, each of
      the model's size. If a banded inverse needs more vectors, the generator
      stores no past normals, and draws them again. None sets no maximum.
    amplification: 'cyclic-poisson', 'balls-in-bins' with min_sep bins or
      'b-min-sep' to sample cohorts in secret, which amplifies privacy; None to
      enforce `participation` instead.
    sampling_prob: probability in (0, 1]. With 'b-min-sep', a client takes part
      with this probability in each round that min_sep allows. With
      'cyclic-poisson', a client takes part with this probability in each round
      of its group. If None, it is computed from clients_per_round.
  """

  family: str
  min_sep: int
  epsilon: float
  delta: float
  l2_norm_clip: float
  clip_quantile: Optional[float] = None
  clip_rate: Optional[float] = None
  clip_fraction_weight: Optional[float] = None
  clip_until: Optional[int] = None
  zeroing_norm: Optional[float] = None
  simulated_clients_per_round: Optional[int] = None
  max_memory_bytes: Optional[int] = None
  memory_copies: Optional[int] = None
  max_participations: Optional[int] = None
  participation: str = 'min-sep'
  apart: Optional[int] = None
  horizon: Optional[int] = None
  parameters: dict[str, Any] = dataclasses.field(default_factory=dict)
  workload: str = PREFIX
  objective: Union[str, list[float]] = workloads.MEAN
  amplification: Optional[str] = None
  sampling_prob: Optional[float] = None

  @property
  def is_file(self) -> bool:
    """Whether `family` is the path of a strategy file."""
    return bool(pathlib.Path(self.family).suffix)

  def check_file(self, used: strategies.Strategy) -> None:
    """Raises ValueError if the strategy file changed since a run began.

    Args:
      used: planned strategy in the folder of the run.
    """
    if not self.is_file or not pathlib.Path(self.family).exists():
      return
    digest = strategies.load(self.family)[0].digest()
    if digest != used.digest():
      raise errors.value_error(
        f'privacy.family={self.family}: has digest {digest[:16]}, but the run '
        f'began with {used.digest()[:16]}; restore the file, or give the '
        'changed file to a run in another folder'
      )

  @property
  def clip(self) -> Any:
    """The clip, constant or adaptive."""
    return clipping_norm.from_options(
      self.l2_norm_clip,
      quantile=self.clip_quantile,
      rate=self.clip_rate,
      fraction_weight=self.clip_fraction_weight,
      until=self.clip_until,
    )


@dataclasses.dataclass(frozen=True)
class Config:
  """An experiment.

  Attributes:
    data: the text.
    model: the network.
    training: the federated averaging.
    privacy: the mechanism and the target guarantee.
    compare: runs to compare with the main run: a map from the name of a run to
      the keys whose values differ from the main run, for instance
      {'identity': {'privacy.family': 'identity'}}.
  """

  data: Data
  model: Model
  training: Training
  privacy: Privacy
  compare: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    for group in GROUPS:
      for field in dataclasses.fields(getattr(self, group)):
        _check_positive(
          f'{group}.{field.name}', getattr(getattr(self, group), field.name)
        )
    training, privacy = self.training, self.privacy
    for name in ('server_momentum', 'server_beta_2'):
      value = getattr(training, name)
      if value >= 1:
        raise errors.value_error(
          f'training.{name}={value}: must be below 1; correct it'
        )
    _check_one_of(
      'training.server_optimizer', training.server_optimizer, SERVER_OPTIMIZERS
    )
    simulated = privacy.simulated_clients_per_round
    if simulated and simulated <= training.clients_per_round:
      raise errors.value_error(
        f'privacy.simulated_clients_per_round={simulated}: must exceed '
        f'training.clients_per_round={training.clients_per_round}; leave it out'
      )
    if not privacy.is_file:
      _check_one_of('privacy.family', privacy.family, FAMILIES)
    with _prefixed('privacy.'):
      workloads.check_objective(privacy.objective, training.rounds)
    with _prefixed('training.server_'):
      training.server_schedule.learning_rates(training.rounds)
    if privacy.delta >= 1:
      raise errors.value_error(
        f'privacy.delta={privacy.delta}: must be below 1; use less than 1 / '
        'population'
      )
    _check_one_of('privacy.workload', privacy.workload, (PREFIX, MOMENTUM))
    if privacy.workload == MOMENTUM and training.server_optimizer != SGD:
      raise errors.value_error(
        f'privacy.workload={MOMENTUM}: is for training.server_optimizer={SGD}, '
        f'not for {training.server_optimizer}; use {PREFIX}'
      )
    _ = privacy.clip
    self._check_amplification()
    self._check_parameters()
    if privacy.parameters.get('bands', 0) > training.rounds:
      raise errors.value_error(
        f'privacy.bands={privacy.parameters["bands"]}: must not exceed '
        f'training.rounds={training.rounds}; use fewer bands'
      )

  @property
  def shortened(self) -> Optional[str]:
    """A warning if min_sep exceeds the number of rounds, else None."""
    least, rounds = self.privacy.min_sep, self.training.rounds
    if self.privacy.amplification is not None or least <= rounds:
      return None
    return (
      f'privacy.min_sep={least} exceeds training.rounds={rounds}: a client '
      f'takes part at most once, and the run is planned with min_sep={rounds}.'
    )

  def cohorts(self, clients: int) -> participation_lib.Cohorts:
    """Returns the participation rule.

    Args:
      clients: number of clients of the train split, >= 1.
    """
    privacy = self.privacy
    if privacy.amplification is None:
      return participation_lib.from_name(
        privacy.participation,
        min(privacy.min_sep, self.training.rounds),
        privacy.max_participations,
        privacy.apart,
        privacy.horizon,
      )
    kind = accounting.KINDS[privacy.amplification]
    return accounting.from_flags(
      privacy.amplification,
      privacy.min_sep if 'min_sep' in kind.flags else None,
      privacy.sampling_prob,
      clients,
    )

  def _check_amplification(self) -> None:
    """Raises ValueError if the keys of participation contradict each other."""
    privacy = self.privacy
    _check_one_of(
      'privacy.participation', privacy.participation, _PARTICIPATIONS
    )
    if privacy.amplification is not None:
      _check_one_of(
        'privacy.amplification', privacy.amplification, list(accounting.KINDS)
      )
      _check_one_of(
        'privacy.participation', privacy.participation, _PARTICIPATIONS[:1]
      )
    elif privacy.sampling_prob is not None:
      raise errors.value_error(
        f'privacy.sampling_prob={privacy.sampling_prob}: is for sampled '
        'cohorts; leave it out, or give privacy.amplification'
      )
    with _prefixed('privacy.'):
      self.cohorts(self.training.clients_per_round)

  def _check_parameters(self) -> None:
    """Raises ValueError if the family does not take one of the parameters."""
    given = self.privacy.parameters
    if self.privacy.family == NO_NOISE:
      return
    if self.privacy.is_file:
      for name, value in given.items():
        raise errors.value_error(
          f'privacy.{name}={value}: the strategy in '
          f'privacy.family={self.privacy.family} is complete; leave it out'
        )
      return
    with _prefixed('privacy.'):
      strategies.families.get(self.privacy.family).checked(given)


# Maps the name of each table with a fixed set of keys to its class. The table
# `compare` has arbitrary keys.
GROUPS: dict[str, Any] = {
  name: kind
  for name, kind in typing.get_type_hints(Config).items()
  if dataclasses.is_dataclass(kind)
}

# Keys whose values are true or false.
_TRUTH_VALUES = ('model.tied', 'model.skip')
# Keys whose numbers may be 0.
_MAY_BE_ZERO = (
  'training.seed',
  'training.server_momentum',
  'training.server_beta_2',
  'training.server_warmup_rounds',
  'training.server_cooldown_rounds',
  'training.server_weight_decay',
  'privacy.memory_copies',
)


@contextlib.contextmanager
def _prefixed(prefix: str) -> Iterator[None]:
  """Adds the table of a key to the messages of errors of the library."""
  try:
    yield
  except (TypeError, ValueError) as error:
    raise ValueError(f'{prefix}{error}') from None


def _check_one_of(name: str, value: str, known: Sequence[str]) -> None:
  if value not in known:
    raise errors.value_error(
      f'{name}={value}: is not known; use one of {", ".join(known)}'
    )


def _check_positive(name: str, value: Any) -> None:
  if isinstance(value, bool) and name not in _TRUTH_VALUES:
    raise errors.value_error(f'{name}={value}: must be a number; correct it')
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    return
  if (
    value < 0
    or not math.isfinite(value)
    or (value == 0 and name not in _MAY_BE_ZERO)
  ):
    least = 'at least 0' if name in _MAY_BE_ZERO else 'positive'
    raise errors.value_error(
      f'{name}={value}: must be finite and {least}; change it in the '
      'configuration file or with --set'
    )


def with_seed(config: Config, seed: int) -> Config:
  """Returns the experiment with the seed `seed`, also in its comparisons."""
  return dataclasses.replace(
    config, training=dataclasses.replace(config.training, seed=seed)
  )
