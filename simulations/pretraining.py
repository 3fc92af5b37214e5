"""Initial weights of a run: from a seed, public text, or an earlier run.

Pre-training on public text adds no noise and uses no client of the run. The
guarantee of a run does not cover the authors of public text.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import pathlib
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tqdm

from simulations import config as config_lib
from simulations import models
from simulations.corpora import client_data, registry
from simulations.corpora import vocabulary as vocabulary_lib
from tff_bandmf import _files, errors
from tff_bandmf.run_files import checkpoints, run_json, run_ledger
from tff_bandmf.tff import names as tff

# Part of the names of cached weights. Raise this number when `train` changes.
_VERSION = 1
_BATCH = 128  # Number of sentences in one step.
_RATE = 3e-3  # Initial learning rate of Adam.
_MOMENTUM, _BETA_2, _EPSILON = 0.9, 0.99, 1e-7  # Parameters of Adam.


@dataclasses.dataclass(frozen=True, eq=False)
class Start:
  """The initial model of a run.

  Attributes:
    model: network with the initial weights.
    origin: source of the weights, as text for the report.
    digest: SHA-256 of the weights, in hexadecimal; None for random weights from
      the seed of the configuration.
    after: folder of the earlier run that trained the weights, if that run has a
      guarantee and is on the clients of this run; () otherwise.
  """

  model: models.Model
  origin: str
  digest: Optional[str] = None
  after: tuple[pathlib.Path, ...] = ()


def start(
  config: config_lib.Config, vocabulary: vocabulary_lib.Vocabulary
) -> Start:
  """Returns the initial model of an experiment; `training.init` chooses it.

  Args:
    config: the experiment.
    vocabulary: words of the model.

  Raises:
    OSError: a file is missing.
    ValueError: the run of `training.init` has not ended; it has another model
      or other words than this experiment; or this experiment has noise, and
      that run used the same clients without a guarantee.
  """
  training = config.training
  model = models.build(config.model, vocabulary.num_ids, training.seed)
  if training.init is None:
    return Start(model, 'none: initial weights come from a seed')
  if training.init == config_lib.PUBLIC:
    corpus = registry.get(training.init_corpus)
    clients = client_data.load_clients(
      corpus.find(None),
      'train',
      vocabulary,
      sequence_length=config.data.sequence_length,
    )
    weights = _cached(model, clients, training, config.model)
    return _start(
      model,
      weights,
      f'on public text, {corpus.name}: {len(clients.ids)} sentences, '
      f'{training.init_epochs} epochs without noise',
    )
  return _after_run(config, model, vocabulary)


def _start(
  model: models.Model,
  weights: Sequence[np.ndarray],
  origin: str,
  after: tuple[pathlib.Path, ...] = (),
) -> Start:
  sha = hashlib.sha256()
  for weight in weights:
    sha.update(f'{weight.dtype.str} {weight.shape}'.encode())
    sha.update(np.ascontiguousarray(weight).tobytes())
  return Start(
    dataclasses.replace(model, weights=list(weights)),
    f'{origin}; SHA-256 of the weights: {sha.hexdigest()}',
    sha.hexdigest(),
    after,
  )


def _cached(
  model: models.Model,
  clients: client_data.TokenizedClients,
  training: config_lib.Training,
  network: config_lib.Model,
) -> list[np.ndarray]:
  """Returns pre-trained weights; trains them if they are not in the cache.

  Args:
    model: network with its initial weights.
    clients: clients with public text.
    training: settings with the seed and the number of epochs.
    network: configuration of `model`.
  """
  key = f'{_VERSION} {network} {training.seed} {training.init_epochs}'
  name = hashlib.sha256(f'{key} {clients.digest()}'.encode()).hexdigest()
  folder = _files.cache_directory()
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / f'pretrained-{name[:16]}.npz'
  with _files.locked(path.with_suffix('.lock')):
    if not path.exists():
      content = io.BytesIO()
      np.savez(
        content,
        *train(model, clients, training.init_epochs, seed=training.seed),
      )
      _files.write(path, content.getbuffer())
    return _arrays(path.read_bytes())


def train(
  model: models.Model,
  clients: client_data.TokenizedClients,
  epochs: int,
  *,
  seed: int,
  progress: bool = True,
) -> list[np.ndarray]:
  """Returns the weights after training with Adam and without noise.

  The learning rate falls linearly to 0. The text of all clients is mixed, so a
  client with more sentences has more influence.

  Args:
    model: network with its initial weights.
    clients: clients with public text.
    epochs: number of passes over the sentences, at least 1.
    seed: seed of the order of sentences, >= 0.
    progress: whether to draw a progress bar on standard error.
  """
  x, y = clients.arrays(progress=progress)
  generator = np.random.default_rng(seed)
  order = np.concatenate([generator.permutation(len(x)) for _ in range(epochs)])
  batches = -(-len(order) // _BATCH)
  optimizers = tff.learning.optimizers
  optimizer = optimizers.schedule_learning_rate(
    optimizers.build_adam(_RATE, _MOMENTUM, _BETA_2, _EPSILON),
    lambda t: _RATE * (1.0 - tf.cast(t, tf.float32) / batches),
  )

  @functools.partial(tf.function, autograph=False, reduce_retracing=True)
  def step(state, weights, x, y):
    with tf.GradientTape() as tape:
      tape.watch(weights)
      loss = model.loss(weights, x, y)
    return optimizer.next(state, weights, tape.gradient(loss, weights))

  weights = tuple(map(tf.constant, model.weights))
  state = optimizer.initialize(
    tf.nest.map_structure(tf.TensorSpec.from_tensor, weights)
  )
  for batch in tqdm.trange(
    batches,
    desc='pre-training on public text',
    unit='batch',
    disable=None if progress else True,
  ):
    rows = order[batch * _BATCH : (batch + 1) * _BATCH]
    state, weights = step(state, weights, x[rows], y[rows])
  return [weight.numpy() for weight in weights]


def _after_run(
  config: config_lib.Config,
  model: models.Model,
  vocabulary: vocabulary_lib.Vocabulary,
) -> Start:
  """Returns the last model of an earlier run of this program."""
  init = str(config.training.init)
  directory = pathlib.Path(init)
  record = run_json.RunDetails.read(directory)
  if run_ledger.results(directory) is None:
    raise _unfit(init, 'holds an unfinished run', 'finish it with --resume')
  words = (directory / 'vocabulary.txt').read_text('utf-8').split('\n')[:-1]
  if tuple(words) != vocabulary.words:
    raise _unfit(
      init,
      'has other words than this experiment',
      'give its vocabulary.txt as data.vocabulary_file',
    )
  weights = last_weights(directory, model)
  data = (record.config or {}).get('data') or {}
  same = data.get('corpus') == config.data.corpus
  plan = run_json.read_plan(directory)
  private = plan.guarantee.noise_multiplier > 0 and plan.simulated is None
  # PRIVACY: If an earlier run without a guarantee trained the weights on the
  # clients of this run, the weights could reveal the text of these clients, and
  # the guarantee of this run would not cover this leak. A run with noise
  # refuses these weights. If the earlier run has a guarantee, the report
  # composes the guarantees of the two runs.
  # Guard: pretraining_test.test_start_without_noise_on_same_people_is_refused.
  if same and not private and config.privacy.family != config_lib.NO_NOISE:
    raise _unfit(
      init,
      f'holds a run that learnt from the clients of {config.data.corpus} '
      'without a guarantee',
      'start from a run with noise, or from a run on other text',
    )
  return _start(
    model,
    weights,
    f'run {record.run_id} on {record.data}, '
    + (
      'with the guarantee of its own report'
      if private
      else 'without a guarantee for its clients'
    ),
    (directory,) if same and private else (),
  )


def last_weights(
  directory: pathlib.Path, model: models.Model
) -> list[np.ndarray]:
  """Returns the weights in the last checkpoint of a run.

  Args:
    directory: folder of the run.
    model: network of the run.

  Raises:
    ValueError: the run does not have this model, or a checkpoint is damaged.
  """
  saved = sorted((directory / run_json.CHECKPOINTS).glob('*.npz'))
  leaves = _arrays(checkpoints.read(saved[-1])[0]) if saved else []
  # The first leaves of the state of a learning process are the model's weights.
  weights = leaves[: len(model.weights)]
  if [each.shape for each in weights] != [each.shape for each in model.weights]:
    raise _unfit(
      str(directory),
      'has another model than this experiment',
      'give the [model] of that run',
    )
  return weights


def _arrays(content: Any) -> list[np.ndarray]:
  with np.load(io.BytesIO(content), allow_pickle=False) as archive:
    return [archive[name] for name in archive.files]


def _unfit(init: str, rule: str, remedy: str) -> ValueError:
  return errors.value_error(f'training.init={init}: {rule}; {remedy}')
