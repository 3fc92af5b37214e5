"""Attacks trained models: who was in the training data, and with what text.

  python -m simulations.attacks RUN_DIR ... [--planted=20 --out=DIR]

Each finished run is attacked with two models that an attacker may have: the
last model of the run, and the model from which its training started. The output
is one JSON line for each run.

* Membership. The people of the train split are the members, and the people of
  the two other splits are the non-members (`others`). The score of a person is
  the gain: the mean loss per word on the person's sentences under the model
  before the training, minus the same loss under the last model. The attack
  calls a person a member if the gain exceeds a threshold. At most a share alpha
  of the non-members exceed this threshold.
* Exposure [Carlini19], with --planted=M: M people of the train split are
  chosen. For each of them, a sentence of random words replaces some sentences
  of the person, and the run is trained again in DIR. The planted sentence is
  ranked together with R - 1 references, which are sentences of random words
  that nobody wrote. The sentence whose loss decreases most has rank 1. A
  planted sentence of rank r has an exposure of log2(R) - log2(r) bits. If the
  model was not trained on the sentence, the exposure is log2(e) = 1.4 bits on
  average. The attack calls a sentence planted if the decrease of its loss
  exceeds a threshold. At most a share alpha of the references exceed this
  threshold.

Let a test call a non-member a member with probability alpha. If the guarantee
of the run holds, the test calls a member a member with probability at most

    Phi(Phi^-1(alpha) + mu),   mu = 1 / noise_multiplier

because the run is a Gaussian mechanism with this mu; Phi is the standard normal
distribution function. If an attack exceeds this bound, the guarantee is wrong.
If an attack does not exceed the bound, the guarantee may still be wrong.

[Carlini19] is Carlini, Liu, Erlingsson, Kos, Song, "The Secret Sharer", USENIX
Security 2019.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import sys
from typing import Any, Optional

import click
import numpy as np
from scipy import stats

from simulations import run_stackoverflow
from simulations.corpora import client_data
from tff_bandmf import errors

ALPHAS = (0.01, 0.05)
_CONFIDENCE = 0.95
_REFERENCES = 4095  # R - 1 of the module docstring.
_PLANTED_WORDS = 8  # Number of words of a planted sentence.
_PLANTED_ROWS = 4  # Maximum number of a person's sentences to replace.
_BATCH = 256


def bound(alpha: float, noise_multiplier: float) -> float:
  """Returns the maximum true positive rate of any attack.

    Phi(Phi^-1(alpha) + 1 / noise_multiplier)

  Args:
    alpha: false positive rate of the attack, in [0, 1].
    noise_multiplier: noise multiplier of the whole run, >= 0; the bound of a
      run without noise (0) is 1.

  >>> round(bound(0.01, 1 / 1.53), 2)
  0.21
  """
  if noise_multiplier == 0:
    return 1.0
  return float(stats.norm.cdf(stats.norm.ppf(alpha) + 1 / noise_multiplier))


def interval(successes: int, trials: int) -> tuple[float, float]:
  """Returns the exact 95 % confidence interval (Clopper-Pearson) of a rate."""
  tail = (1 - _CONFIDENCE) / 2
  return (
    float(stats.beta.ppf(tail, successes, trials - successes + 1))
    if successes
    else 0.0,
    float(stats.beta.ppf(1 - tail, successes + 1, trials - successes))
    if successes < trials
    else 1.0,
  )


def membership(
  members: np.ndarray, others: np.ndarray, noise_multiplier: float
) -> list[dict[str, Any]]:
  """Returns the results of the threshold attack for each alpha of `ALPHAS`.

  Args:
    members: [m] scores of members; the attack expects larger scores from
      members than from non-members.
    others: [k] scores of non-members.
    noise_multiplier: noise multiplier of the run, >= 0; 0 without noise.

  Returns:
    For each alpha: the `false_positive_rate`; the `true_positive_rate`; the
    ends `low` and `high` of the confidence interval of the true positive rate;
    the `bound` at alpha; `refuted`, whether low > bound(a); and `above_chance`,
    whether low > a. Here a is the upper end of the confidence interval of the
    false positive rate. If `refuted`, the guarantee is wrong, or an interval
    does not contain its rate by chance.
  """
  rates = []
  for alpha in ALPHAS:
    # At most a share alpha of `others` have a score above the threshold.
    threshold = np.sort(others)[::-1][math.floor(alpha * len(others))]
    false, true = (int(np.sum(each > threshold)) for each in (others, members))
    low, high = interval(true, len(members))
    most = interval(false, len(others))[1]
    rates.append(
      {
        'alpha': alpha,
        'false_positive_rate': false / len(others),
        'true_positive_rate': true / len(members),
        'low': low,
        'high': high,
        'bound': bound(alpha, noise_multiplier),
        'refuted': low > bound(most, noise_multiplier),
        'above_chance': low > most,
      }
    )
  return rates


def row_losses(model: Any, weights: Any, rows: np.ndarray) -> np.ndarray:
  """Returns the summed loss and the number of words of each sentence.

  Args:
    model: network, a `models.Model`.
    weights: weights of the network.
    rows: [sentences, sequence_length + 1] token ids.

  Returns:
    [sentences, 2] float64, losses in nats.
  """
  import tensorflow as tf

  spec = tf.TensorSpec([None, rows.shape[1] - 1], tf.int32)

  @tf.function(input_signature=[spec, spec], autograph=False)
  def batch_losses(x, y):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
      y, model.logits(weights, x)
    )
    mask = tf.cast(tf.not_equal(y, 0), tf.float32)
    return tf.stack([tf.reduce_sum(losses * mask, 1), tf.reduce_sum(mask, 1)])

  weights = tuple(map(tf.constant, weights))
  losses = [np.zeros((2, 0))]
  for start in range(0, len(rows), _BATCH):
    batch = rows[start : start + _BATCH].astype(np.int32)
    losses.append(batch_losses(batch[:, :-1], batch[:, 1:]).numpy())
  return np.concatenate(losses, 1).T.astype(np.float64)


def gains(
  model: Any,
  before: Any,
  after: Any,
  clients: client_data.TokenizedClients,
) -> np.ndarray:
  """Returns the gain of each client, [m] nats per word.

  Args:
    model: network, a `models.Model`.
    before: weights before the training.
    after: weights after the training.
    clients: clients of one split.
  """
  clients.prepare(range(clients.num_clients))
  losses = [
    np.add.reduceat(row_losses(model, each, clients.ids), clients.offsets[:-1])
    for each in (before, after)
  ]
  words = losses[0][:, 1]
  return (losses[0][:, 0] - losses[1][:, 0]) / words


@dataclasses.dataclass(frozen=True, eq=False)
class Planted:
  """A train split with planted sentences.

  Attributes:
    clients: clients of the train split, whose text includes the planted
      sentences.
    people: [m] indices of the clients with a planted sentence.
    rows: [m, sequence_length + 1] token ids of the planted sentences.
    references: [R - 1, sequence_length + 1] token ids of sentences that no
      client has.
  """

  clients: client_data.TokenizedClients
  people: np.ndarray
  rows: np.ndarray
  references: np.ndarray


def plant(
  clients: client_data.TokenizedClients, people: int, seed: int
) -> Planted:
  """Plants a sentence of random words in the text of some clients.

  Args:
    clients: clients of the train split.
    people: number of clients with a planted sentence, >= 1.
    seed: seed, >= 0, by which clients and words are chosen.
  """
  clients.prepare(range(clients.num_clients))
  generator = np.random.default_rng(seed)
  chosen = np.sort(generator.choice(clients.num_clients, people, replace=False))
  words = clients.vocabulary.words
  rows = np.array(
    [
      clients.vocabulary.encode(
        ' '.join(generator.choice(words, _PLANTED_WORDS)),
        clients.sequence_length,
      )
      for _ in range(people + _REFERENCES)
    ],
    clients.ids.dtype,
  )
  ids = np.array(clients.ids)
  for person, row in zip(chosen, rows):
    first, last = clients.offsets[person : person + 2]
    ids[first : min(first + _PLANTED_ROWS, last)] = row
  return Planted(
    dataclasses.replace(clients, ids=ids, source=None),
    chosen,
    rows[:people],
    rows[people:],
  )


def falls(model: Any, before: Any, after: Any, rows: np.ndarray) -> np.ndarray:
  """Returns the decrease of each sentence's loss, [sentences] float64 nats.

  Args:
    model: network, a `models.Model`.
    before: weights before the training.
    after: weights after the training.
    rows: [sentences, sequence_length + 1] token ids.
  """
  return (
    row_losses(model, before, rows)[:, 0] - row_losses(model, after, rows)[:, 0]
  )


def exposures(scores: np.ndarray, references: np.ndarray) -> np.ndarray:
  """Returns the exposure of each planted sentence, [m] bits.

    log2(R) - log2(rank among R - 1 references and itself)

  Args:
    scores: [m] decrease of the loss of each planted sentence.
    references: [R - 1] decrease of the loss of each reference.
  """
  above = len(references) - np.searchsorted(np.sort(references), scores)
  return math.log2(len(references) + 1) - np.log2(above + 1)


def area(members: np.ndarray, others: np.ndarray) -> float:
  """Returns the share of pairs in which the member's score is larger.

  A pair is a member and a non-member. A tie counts as one half, so scores
  without information give 0.5 on average.

  Args:
    members: [m] scores of members.
    others: [k] scores of non-members.
  """
  statistic = stats.mannwhitneyu(members, others).statistic
  return float(statistic / (len(members) * len(others)))


def attack(
  corpus: Any,
  directory: pathlib.Path,
  start: Any,
  planted: Optional[Planted] = None,
) -> dict[str, Any]:
  """Returns the results of the attacks on a finished run.

  Args:
    corpus: corpus of the run, a `training.TokenizedCorpus`.
    directory: folder of the run.
    start: initial model of the run, a `pretraining.Start`.
    planted: planted sentences of the train split; None if no sentence was
      planted.
  """
  from simulations import pretraining
  from tff_bandmf.run_files import run_json

  model, before = start.model, start.model.weights
  after = pretraining.last_weights(directory, model)
  noise_multiplier = run_json.read_plan(directory).guarantee.noise_multiplier
  members = gains(model, before, after, corpus.train)
  if planted is not None:
    # The planted sentence changes the gain of its person, who is left out.
    members = np.delete(members, planted.people)
  others = np.concatenate(
    [
      gains(model, before, after, each)
      for each in (corpus.validation, corpus.test)
    ]
  )
  result = {
    'noise_multiplier': noise_multiplier,
    'members': len(members),
    'others': len(others),
    'area': area(members, others),
    'membership': membership(members, others, noise_multiplier),
  }
  if planted is not None:
    scores, references = (
      falls(model, before, after, rows)
      for rows in (planted.rows, planted.references)
    )
    bits = exposures(scores, references)
    result['exposure'] = {
      'planted': len(bits),
      'most_bits': math.log2(_REFERENCES + 1),
      'mean_bits': float(np.mean(bits)),
      'largest_bits': float(np.max(bits)),
      'rates': membership(scores, references, noise_multiplier),
    }
  return result


@click.command(help=__doc__.split('\n')[0])
@click.argument(
  'runs',
  nargs=-1,
  required=True,
  metavar='RUN_DIR...',
  type=click.Path(path_type=pathlib.Path),
)
@click.option(
  '--planted',
  type=click.IntRange(min=0),
  default=0,
  show_default=True,
  help='Number of people whose text gets a planted sentence. If it is above 0, '
  'the runs are trained again in the folder of --out.',
)
@click.option(
  '--out',
  metavar='DIR',
  type=click.Path(path_type=pathlib.Path),
  help='Folder of the runs with planted sentences; finished runs in it are '
  'used again.',
)
@run_stackoverflow.one_line_errors
def main(
  runs: tuple[pathlib.Path, ...], planted: int, out: Optional[pathlib.Path]
) -> None:
  if planted and out is None:
    raise errors.value_error(
      f'planted={planted}: the runs are trained again; give their folder with '
      '--out'
    )
  refuted = False
  for directory in runs:
    result = _attack_run(directory.resolve(), planted, out)
    click.echo(json.dumps(result))
    rates = result['membership'] + result.get('exposure', {}).get('rates', [])
    refuted |= any(each['refuted'] for each in rates)
  sys.exit(int(refuted))


def _attack_run(
  directory: pathlib.Path, planted: int, out: Optional[pathlib.Path]
) -> dict[str, Any]:
  """Returns the results for a run; trains it again if `planted` > 0."""
  from simulations import config_keys, pretraining, training
  from tff_bandmf import report
  from tff_bandmf.run_files import run_json, run_ledger
  from tff_bandmf.tff import runtime

  if run_ledger.results(directory) is None:
    raise errors.value_error(
      f'run={directory}: must hold a finished run; finish it with --resume'
    )
  record = run_json.RunDetails.read(directory)
  config = config_keys.from_tree(record.config or {})
  corpus = training.load_corpus(config.data)
  name = '/'.join(directory.parts[-2:])
  planted_text = None
  if planted:
    planted_text = plant(corpus.train, planted, config.training.seed)
    corpus = dataclasses.replace(corpus, train=planted_text.clients)
    assert out is not None  # `main` raises an error if `out` is None.
    directory = out / name
    run_stackoverflow.check_system(str(directory))
    with runtime.local_runtime():
      training.run(config, corpus, directory, resume=True)
    report.write(directory)
  start = pretraining.start(config, corpus.train.vocabulary)
  return {
    'run': name,
    'seed': config.training.seed,
    **attack(corpus, directory, start, planted_text),
  }


if __name__ == '__main__':
  main()
