"""Checks what a run of tff_bandmf claims, with code that shares none of its.

    python verify.py RUN_DIR        every step, then VERIFIED and an epsilon
    python verify.py public.json    whether the figures of a report fit together

This needs Python 3.9 or later and NumPy. Copy it anywhere, and read it from the
top: chapters 1 to 5 are mathematics, 6 and 7 read files. A run releases
C^-1 (C G + Z). Row t of G is the sum of the clipped updates of round t, C is
lower-triangular, Z are independent normals of deviation z. One unit of privacy
moves C G by the sensitivity of C at most, and mu is that distance over z: it is
one Gaussian mechanism. All is in units of the clip.

Checked: files agree, and every round began with them; the ledger's chain; C,
its sensitivity, epsilon (rounded up); who took part, what it cost; runs before;
reports. Exit status 1: the last line tells what does not hold; 2: no such run.

Not checked, as no file shows it:
* the key of the noise was random, secret, and used for this run alone;
* whoever trained clipped, recorded and released as the files say;
* who took part did not depend on data; sampled cohorts were drawn in secret;
* nothing else of the clients was used or released, tuning included.
"""

# fmt: off
import collections
import contextlib
import hashlib
import json
import math
import pathlib
import sqlite3
import sys
import types

import numpy as np

FILES = ('run.json', 'plan.json', 'strategy.json')
MOST_ROUNDS = 4096  # C is kept entry by entry.
SAME = 1e-9  # Two computations of one number differ by less, relatively.
CLOSE = 1e-5  # Two bounds by one theorem do: their grids differ.
U = 2.0**-53  # Relative rounding of float64.
NOTES = '''unit_of_privacy data not_covered side_releases population process
  clients_left tuning model_selection pre_training key_after owner contact date
  model intended_use region sector highest_client title'''.split()  # May vary.

def require(condition, line):
  if not condition:
    raise AssertionError(line)

def same(name, value, other, where):
  numbers = {type(value), type(other)} <= {int, float}
  close = numbers and math.isclose(value, other, rel_tol=SAME)
  require(close or value == other, f'{name}={value}: {where} {other}')

# 1. The matrix C, by its definition.
def power(exponent, count):
  """Returns the first coefficients of (1 - x)^-exponent."""
  steps = np.arange(1.0, count)
  return np.cumprod(np.r_[1.0, (steps - 1 + exponent) / steps])

# First column of Toeplitz C, p: parameters and arrays; the last four of C^-1.
COLUMNS = {
  'identity': lambda p, n: [1.0],
  'banded-toeplitz': lambda p, n: p['coefficients'],
  'robust-toeplitz': lambda p, n: p['coefficients'],
  'banded-sqrt': lambda p, n: power(0.5, p['bands']),
  'banded-fractional': lambda p, n: power(p['alpha'], p['bands']),
  'inverse-plus-constant': lambda p, n: (
    (1 / np.arange(1, p['bands'] + 1) + p['constant']) / (1 + p['constant'])),
  'sqrt-toeplitz': lambda p, n: power(0.5, n),
  'lti': lambda p, n: power(0.5, n) * (1 - p['nu']) ** np.arange(n),
  'blt': lambda p, n: [1.0] + [
    np.power(p['theta'], t) @ p['omega'] for t in range(n - 1)],
  'dp-cgd': lambda p, n: [1.0, -p['lambda']],
  'banded-inverse': lambda p, n: p['inverse_coefficients'],
  'banded-inverse-sqrt': lambda p, n: power(-0.5, p['inverse_bands']),
  'banded-inverse-fractional': lambda p, n: power(
    -p['alpha'], p['inverse_bands']),
}

def tree(arity, n):
  """Returns C; C^T C has the complete nodes that two rounds have in common."""
  gram = 0
  for size in [arity**j for j in range(n.bit_length()) if arity**j <= n]:
    node = np.arange(n) // size
    gram = gram + (node[:, None] == node) * (node * size + size <= n)
  return np.linalg.cholesky(gram[::-1, ::-1])[::-1, ::-1].T  # L L^T turned.

