"""An experiment, checked as a whole before work starts."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Sequence
from typing import Any, Optional

from tff_bandmf import accounting, clips, errors, strategies, workloads
from tff_bandmf import participation as participation_lib

# Value of `privacy.family` for a run without noise and without a claim.
NO_NOISE = 'none'
FAMILIES = (NO_NOISE, *strategies.FAMILIES)
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
  """The text of an experiment and its limits.

  Attributes:
    corpus: 'docstrings'; 'chitchat' for chats of people, with the vocabulary of
      the docstrings; 'stackoverflow' for TFF's data set, with TFF's word
      counts; or the path of a SQLite file of TFF's form, whose words are
      counted.
    data_dir: folder of the files of 'stackoverflow' or of 'chitchat'; None
      downloads the former with TFF, and takes the latter from its package.
    vocabulary_file: file with one word a line, most frequent first; None to
      take the most frequent words of the corpus.
    vocabulary_size: number of words, >= 1, without special ids.
    max_sentences_per_client: most sentences of a client, >= 1; further ones are
      left out.
    sequence_length: most words of a sentence, >= 1; further ones are cut.
    unit: meaning of a client, in the words of the report.
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
  """The network; the defaults are the LSTM of the literature.

  Attributes:
    architecture: 'lstm' or 'transformer'.
    embedding_size: dimension of word embeddings, of an LSTM's projection before
      the softmax, and of a transformer's layers, >= 1.
    embedding_scale: half-width, > 0, of the uniform law of initial embeddings.
    lstm_size: units of an LSTM, >= 1.
    tied: whether an LSTM's softmax uses the embedding; a transformer's always
      does.
    skip: whether an LSTM's projection also sees the embedding of the last word.
    layers: layers of a transformer, >= 1.
    heads: attention heads of a transformer, >= 1; a divisor of embedding_size.
    feed_forward_size: hidden units of a transformer's layer, >= 1.
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
        'model.skip=True: is for an LSTM; leave it out, or model.architecture'
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
  """Federated averaging.

  Attributes:
    rounds: n, rounds of the run, >= 1.
    clients_per_round: clients of a round, >= 1; also the divisor of the mean.
    batch_size: sentences of one SGD step of a client, >= 1; every client does
      one epoch.
    client_learning_rate: learning rate of a client's SGD, > 0.
    server_optimizer: 'sgd', 'adam' or 'yogi'.
    server_learning_rate: learning rate of the server's optimiser, > 0.
    server_momentum: momentum of the server's SGD, in [0, 1); beta_1 of an
      adaptive optimiser.
    server_beta_2: beta_2 of an adaptive optimiser, in [0, 1).
    server_epsilon: number > 0 that an adaptive optimiser adds to a divisor.
    server_warmup_rounds: number of first rounds, >= 0, in which the server's
      learning rate rises linearly from 5 %.
    server_cooldown_rounds: number of last rounds, >= 0, in which the server's
      learning rate falls linearly back to 5 %.
    client_groups: number of groups that the clients of a round are divided
      into, >= 1; clients of a group train one after the other, in one call of
      TFF. Memory and parallelism grow with it; a few times the number of cores
      is a good choice.
    evaluate_every: rounds between validations, >= 1.
    evaluation_sentences: sentences of a validation, >= 1; the test uses all
      sentences of its split.
    seed: seed, >= 0, of initial weights, cohorts and the order of sentences;
      never of noise, whose key comes from the operating system.
    init: 'public' to pre-train on public text without noise, or the folder of
      an ended run to start from its model; None for weights from the seed.
    init_corpus: name or path, as for data.corpus, of the public text for
      'public'.
    init_epochs: passes over that text for 'public', >= 1.
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
  client_groups: int = 8
  evaluate_every: int = 10
  evaluation_sentences: int = 10_000
  seed: int = 0
  init: Optional[str] = None
  init_corpus: str = 'docstrings'
  init_epochs: int = 2

  @property
  def server_schedule(self) -> workloads.Workload:
    """The workload of the server: from updates to the models of plain SGD."""
    warmup = min(1.0, self.server_warmup_rounds / self.rounds)
    cooldown = self.server_cooldown_rounds / self.rounds
    return workloads.Workload(
      self.server_momentum, warmup, min(1.0 - warmup, cooldown)
    )


