"""Benchmark of a round of training, with TFF's own training as a baseline."""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

import numpy as np

_BATCH = 8
_CLIP = 0.5
_ROUNDS = 64
# Number of measured rounds of the baseline, which takes most of the time.
_BASELINE_ROUNDS = 2


def training(clients: int = 100, repetitions: int = 5) -> list[dict[str, Any]]:
  """Returns the time of a round and of its parts, for two sizes of models.

  The small model also trains with the baseline: TFF's
  `build_unweighted_fed_avg` and `gaussian_fixed`, with the preprocessing and
  the Keras model of TFF's StackOverflow baseline at the same sizes. `fed_avg`
  and the baseline alternate on the same clients and the same TFF worker.
  `ratio` is the baseline's median time divided by the median time of `fed_avg`.
  `cpu_ratio` is the same ratio of CPU times, which varies less on a busy
  machine.

  Args:
    clients: number of clients in a round of the small model.
    repetitions: number of measured rounds of `fed_avg`.
  """
  from simulations import config as config_lib
  from simulations import models
  from simulations import training as training_lib
  from tff_bandmf.tff import runtime

  results = []
  with runtime.local_runtime():
    corpus = training_lib.load_corpus(
      config_lib.Data(vocabulary_size=2_000, max_sentences_per_client=32)
    )
    model = models.build(
      config_lib.Model(embedding_size=32, lstm_size=48),
      corpus.train.vocabulary.num_ids,
      0,
    )
    ours = _Ours(model, corpus.train, clients, _BATCH)
    theirs = _Theirs(corpus, clients)
    for t in range(repetitions + 1):
      cohort = _cohort(corpus.train, clients, t)
      ours.run(t, cohort)
      if t <= _BASELINE_ROUNDS:
        theirs.run(t, cohort)
    ours.close()
    results.append(
      {
        **ours.figures(),
        'baseline': theirs.figures(),
        'ratio': theirs.median('seconds') / ours.median('seconds'),
        'cpu_ratio': theirs.median('cpu_seconds') / ours.median('cpu_seconds'),
      }
    )
    corpus = training_lib.load_corpus(
      config_lib.Data(max_sentences_per_client=64)
    )
    model = models.build(config_lib.Model(), corpus.train.vocabulary.num_ids, 0)
    large = _Ours(model, corpus.train, 10, batch=16)
    for t in range(repetitions + 1):
      large.run(t, _cohort(corpus.train, 10, t))
    large.close()
    results.append(large.figures())
  return results


def _cohort(clients, count: int, t: int):
  import numpy as np

  return np.random.default_rng(t).choice(clients.num_clients, count, False)


class _Timed:
  """Seconds of the parts of rounds, and their medians.

  The medians leave out the first round, which compiles functions.
  """

  def __init__(self):
    import psutil

    self._processes = [psutil.Process(), *psutil.Process().children()]
    self._seconds: dict[str, list[float]] = {}

  def _cpu(self) -> float:
    return sum(sum(each.cpu_times()[:2]) for each in self._processes)

  def _note(self, **seconds: float) -> None:
    for name, value in seconds.items():
      self._seconds.setdefault(name, []).append(value)

  def median(self, name: str) -> float:
    return statistics.median(self._seconds[name][1:])

  def figures(self) -> dict[str, float]:
    return {name: self.median(name) for name in self._seconds}


class _Ours(_Timed):
  """Rounds of `simulations.fed_avg` with noise of 64 bands from a tape."""

  def __init__(self, model, clients, clients_per_round: int, batch: int):
    import tensorflow_federated as tff

    from simulations import fed_avg
    from tff_bandmf import aggregator, participation, strategies

    super().__init__()
    self._clients = clients
    self._clients_per_round = clients_per_round
    self._parameters = model.num_parameters
    self._factory = aggregator.dp_aggregator(
      1.0,
      clients_per_round,
      l2_norm_clip=_CLIP,
      strategy=strategies.BandedToeplitz(
        _ROUNDS, np.arange(1.0, _ROUNDS + 1) ** -0.5
      ),
      participation=participation.MinSep(_ROUNDS),
    )
    self._process = fed_avg.build(
      model,
      clients.sequence_length,
      tff.learning.optimizers.build_sgdm(0.5),
      tff.learning.optimizers.build_sgdm(1.0, 0.9),
      self._factory,
      batch,
    )
    self._state = self._process.initialize()

  def run(self, t: int, cohort) -> None:
    from simulations import fed_avg

    cpu, began = self._cpu(), time.perf_counter()
    data = fed_avg.group_datasets(self._clients, cohort, 8, 0, t)
    prepared = time.perf_counter()
    self._state = self._process.next(self._state, data).state
    done, cpu = time.perf_counter(), self._cpu() - cpu
    # A round without clients measures the server's part.
    self._state = self._process.next(self._state, []).state
    server = time.perf_counter() - done
    self._note(
      seconds=done - began,
      cpu_seconds=cpu,
      data_seconds=prepared - began,
      server_seconds=server,
      clients_seconds=done - prepared - server,
    )

  def close(self) -> None:
    self._factory.close()

  def figures(self) -> dict[str, Any]:
    return {
      'parameters': self._parameters,
      'clients': self._clients_per_round,
      'cores': os.cpu_count(),
      **super().figures(),
    }


class _Theirs(_Timed):
  """Rounds of the baseline, which uses only TFF."""

  def __init__(self, corpus, clients_per_round: int):
    import tensorflow as tf
    import tensorflow_federated as tff
    from tensorflow_federated.python.simulation.baselines.stackoverflow import (
      word_prediction_models,
      word_prediction_tasks,
    )

    super().__init__()
    data = tff.simulation.datasets.load_and_parse_sql_client_data(
      corpus.path, {'tokens': tf.TensorSpec((), tf.string)}, 'train'
    )
    vocabulary = corpus.train.vocabulary
    task = word_prediction_tasks.create_word_prediction_task_from_datasets(
      tff.simulation.baselines.ClientSpec(
        num_epochs=1, batch_size=_BATCH, max_elements=32
      ),
      None,
      corpus.train.sequence_length,
      list(vocabulary.words),
      1,
      data,
      data,
      data,
    )
    self._ids = corpus.train.client_ids
    self._data = task.datasets.train_data.preprocess(
      task.datasets.train_preprocess_fn
    )

    def model():
      return tff.learning.models.from_keras_model(
        word_prediction_models.create_recurrent_model(
          vocabulary.num_ids, embedding_size=32, lstm_size=48
        ),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        input_spec=task.datasets.element_type_structure,
      )

    self._process = tff.learning.algorithms.build_unweighted_fed_avg(
      model,
      tff.learning.optimizers.build_sgdm(0.5),
      tff.learning.optimizers.build_sgdm(1.0, 0.9),
      model_aggregator=(
        tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
          1.0, float(clients_per_round), _CLIP
        )
      ),
    )
    self._state = self._process.initialize()

  def run(self, t: int, cohort) -> None:
    del t
    cpu, began = self._cpu(), time.perf_counter()
    data = [
      self._data.create_tf_dataset_for_client(self._ids[client])
      for client in cohort.tolist()
    ]
    prepared = time.perf_counter()
    self._state = self._process.next(self._state, data).state
    self._note(
      seconds=time.perf_counter() - began,
      cpu_seconds=self._cpu() - cpu,
      data_seconds=prepared - began,
    )