def online_tree(n):
  """Returns C of the noise that prefix sums have by Honaker's estimates."""
  fresh, nodes, prefix = iter(np.eye(2 * n)), [], []
  for _ in range(n):
    level, v, node = 0, 1.0, next(fresh)
    while nodes and nodes[-1][0] == level:  # Own noise; children's, of 2 v.
      level, v = level + 1, 1 / (1 + 1 / (2 * v))
      node = v * next(fresh) + (1 - v) * (nodes.pop()[1] + node)
    nodes.append((level, node))
    prefix.append(sum(node for _, node in nodes))
  noise = np.diff(prefix, axis=0, prepend=0)
  return np.linalg.inv(np.linalg.cholesky(noise @ noise.T))

def matrix(strategy):
  """Returns C, [n, n], of what strategy.json says."""
  family, n = strategy['family'], strategy['rounds']
  p = {**strategy['parameters'], **strategy.get('arrays', {})}
  if type(n) is not int or not 1 <= n <= MOST_ROUNDS:
    raise ValueError(f'rounds={n}: at most {MOST_ROUNDS} are checked')
  c = np.zeros((n, n))
  if family == 'stamped':
    arrays = {name.replace('block.', ''): array for name, array in p.items()}
    block = matrix({**p['block'], 'arrays': arrays})
    c = np.kron(np.eye(-(-n // len(block))), block)[:n, :n]
  elif family == 'banded':
    for t, row in enumerate(p['rows']):
      c[t, max(t + 1 - len(row), 0) : t + 1] = row[: t + 1][::-1]
  elif family == 'dense':
    c = np.tril(np.array(p['values'], float))
  elif 'tree' in family:
    c = tree(p['arity'], n) if family == 'tree' else online_tree(n)
  else:
    column = np.array(COLUMNS[family](p, n), float)[:n]
    column = np.r_[column, np.zeros(2 * n - len(column))]
    c = column[np.arange(n)[:, None] - np.arange(n)]  # From the end: zeros.
    c = np.tril(np.linalg.inv(c)) if family in list(COLUMNS)[-4:] else c
  c = c / np.linalg.norm(c, axis=0) if p.get('column_normalize') else c
  if c.shape != (n, n) or not np.isfinite(c).all() or np.diag(c).min() <= 0:
    raise ValueError(f'family={family}: has no {n} by {n} matrix')
  return c

# 2. How far one client moves C G.
def bands_of(c):
  return int(1 + np.subtract(*np.nonzero(c)).max())

def largest_sum(value, gap, most):
  """Returns the largest sum of `most` numbers of value(0), ..., `gap` apart."""
  top = largest = 0.0
  for j in range(most):
    best = value(j).copy()
    best[..., gap:] += top[..., :-gap] if j else 0
    top = np.maximum.accumulate(best, axis=-1)
    largest = np.maximum(largest, top[..., -1])
  return largest

def sensitivity(c, gap, most, fixed=False):
  """Returns bounds (below, above) on it, equal if exact. With X = C^T C, rounds
  t_0 < t_1 < ... cost at most sum_j X[t_j, t_j] + 2 sum_{i<j} |X[t_i, t_j]|,
  and just that if X >= 0. So a j-th round costs at most X[t, t] + 2 sum_{i<=j}
  of max |X[s, t]|, s <= t - i gap; a dynamic programme finds the most. Rounds
  `gap` apart show what is reached."""
  n, signed = len(c), c.T @ c
  x, cost, epochs = np.abs(signed), np.diag(signed).copy(), []
  for t in range(gap if most * gap >= n else n):
    rounds = np.ix_(*[np.arange(t, n, gap)[:most]] * 2)
    epochs.append((signed[rounds].sum(), x[rounds].sum()))
  lower, upper = np.max(epochs, axis=0)
  if not fixed:
    nearest = np.maximum.accumulate(x, axis=0)
    def value(j):
      t = np.arange(j * gap, n)
      cost[t] += 2 * nearest[t - j * gap, t] * (j > 0)
      cost[: j * gap] = -np.inf
      return cost
    upper = largest_sum(value, gap, most)
    lower = upper if bands_of(c) <= gap else lower
    if upper > lower * (1 + SAME) and most * n * n < 4e9:  # [BandMF23, Alg 4].
      by_row = largest_sum(lambda j: x, gap, most)
      upper = min(upper, largest_sum(lambda j: by_row, gap, most))
  return lower**0.5, max(lower, upper) ** 0.5

# 3. Epsilon of a Gaussian mechanism, rounded up.
def tail(x):
  """Returns P[Z > x]; erfc and its argument err by less than 1e-12 of it."""
  return math.erfc(x / math.sqrt(2)) / 2

def gaussian_delta(epsilon, mu):
  """Returns at least delta: what rounding loses is added again."""
  first = tail(epsilon / mu - mu / 2)
  second = math.exp(epsilon) * tail(epsilon / mu + mu / 2)
  return first - second + 1e-12 * (first + second)

def zcdp_epsilon(rho, delta):
  return smallest(lambda e: gaussian_delta(e, math.sqrt(2 * rho)) <= delta)

def smallest(holds, low=0.0, high=0.01):
  """Returns where `holds` begins, from above; inf where it does not hold."""
  while not holds(high):
    low, high = high, 1.1 * high
    if high > 700:
      return math.inf
  while high - low > 1e-10 * high:
    middle = (low + high) / 2
    low, high = (low, middle) if holds(middle) else (middle, high)
  return high

# 4. The price of integers and finite words: docs/reference/arithmetic.md.
def mechanism(c, sens, k, claim):
  """Returns mu, and what Theorem 2 takes; `sens`: of one client of k rounds."""
  n, diagonal, inverse = len(c), np.diag(c), np.linalg.inv(c)
  units, bands = claim['clients_per_unit'], bands_of(c)
  # Deviations of y, which bound those of m, in deviations of c z.
  rho = float((np.linalg.norm(inverse, axis=1) * diagonal).max())
  # Weights of windows are cut: sums with 12 deviations of y fit 53 bits.
  weights = ((np.abs(c).sum(1) - diagonal) / diagonal).max()
  cut = 2 * U * 12 * 2.0**17 * rho * weights * bands**0.5 * diagonal.max()
  off = (n + 64) * U * np.abs(c).sum(0).max() * np.abs(inverse).sum(0).max()
  rounding = (8 * min(k, bands) * n + 1000 * k) * U + off / (1 - min(off, 0.5))
  return types.SimpleNamespace(
    mu=units * (sens + k * cut) * (1 + rounding) / claim['z_stddev_per_clip'],
    touched=n if 'amplification' in claim else min(n, units * k * bands),
    few=int((math.log(n) + 24 * math.log(10)) / 0.15), d=claim['dimension'],
    rho=rho, f=math.sqrt(n) * rho * diagonal.max() / diagonal.min(),
    shift=2.0**-44 * rho)  # A few dozen roundings of 14 deviations.

def alpha_of(run, cells, m, part):
  """Returns alpha of Theorem 2 for N cells, the mean |m| and beta' (`part`)."""
  width, words, far = 2.0**-17, 2.0**-128, 12 * run.rho
  def bad(x):  # It subtracts more than e.
    return 2 * (tail(x - U * (100 + 2 * far) - run.shift) + words)
  if cells * bad(13) > part:
    return math.inf
  last = smallest(lambda x: cells * bad(x) <= part)
  extended = smallest(lambda x: tail(x) < 2.0**-25) + 2 * width
  edges = np.unique(np.r_[np.linspace(0, last, 4097), min(last, extended)])
  mass, a = -2 * np.diff([tail(x) for x in edges]), edges[1:]
  spacing = np.where(a <= extended, 2.0**-64, words) * math.sqrt(2 * math.pi)
  g = np.maximum(8 * a, np.minimum(12, 7.2 + 54 * (a - 0.9)))
  def r(m):
    edge = U * (g + 3 * a + 1.3 + 2 * m)
    fine = (2 * edge + spacing * np.exp(a * a / 2)) / width
    fine += 57 * U + 2 * U * run.f * (a + 1.5)
    fine *= np.exp((width + 2 * edge + 2 * run.shift) * (a + 2 * width))
    return fine + 2 * (a + 1) * run.shift
  square, log_worst = mass * r(m) ** 2, -np.log1p(-np.minimum(r(far), 1))
  def alpha(order):
    moment = (square * np.exp((order + 2) * log_worst)).sum()
    growth = (1 + order) * (order / 2 * moment + bad(last))
    return (cells * growth + math.log(1 / (3 * part))) / order
  best = min(2.0 ** np.arange(0, 30), key=alpha)
  return min(alpha(best * 2**power) for power in np.arange(-1, 1, 0.05))

def guarantee(runs, delta, profile=None):
  """Returns epsilon at delta of runs on the same clients together: mu^2 adds,
  unless `profile` has the delta of real numbers; alphas and betas add."""
  mu = math.sqrt(sum(run.mu**2 for run in runs)) * (1 + 1e-12)
  profile = profile or (lambda epsilon: gaussian_delta(epsilon, mu))
  epsilon, alpha = smallest(lambda e: profile(e) <= delta), 0.0
  for _ in range(3):
    if epsilon + alpha > 600:
      return math.inf
    beta = share = 1e-4 * delta / (1 + math.exp(epsilon + alpha))
    alpha = 0.0
    for run in runs:
      d, part = run.d or 2.0**33 / run.touched, share / 4 / len(runs)
      cases = [(min(run.few, d), 12 * run.rho), (d, math.sqrt(2) * run.rho)]
      cases = cases[: 1 + (d > run.few)]
      alpha += max(alpha_of(run, d * run.touched, m, part) for d, m in cases)
      beta += 2e-24 + 4 * d * run.touched * tail(12)
    def holds(e, up=np.exp(alpha), beta=beta):  # noqa: B008
      return up * profile(e) + beta * (1 + up * math.exp(e)) <= delta
    epsilon = smallest(holds)
  return epsilon + 2 * alpha

# 5. Cohorts that chance draws.
def poisson_profile(sigma, q, count):
  """Returns epsilon -> a bound on delta, from Renyi divergences of order a."""
  bounds = []
  for a in range(2, 257):
    k = np.arange(a + 1)
    terms = np.array([math.log(math.comb(a, i)) for i in k])
    terms += (a - k) * math.log1p(-q) + k * math.log(q)
    divergence = np.logaddexp.reduce(terms + k * (k - 1) / (2 * sigma**2))
    rest = a * math.log1p(-1 / a) - math.log(a - 1)
    bounds.append((a - 1, count * divergence + rest))
  return lambda e: math.exp(min(0.0, *(d - order * e for order, d in bounds)))

def estimated_delta(claim, c, gap, count=4000):
  """Returns an estimate of delta, no bound, from patterns drawn by the rule."""
  rng, n, z = np.random.default_rng(0), len(c), claim['z_stddev_per_clip']
  drawn, free = np.zeros((count, n)), np.zeros(count)
  ball = rng.integers(gap, size=count)
  for t in range(n):
    joins = ball == t % gap
    if claim['amplification'] == 'b-min-sep':
      joins = (rng.random(count) < claim['sampling_prob']) & (free <= t)
    drawn[joins, t], free[joins] = 1, t + gap
  means = drawn @ c.T
  y = means + z * rng.standard_normal((count, n))
  ratio = np.exp((y @ means.T - (means**2).sum(1) / 2) / z**2).mean(1)
  return np.maximum(1 - math.exp(claim['bound']['epsilon']) / ratio, 0).mean()

# 6. The ledger.
def sha(content):
  if not isinstance(content, bytes):
    content = json.dumps(content, sort_keys=True).encode()
  return hashlib.sha256(content).digest()

def read_ledger(path, ids):
  """Returns events by round, cohorts, and the head of a chain that is whole."""
  database = sqlite3.connect(path.resolve().as_uri() + '?mode=ro', uri=True)
  with contextlib.closing(database):
    about, rows, stored = (sorted(database.execute(f'select * from bandmf_{x}'))
                           for x in ('ledger', 'events', 'rounds'))
  (about,) = about  # place, format, run, key of noise, of names, events, head
  require(about[:4] == (0, 3, *ids), 'ledger: is of another run than run.json')
  head, events = sha(['bandmf ledger', *about[1:5]]), {e[1]: [] for e in rows}
  for i, (place, t, kind, digest, z, tested, after) in enumerate(rows):
    texts = [value if value is None else value.hex() for value in (digest, z)]
    head = sha([head.hex(), i, t, kind, *texts, bool(tested)])
    good = (place, after, tested) == (i, head, bool(tested))
    require(good, f'ledger: event {i} was changed')
    events[t].append((kind, digest, z, tested))
  require(about[5:] == (len(rows), head), 'ledger: lacks its last events')
  good = [t for t, *_ in stored] == sorted(events) == list(range(len(events)))
  require(good, 'ledger: lacks a round')
  cohorts = [np.frombuffer(cohort, '<i8') for *_, cohort in stored]
  for t, highest, cohort in stored:
    digest = sha(b'%d\n' % highest + cohort)
    good = {each[1] for each in events[t] if each[0] == 'started'} == {digest}
    good &= (cohorts[t][1:] > cohorts[t][:-1]).all()
    require(good, f'ledger: the cohort of round {t} was changed')
  return events, cohorts, head.hex()

def check_round(t, events, z, held, row):
  """Checks what a round held to, its noise, its row of metrics.csv."""
  digests = collections.defaultdict(list)
  for kind, digest, noise, tested in events:
    digests[kind].append(digest)
    good = kind != 'finished' or tested and noise >= z * (1 - 1e-6)
    require(good, f'round {t}: noise {noise} was not tested, or is below {z}')
  require(digests['enforced'] == [held] * len(digests['started']),
          f'round {t}: began with another run.json, plan.json, strategy.json')
  require(len(set(digests['finished'])) < 2, f'round {t}: was released twice')
  require(digests['row'][-1:] in ([], [row]), f'metrics.csv: row {t} differs')

def check_cohorts(cohorts, x, kind, gap, most):
  """Returns the largest cost of one client's rounds; all keep to the rule."""
  rounds, costs = collections.defaultdict(list), [0.0]
  by = gap if kind in ('fixed-epoch', 'cyclic-poisson', 'balls-in-bins') else 1
  for t, cohort in enumerate(cohorts):
    for client in cohort.tolist():
      rounds[client].append(t)
  for pattern in set(map(tuple, rounds.values())):
    d = np.diff(pattern)
    good = len(pattern) <= most and (d >= gap).all() and not (d % by).any()
    require(good, f'ledger: rounds {pattern} of a client, not {kind} {gap}')
    costs.append(x[np.ix_(pattern, pattern)].sum())
  return max(costs) ** 0.5

# 7. A run, the runs before it, and reports.
def read_json(path, *names):
  content = json.loads(path.read_bytes(), parse_constant=int)  # Refuses NaN.
  report = 'report' in content['format']
  if content['format'] not in names or content['version'] != 2 - report:
    raise ValueError(f'{path.name}: is of another format or version')
  if report:
    same(path.name, content.pop('content_sha256'), sha(content).hex(), 'it has')
  return content

def at_least(name, value, bound):
  require(value is None or value >= bound * (1 - CLOSE),
          f'{name}={value}: is below {bound}, which was found here')

def check_plan(claim, plan, strategy):
  """Requires run.json, plan.json and strategy.json to say the same."""
  for key in ('family', 'rounds', 'parameters', 'arrays'):
    same(key, strategy[key], plan['strategy'][key], 'plan.json has')
  asked = {**plan['request'], **plan['request']['cohorts']}
  if isinstance(clip := asked['l2_norm_clip'], dict):
    asked['adaptive_clip'], beta = clip, clip['fraction_weight']
    clip = float(np.linalg.norm(clip['initial'])) * math.hypot(1, beta / 2)
  asked.update(l2_norm_clip=clip, noise_multiplier=plan['noise_multiplier'])
  for key in {*asked} & {*claim, 'adaptive_clip'}:
    if asked[key] is not None:
      same(key, claim.get(key), asked[key], 'plan.json has')
  z = claim['noise_multiplier'] * claim['sensitivity']
  same('z_stddev_per_clip', claim['z_stddev_per_clip'], z, 'its factors make')

def check_ledger(folder, run, say):
  """Returns the cohorts of a run, all of whose rounds held to run.json."""
  claim = run['claim']
  ids = [int(run[name], 16) for name in ('run_id', 'noise_key_id')]
  events, cohorts, head = read_ledger(folder / 'ledger.sqlite', ids)
  if (folder / 'result.json').exists():
    result = json.loads((folder / 'result.json').read_bytes())
    same('ledger_head', result.pop('ledger_head'), head, 'the ledger ends with')
    ended = events[max(events)][-1][:2] == ('ended', sha(result))
    require(ended, 'result.json: its results are not those of the ledger')
  first, *lines = (folder / 'metrics.csv').read_text().splitlines(True)
  rows = {int(line.split(',')[0]): (first + line).encode() for line in lines}
  require({*rows} <= {*events}, 'ledger: lacks a round of metrics.csv')
  fixed = {name: run[name] for name in {*run} - {*NOTES}}
  files = [sha((folder / name).read_bytes()).hex() for name in FILES[1:]]
  z = claim['z_stddev_per_clip'] * claim['l2_norm_clip']
  for t, each in events.items():
    check_round(t, each, z, sha([fixed, *files]), sha(rows.get(t, b'')))
  say(f'{folder}: {len(events)} rounds held to it; the chain ends with {head}')
  return cohorts

def verify_run(folder, say, known):
  """Returns what holds of a run; `known` gets its and earlier mechanisms."""
  run, plan, strategy = (read_json(folder / name, f'tff_bandmf.{name[:-5]}')
                         for name in FILES)
  path = folder / 'report.json'
  report = read_json(path, 'tff_bandmf.report') if path.exists() else {}
  claim, whole = run['claim'], matrix(strategy)
  delta, chance = claim['delta'], 'amplification' in claim
  check_plan(claim, plan, strategy)
  cohorts = check_ledger(folder, run, say)
  for name, digest in report.get('files_sha256', {}).items():
    same(name, sha((folder / name).read_bytes()).hex(), digest, 'reported is')
  n, kind = len(cohorts), claim['amplification' if chance else 'participation']
  require(0 < n <= len(whole), f'ledger: has {n} rounds of {len(whole)}')
  same('bands', claim['bands'], bands_of(whole), 'C has')
  gap = claim.get('groups') or claim.get('bins') or claim.get('min_sep')
  gap, found = len(whole) if kind == 'single' else gap, {'delta': delta}
  same('min_sep', run['enforced']['min_sep'] or gap, gap, 'the claim has')
  for name, c in (('planned', whole), ('epsilon', whole[:n, :n])):
    most = min(claim.get('max_participations') or n, -(-len(c) // gap))
    lower, upper = sensitivity(c, gap, most, kind == 'fixed-epoch')
    this = mechanism(c, upper, most, claim)
    found[name] = guarantee([this], delta)
    say(f'  {kind}, gap {gap}, k {most}: sensitivity {lower} to {upper}')
    least = lower * claim['clients_per_unit'] * (1 - SAME)
    require(kind == 'cyclic-poisson' or claim['sensitivity'] >= least,
            f'sensitivity={claim["sensitivity"]}: is below {least}')
  cost = check_cohorts(cohorts, np.abs(c.T @ c), kind, gap, most)
  found['observed'] = guarantee([mechanism(c, cost, most, claim)], delta)
  if kind == 'cyclic-poisson':
    sigma = claim['z_stddev_per_clip'] / np.linalg.norm(c, axis=0).max()
    profile = poisson_profile(sigma, claim['sampling_prob'], -(-n // gap))
    found['at_most_with_chance'] = guarantee([this], delta, profile)
  elif chance:
    found['delta_with_chance_estimated'] = estimated_delta(claim, c, gap)
  together = known[run['run_id']] = {run['run_id']: this}
  for other in run.get('after') or ():
    path, identity = folder / other['run'], other['run_id']
    if identity not in known:
      verify_run(path, say, known)
    require(identity in known, f'after={identity}: {path} is another run')
    together.update(known[identity])
  found['together'] = guarantee(list(together.values()), found['delta'])
  for key in ('planned', 'observed', 'together'):
    at_least(key, (report.get(key) or {}).get('epsilon'), found[key])
  at_least('epsilon', report.get('epsilon'), 0 if chance else found['epsilon'])
  if n == len(whole) and not chance:
    for key in ({*claim} & {*report}) - {'adaptive_clip'}:
      same(key, report[key], claim[key], 'run.json has')
  if plan['bound'] and not chance:
    at_least('bound', plan['bound']['epsilon'], found['planned'])
  say(f'  {found}')
  return {**found, 'epsilon': found['together']}

def verify_report(path, say, _):
  """Returns what a report claims, if its figures prove no more than that."""
  report = read_json(path, 'tff_bandmf.public_report', 'tff_bandmf.report')
  public, total = 'once_in' in report, 0.0
  runs = report['runs'] if public else [report]
  for run in runs:
    rho, noise, epsilon = run['rho'], run['noise_multiplier'], run['epsilon']
    require(rho and noise, 'rho: without noise nothing is guaranteed')
    if public:  # Three digits, rounded to the safe side.
      rho -= 10 ** (math.floor(math.log10(rho)) - 2)
      noise += 10 ** (math.floor(math.log10(noise)) - 2)
    if run['amplification'] == 'none':
      at_least('rho', run['rho'], 0.5 / noise**2)
    else:
      epsilon = {**run, **(run.get('sampling') or {})}['epsilon_unamplified']
    total += rho
    bound = zcdp_epsilon(rho, run['delta'])
    at_least('epsilon', epsilon, bound)
    say(f'rho {rho}: epsilon {epsilon}, at least {bound}')
  if all(run['amplification'] == 'none' for run in runs):
    epsilon = (report['together'] or report)['epsilon']
    at_least('together', epsilon, zcdp_epsilon(total, report['delta']))
    at_least('epsilon', report['epsilon'], epsilon if public else 0)
  return {'epsilon': epsilon, 'delta': report['delta']}

def verify(path, say=lambda line: None):
  """Returns what holds; raises AssertionError for what does not."""
  path = pathlib.Path(path)
  try:
    with np.errstate(all='ignore'):
      return (verify_run if path.is_dir() else verify_report)(path, say, {})
  except AssertionError:
    raise
  except Exception as error:  # Whatever a damaged file makes of the above.
    line = f'path={path}: cannot be checked, {type(error).__name__} {error}'
    raise ValueError(' '.join(line.split())[:300]) from error

def verdict(result):
  unseen = __doc__[__doc__.index('Not checked'):]
  return f'{unseen}VERIFIED epsilon={result["epsilon"]} delta={result["delta"]}'

if __name__ == '__main__':
  try:
    print(verdict(verify(''.join(sys.argv[1:2]), print)))
  except AssertionError as failure:
    sys.exit(print('DOES NOT HOLD:', failure) or 1)
  except ValueError as failure:
    sys.exit(print(failure, file=sys.stderr) or 2)
