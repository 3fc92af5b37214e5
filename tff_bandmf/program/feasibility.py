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

from tff_bandmf import participation as participation_lib


def surely(
  sampling: str,
  clients: int,
  cohort_size: int,
  rounds: int,
  participation: participation_lib.Participation,
) -> bool:
  """Returns whether every round is filled, whatever was drawn before it.

  Args:
    sampling: of the cohorts, see `cohorts`.
    clients: N.
    cohort_size: m.
    rounds: n.
    participation: the schema.
  """
  b, k = participation.separation(rounds), participation.participations(rounds)
  if sampling == 'shuffled-epochs':
    epoch = clients // cohort_size
    return b <= epoch and k >= -(-rounds // epoch)
  if sampling == 'uniform':
    return _uniform(clients, cohort_size, rounds, b, k)
  # Fixed epochs with fewer participations want clients back at once.
  if participation.evenly_spaced and (k < -(-rounds // b)):
    return False
  return all(
    _uniform(there, cohort_size, taken, 1, k)
    for there, taken in _classes(clients, rounds, b)
  )


def never(
  sampling: str,
  clients: int,
  cohort_size: int,
  rounds: int,
  participation: participation_lib.Participation,
) -> bool:
  """Returns whether some round cannot be filled, however cohorts are drawn.

  Args:
    sampling: of the cohorts, see `cohorts`.
    clients: N.
    cohort_size: m.
    rounds: n.
    participation: the schema.
  """
  b, k = participation.separation(rounds), participation.participations(rounds)
  if sampling == 'multiples':
    return any(
      cohort_size > there or taken * cohort_size > there * min(k, taken)
      for there, taken in _classes(clients, rounds, b)
    )
  return (
    min(b, rounds) * cohort_size > clients or rounds * cohort_size > clients * k
  )


def largest(
  sampling: str,
  clients: int,
  cohort_size: int,
  rounds: int,
  participation: participation_lib.Participation,
) -> dict[str, int]:
  """Returns min_sep, cohort_size and rounds that `surely` fit, each alone.

  Each is as large as it can be while the others stay; one that cannot help is
  missing.

  Args:
    sampling: of the cohorts, see `cohorts`.
    clients: N.
    cohort_size: m.
    rounds: n.
    participation: the schema.
  """
  found = {
    'cohort_size': _most(
      cohort_size,
      lambda value: surely(sampling, clients, value, rounds, participation),
    ),
    'rounds': _most(
      rounds,
      lambda value: surely(
        sampling, clients, cohort_size, value, participation
      ),
    ),
  }
  if participation.min_sep is not None:
    found['min_sep'] = _most(
      participation.min_sep,
      lambda value: surely(
        sampling,
        clients,
        cohort_size,
        rounds,
        participation_lib.from_name(
          participation.name, value, participation.max_participations
        ),
      ),
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
