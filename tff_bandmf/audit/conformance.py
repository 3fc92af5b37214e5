"""An audit of an aggregator that others wrote, against a statement.

  make = aggregators.load('mine:aggregator')
  for answer in answers(make, Statement(0.5, 1.2, 100, np.eye(128))):
    print(answer)

| question      | compared with the statement                                  |
|---------------|--------------------------------------------------------------|
| `influence`   | how far one client moves the sum, also by NaN or huge values |
| `sums`        | how far rounding of the sum adds to a client's record        |
| `size`        | standard deviation of the noise, by coordinate and by round  |
| `correlation` | correlation of the noise over rounds and coordinates         |
| `tails`       | number of large normals                                      |
| `low_bits`    | last bits of releases with and without a client              |
| `divisor`     | response to fewer clients, and to other numbers of examples  |
| `replay`      | second release of a round, for the same and for another sum  |

Each question is a test. A sound aggregator fails it with at most a stated
probability, the false alarm. An aggregator passes a question only if the test
could have failed it; else the answer is 'cannot tell'.
"""

from __future__ import annotations

from typing import Callable, Optional

import numpy as np

from tff_bandmf.audit import (
  aggregators,
  arithmetic_attacks,
  client_questions,
  noise_questions,
)
from tff_bandmf.audit.statement import Answer, Statement, Subject


def answers(
  make: aggregators.Make,
  statement: Statement,
  draws: int = arithmetic_attacks.TAIL_DRAWS,
  false_alarm: float = arithmetic_attacks.FALSE_ALARM,
  seed: Optional[int] = None,
  on_round: Callable[[], object] = lambda: None,
) -> list[Answer]:
  """Returns the answers to all questions.

  Args:
    make: function that returns a new aggregator; see `aggregators`.
    statement: statement of its author.
    draws: number of normals that `tails` examines, >= 1; 2^30 are enough to
      tell whether normals exceed the largest normal of a float32 generator.
    false_alarm: probability with which a sound aggregator fails a question.
    seed: seed of the clients' updates, >= 0; None draws one.
    on_round: function that is called after every round.

  Raises:
    ValueError: a round of ordinary updates was refused, or a mean has another
      size than an update.
  """
  subject = Subject(make, statement, false_alarm, on_round)
  random = np.random.default_rng(seed)
  clients = client_questions.Clients(subject, random)
  return [
    clients.influence(),
    client_questions.sums(subject),
    *noise_questions.size_and_correlation(subject, random),
    *noise_questions.tails_and_low_bits(subject, draws),
    clients.divisor(),
    noise_questions.replay(subject, random),
  ]
