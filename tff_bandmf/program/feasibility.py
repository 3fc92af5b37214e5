"""Whether cohorts can be filled in every round, by counting alone.

| symbol | name here     | meaning                                        |
|--------|---------------|------------------------------------------------|
| N      | `clients`     | population; in class r of mod b: N_r           |
| m      | `cohort_size` | clients a round                                |
| n      | `rounds`      | of the run; in class r of mod b: n_r           |
| b, k   |               | of the participation schema                    |
| E      |               | N // m, rounds of an epoch of shuffled-epochs  |

However cohorts are drawn, n m participations need n m <= N k, and any min(b, n)
rounds in a row have different clients, so that min(b, n) m <= N.

**Uniform.** In round t the last r = min(t, b - 1) cohorts, r m different
clients, come too soon. Those who took part k times and are not among these did
so before: at most (t - r) m / k clients. All others may take part, so that
every round is filled, whatever was drawn before, if

    min(b, n) m + floor(max(n - b, 0) m / k) <= N

since both terms grow with t. Where k = ceil(n / b) nobody comes too often: the
second term drops, and the rule is exact.

**Shuffled epochs.** In round j of an epoch, max(j, b - 1) m <= (E - 1) m
clients took part in this epoch or come too soon, as b <= E, and at least m are
left. Nobody comes too often if k >= ceil(n / E).

**Multiples.** Class r is a population of N_r clients with n_r rounds and b = 1;
with k >= n_r nobody comes too often.
"""

from __future__ import annotations

import dataclasses

from tff_bandmf import participation as participation_lib


@dataclasses.dataclass(frozen=True)
class Wanted:
  """Cohorts that are wanted of a population.

  Attributes:
    sampling: of the cohorts, see `cohorts`.
    clients: N.
    cohort_size: m.
    rounds: n.
    participation: the schema.
  """

  sampling: str
  clients: int
  cohort_size: int
  rounds: int
  participation: participation_lib.Participation

  @property
  def _schema(self) -> tuple[int, int]:
    """Returns b and k."""
    return (
      self.participation.separation(self.rounds),
      self.participation.participations(self.rounds),
    )

  def surely(self) -> bool:
    """Returns whether every round is filled, whatever was drawn before it."""
    b, k = self._schema
    if self.sampling == 'shuffled-epochs':
      epoch = self.clients // self.cohort_size
      return b <= epoch and k >= -(-self.rounds // epoch)
    if self.sampling == 'uniform':
      return _uniform(self.clients, self.cohort_size, self.rounds, b, k)
    # Fixed epochs with fewer participations want clients back at once.
    if self.participation.evenly_spaced and (k < -(-self.rounds // b)):
      return False
    return all(
      _uniform(there, self.cohort_size, taken, 1, k)
      for there, taken in _classes(self.clients, self.rounds, b)
    )

  def never(self) -> bool:
    """Returns whether some round cannot be filled, whatever is drawn."""
    b, k = self._schema
    m, n = self.cohort_size, self.rounds
    if self.sampling == 'multiples':
      return any(
        m > there or taken * m > there * min(k, taken)
        for there, taken in _classes(self.clients, n, b)
      )
    return min(b, n) * m > self.clients or n * m > self.clients * k

  def largest(self) -> dict[str, int]:
    """Returns min_sep, cohort_size and rounds that `surely` fit, each alone.

    Each is as large as it can be while the others stay; one that cannot help
    is missing.
    """
    schema = self.participation
    found = {
      name: _most(
        getattr(self, name),
        lambda value, name=name: dataclasses.replace(
          self, **{name: value}
        ).surely(),
      )
      for name in ('cohort_size', 'rounds')
    }
    if schema.min_sep is not None:
      found['min_sep'] = _most(
        schema.min_sep,
        lambda value: dataclasses.replace(
          self,
          participation=participation_lib.from_name(
            schema.name, value, schema.max_participations
          ),
        ).surely(),
      )
    return {name: value for name, value in sorted(found.items()) if value}


def _uniform(
  clients: int, cohort_size: int, rounds: int, b: int, k: int
) -> bool:
  needed = min(b, rounds) * cohort_size
  if k < -(-rounds // b):
    needed += max(rounds - b, 0) * cohort_size // k
  return needed <= clients


def _classes(clients: int, rounds: int, b: int) -> set[tuple[int, int]]:
  """Returns the (N_r, n_r) of the classes that have rounds."""
  return {
    (-(-(clients - r) // b), -(-(rounds - r) // b))
    # Both change once, where their class is the first without one more.
    for r in {0, clients % b, rounds % b, min(b, rounds) - 1}
    if r < min(b, rounds)
  }


def _most(most: int, fits) -> int:
  """Returns the largest value up to `most` that fits; 0 if none does.

  What is below one that fits is taken to fit too.
  """
  low, high = 0, most
  while low < high:
    middle = (low + high + 1) // 2
    if fits(middle):
      low = middle
    else:
      high = middle - 1
  return low