@dataclasses.dataclass(frozen=True)
class Privacy:
  """The mechanism, the participation and the target guarantee.

  Attributes:
    family: name of a strategy family, or 'none' for no noise and no claim.
    parameters: parameters of the family; in a file each is a key of [privacy]
      itself. A search chooses those that are not given.
    workload: 'prefix' to minimise the error of sums of updates, or 'momentum'
      for the error of the models of the server's SGD, with its momentum and its
      learning rates.
    objective: 'mean' or 'max', the error over the rounds that a search
      minimises.
    min_sep: b, least r2 - r1 of two rounds of one client, >= 1; enforced.
    max_participations: k, most rounds of a client, >= 1; enforced; None leaves
      it to min_sep.
    participation: 'min-sep'; or 'budget', where the rounds of a client cost at
      most as much as max_participations rounds that are min_sep apart.
    apart: least r2 - r1 of two rounds of one client for 'budget', in
      [1, min_sep]; None is 1.
    horizon: largest number of rounds of a run by 'budget', >= rounds; None
      leaves it to the strategy.
    epsilon: target epsilon of the whole run, > 0.
    delta: delta of the guarantee, in (0, 1).
    l2_norm_clip: largest L2 norm of an update, > 0; for an adaptive clip, its
      value in the first round.
    clip_quantile: target fraction of updates with a norm below the clip, which
      an adaptive clip approaches round by round; None for a constant clip.
    clip_rate: largest change of the logarithm of the clip in a round; None for
      0.2.
    clip_fraction_weight: weight of the indicator from which that fraction is
      estimated; None for the weight that makes noise grow by 1 %.
    clip_until: round from which on the clip is constant; None to let it adapt
      to the end.
    zeroing_norm: largest absolute coordinate of an update; an update with a
      larger one counts as zero; None for no such bound.
    simulated_clients_per_round: cohort size of a larger run that this run
      simulates, or None. The guarantee is calibrated for the larger run, and
      the noise of the sum is multiplied by clients_per_round over this number,
      so the guarantee does not hold for this run; its files say so.
    max_memory_bytes: most bytes of memory for the past noise of a tape; past
      noise beyond that is in a file.
    amplification: how the run draws cohorts in secret, 'cyclic-poisson',
      'balls-in-bins' with min_sep bins, or 'b-min-sep'; None for cohorts that
      are enforced.
    sampling_prob: probability, for 'b-min-sep', that a client takes part when
      it may; None derives it from the clients of a round.
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
  max_participations: Optional[int] = None
  participation: str = 'min-sep'
  apart: Optional[int] = None
  horizon: Optional[int] = None
  parameters: dict[str, Any] = dataclasses.field(default_factory=dict)
  workload: str = PREFIX
  objective: str = 'mean'
  amplification: Optional[str] = None
  sampling_prob: Optional[float] = None

  @property
  def clip(self) -> Any:
    """The clip, which may adapt."""
    return clips.of(
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
    compare: further runs to compare with, as a map from name to changed keys,
      for instance {'identity': {'privacy.family': 'identity'}}.
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
    _check_one_of('privacy.family', privacy.family, FAMILIES)
    _check_one_of('privacy.objective', privacy.objective, ('mean', 'max'))
    if privacy.delta >= 1:
      raise errors.value_error(
        f'privacy.delta={privacy.delta}: must be below 1; use less than 1 / '
        'population'
      )
    _check_one_of('privacy.workload', privacy.workload, (PREFIX, MOMENTUM))
    if privacy.workload == MOMENTUM and training.server_optimizer != SGD:
      raise errors.value_error(
        f'privacy.workload={MOMENTUM}: is that of SGD, not of '
        f'training.server_optimizer={training.server_optimizer}; use {PREFIX}'
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
    """A warning if there are fewer rounds than min_sep, else None."""
    least, rounds = self.privacy.min_sep, self.training.rounds
    if self.privacy.amplification is not None or least <= rounds:
      return None
    return (
      f'privacy.min_sep={least} exceeds training.rounds={rounds}: a client '
      f'takes part once, and the run is planned with min_sep={rounds}.'
    )

  def cohorts(self, clients: int) -> participation_lib.Cohorts:
    """Returns the rule of participation for a number of clients."""
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
    """Raises ValueError unless cohorts can be drawn by `amplification`."""
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
        f'privacy.sampling_prob={privacy.sampling_prob}: is of cohorts that '
        'amplify; leave it out, or give privacy.amplification'
      )
    try:
      self.cohorts(self.training.clients_per_round)
    except ValueError as error:
      raise ValueError(f'privacy.{error}') from None

  def _check_parameters(self) -> None:
    """Raises ValueError unless the family takes the parameters."""
    given = self.privacy.parameters
    if self.privacy.family == NO_NOISE:
      return
    try:
      strategies.families.get(self.privacy.family).checked(given)
    except (TypeError, ValueError) as error:
      raise ValueError(f'privacy.{error}') from None


# The tables of an experiment that have keys of their own.
GROUPS: dict[str, Any] = {
  name: kind
  for name, kind in typing.get_type_hints(Config).items()
  if dataclasses.is_dataclass(kind)
}

_TRUTH_VALUES = ('model.tied', 'model.skip')
# Numbers that may be 0.
_MAY_BE_ZERO = (
  'training.seed',
  'training.server_momentum',
  'training.server_beta_2',
  'training.server_warmup_rounds',
  'training.server_cooldown_rounds',
)


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
  """Returns the experiment and its comparisons with another seed."""
  return dataclasses.replace(
    config, training=dataclasses.replace(config.training, seed=seed)
  )
