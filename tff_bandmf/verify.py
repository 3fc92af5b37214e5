"""Checks the claim of a run of tff_bandmf, without code of the library.

    python verify.py RUN_DIR        prints each step, VERIFIED and an epsilon
    python verify.py public.json    checks that the figures of a report agree
The file needs Python 3.9 or later and NumPy. A run releases C^-1 (C G + Z): row
t of G is the sum of the clipped updates of round t, C is lower triangular, and
Z has independent normals of deviation z; the clip is 1. One unit of privacy
moves C G by at most the sensitivity of C, so a run is one Gaussian mechanism of
mu = sensitivity / z. Exit status 1: a claim fails; 2: nothing can be checked.

Not checked, because no file shows it:
* the key of the noise was random, secret, and used for this run alone;
* the training program clipped, recorded and released as the files say;
* participation did not depend on data, and samples of clients were secret;
* no other data of the clients were used, for tuning too, or released.
"""

# fmt: off
import collections, functools, hashlib, json, math  # noqa: E401, I001
import itertools, pathlib, sqlite3, sys, types  # noqa: E401
import numpy as np
FILES = ('run.json', 'plan.json', 'strategy.json')
MOST_ROUNDS = 4096  # C is a dense array of at most this size.
SAME, CLOSE, U = 1e-9, 1e-5, 2.0**-53  # Two tolerances; rounding of float64.
NOTES = '''unit_of_privacy data not_covered side_releases population process
  clients_left tuning model_selection pre_training key_after owner contact date
  model intended_use region sector highest_client title'''.split()  # Editable.
OPEN = 'horizon', 'sampling_prob', 'groups', 'clients_per_round', 'delta'
def require(condition, line, kind=AssertionError):
  if not condition:
    raise kind(line)
def same(name, value, other, where):
  numbers = {type(value), type(other)} <= {int, float}
  close = numbers and math.isclose(value, other, rel_tol=SAME)
  require(close or value == other, f'{name}={value}: {where} {other}')
def at_least(name, value, bound, close=CLOSE):
  require(value is None or value >= bound * (1 - close),
          f'{name}={value}: is below {bound}, which was found here')
# 1. The matrix C, by its definition.
def power(exponent, count):  # The first coefficients of (1 - x)^-exponent.
  steps = np.arange(1.0, count)
  return np.cumprod(np.r_[1.0, (steps - 1 + exponent) / steps])
# First column of Toeplitz C, or of C^-1 for the last four; p: parameters.
COLUMNS = {
  'identity': lambda p, n: [1.0],
  'banded-toeplitz': lambda p, n: p['coefficients'],
  'banded-sqrt': lambda p, n: power(0.5, p['bands']),
  'banded-fractional': lambda p, n: power(p['alpha'], p['bands']),
  'inverse-plus-constant': lambda p, n: (
    (1 / np.arange(1, p['bands'] + 1) + p['constant']) / (1 + p['constant'])),
  'sqrt-toeplitz': lambda p, n: power(0.5, n),
  'lti': lambda p, n: power(0.5, n) * (1 - p['nu']) ** np.arange(n),
  'blt': lambda p, n: np.r_[1.0, sum(
    o * np.power(t, np.arange(n - 1)) for o, t in zip(p['omega'], p['theta']))],
  'dp-cgd': lambda p, n: [1.0, -p['lambda']],
  'banded-inverse': lambda p, n: p['inverse_coefficients'],
  'banded-inverse-sqrt': lambda p, n: power(-0.5, p['inverse_bands']),
  'banded-inverse-fractional': lambda p, n: power(
    -p['alpha'], p['inverse_bands'])}
def tree(arity, n):  # (C^T C)[s, t] counts complete nodes above s and t.
  gram, t = 0, np.arange(n)
  for size in [arity**j for j in range(n.bit_length()) if arity**j <= n]:
    node = np.where(t < n - n % size, t // size, -1 - t)
    gram = gram + (node[:, None] == node) * (node >= 0)
  return np.linalg.cholesky(gram[::-1, ::-1])[::-1, ::-1].T  # Lower triangle.
def online_tree(n):  # C with the noise of Honaker's prefix sums.
  fresh, nodes, prefix = iter(np.eye(2 * n)), [], []
  for t in range(n):
    v, node = 1.0, next(fresh)
    for _ in range((t ^ (t + 1)).bit_length() - 1):  # Nodes that t ends.
      v = 1 / (1 + 1 / (2 * v))  # Combined variance of 1 (own), 2 v (children).
      node = v * next(fresh) + (1 - v) * (nodes.pop() + node)
    nodes.append(node)
    prefix.append(sum(nodes))
  noise = np.diff(prefix, axis=0, prepend=0)
  return np.linalg.inv(np.linalg.cholesky(noise @ noise.T))
def matrix(strategy):
  """Returns C, [n, n]; for Toeplitz C at most its first MOST_ROUNDS rounds."""
  family, n = strategy['family'].replace('robust', 'banded'), strategy['rounds']
  p = {**strategy.get('arrays', {}), **strategy['parameters']}
  if family in COLUMNS and not p.get('column_normalize'):
    n = min(n, MOST_ROUNDS)
  if type(n) is not int or not 1 <= n <= MOST_ROUNDS:
    raise ValueError(f'rounds={n}: of {family}, {MOST_ROUNDS} at most')
  if family == 'stamped':
    arrays = {name.replace('block.', ''): array for name, array in p.items()}
    block = matrix({**p['block'], 'arrays': arrays})
    c = np.kron(np.eye(-(-n // len(block))), block)[:n, :n]
  elif family == 'banded':
    c = np.zeros((n, n))
    for t, row in enumerate(p['rows']):
      c[t, max(t + 1 - len(row), 0) : t + 1] = row[: t + 1][::-1]
  elif family == 'dense':
    c = np.array(p['values'], float)
  elif 'tree' in family:
    c = tree(p['arity'], n) if family == 'tree' else online_tree(n)
  else:
    column = np.array(COLUMNS[family](p, n), float)[:n]
    column = np.r_[column, np.zeros(2 * n - len(column))]
    c = column[np.arange(n)[:, None] - np.arange(n)]  # Upper triangle: 0.
    c = np.linalg.inv(c) if family in list(COLUMNS)[-4:] else c
  c = np.tril(c)
  c = c / np.linalg.norm(c, axis=0) if p.get('column_normalize') else c
  if c.shape != (n, n) or not np.isfinite(c).all() or np.diag(c).min() <= 0:
    raise ValueError(f'family={family}: has no {n} by {n} matrix')
  return c
# 2. How far one client moves C G.
def bands_of(c):
  return int(1 + np.subtract(*np.nonzero(c)).max())
def largest_sum(value, gap, most):
  """Returns max sum_{j<m} value(j)[t_j], m <= most, for t_j >= `gap` apart."""
  top = largest = 0.0
  for j in range(most):
    best = value(j).copy()
    best[..., gap:] += top[..., :-gap] if j else 0
    top = np.maximum.accumulate(best, axis=-1)
    largest = np.maximum(largest, top[..., -1])
  return largest
def heaviest(arity, n, gap, most):
  """Returns the largest sum, over nodes, of (a client's rounds in the node)^2.
  table[m, a, b]: sum for m rounds in a node, with waits a before, b after."""
  def joined(left, right):
    table = np.full((len(left) + len(right) - 1, gap, gap), -np.inf)
    for m, b in itertools.product(range(len(left)), range(gap)):
      both = left[m, :, b][:, None] + right[:, b, None]
      np.maximum(table[m : m + len(both)], both, table[m : m + len(both)])
    return table[: most + 1][np.isfinite(table[: most + 1]).any((1, 2))]
  node, wait = np.full((2, gap, gap), -np.inf), np.arange(gap)
  node[0, wait, np.maximum(wait - 1, 0)], node[1, 0, -1] = 0, 1
  forest = np.where(np.eye(gap), 0, -np.inf)[None]  # Grows to the left.
  while n:
    for _ in range(n % arity):
      forest = joined(node, forest)
    n //= arity
    node = functools.reduce(joined, [node] * arity) if n else node
    node = node + np.arange(len(node))[:, None, None] ** 2.0
  return forest[:, 0].max()
def sensitivity(c, gap, most, fixed=False, arity=None):
  """Returns bounds (lower, upper), equal if exact. Let X = C^T C. The cost of
  rounds P, the sum of |X[s, t]| over s and t in P, bounds the squared norm of
  the sum of columns P of C, and equals it if X >= 0. A client's round t after j
  others adds at most X[t, t] + 2 sum_{0<i<=j} max_{s <= t - i gap} |X[s, t]|. A
  dynamic programme maximises the sum; rounds `gap` apart give `lower`."""
  n, signed, x = len(c), c.T @ c, np.abs(c.T @ c)
  epochs = [np.ix_(*[np.arange(t, n, gap)[:most]] * 2)
            for t in range(gap if most * gap >= n else n)]
  lower, upper = (max(y[each].sum() for each in epochs) for y in (signed, x))
  if not fixed:
    t, nearest = np.arange(n), np.maximum.accumulate(x, axis=0)
    s = t - gap * np.arange(most)[:, None]
    costs = np.where(s < 0, -np.inf, 2 * nearest[s, t])
    costs[0] = np.diag(x)
    upper = largest_sum(costs.cumsum(0).__getitem__, gap, most)
    lower = upper if bands_of(c) <= gap else lower
    if upper > lower * (1 + SAME) and most * n * n < 4e9:  # [BandMF23, Alg 4].
      by_row = largest_sum(lambda j: x, gap, most)
      upper = min(upper, largest_sum(lambda j: by_row, gap, most))
  if arity and upper > lower * (1 + SAME) and gap * n * n < 4e9:
    upper = min(upper, heaviest(abs(arity), n, gap, most))
    lower = upper if arity > 0 else lower  # -2: releases are sums of nodes.
  return lower**0.5, max(lower, upper) ** 0.5
# 3. Epsilon of a Gaussian mechanism, rounded up.
def tail(x):
  return math.erfc(x / math.sqrt(2)) / 2  # P[Z > x]; relative error 1e-12.
def gaussian_delta(epsilon, mu):  # The last term covers rounding.
  first = tail(epsilon / mu - mu / 2)
  second = math.exp(epsilon) * tail(epsilon / mu + mu / 2)
  return first - second + 1e-12 * (first + second)
def smallest(holds, low=0.0, high=0.01):  # Least x with holds(x), from above.
  while high <= 700 and not holds(high):
    low, high = high, 1.1 * high
  while high <= 700 and high - low > 1e-10 * high:
    low, high = (low, mid) if holds(mid := (low + high) / 2) else (mid, high)
  return high if high <= 700 else math.inf
# 4. The cost of integers y = rint(c z + m), as in docs/reference/arithmetic.md.
def mechanism(c, sens, k, claim):  # sens: for a client of k rounds.
  n, back, units = len(c), np.abs(np.linalg.inv(c)), claim['clients_per_unit']
  c, bands, diagonal = np.abs(c), bands_of(c), np.diag(c)
  # Largest deviation of y, a bound for m too, over the deviation of c z.
  rho = float((np.linalg.norm(back, axis=-1) * diagonal).max())
  # Weights of past y are cut, so that sums of 12 deviations fit 53 bits.
  weights = (c.sum(-1) / diagonal).max() - 1
  cut = 2 * U * 12 * 2.0**17 * rho * weights * bands**0.5 * diagonal.max()
  off = (n + 64) * U * c.sum(0).max() * back.sum(0).max()
  rounding = (8 * min(k, bands) * n + 1000 * k) * U + off / (1 - min(off, 0.5))
  return types.SimpleNamespace(
    mu=units * (sens + k * cut) * (1 + rounding) / claim['z_stddev_per_clip'],
    touched=n if 'amplification' in claim else min(n, units * k * bands),
    few=int((math.log(n) + 24 * math.log(10)) / 0.15), d=claim['dimension'],
    rho=rho, f=math.sqrt(n) * rho * diagonal.max() / diagonal.min(),
    shift=2.0**-44 * rho)  # Dozens of roundings of 14 deviations.
def alpha_of(run, cells, m, part):  # alpha of Theorem 2; m: mean |m_t| / rho.
  width, words = 2.0**-17, 2.0**-128
  def bad(x):  # 2 (Q(x - e) + spacing); e is rounded up.
    return 2 * (tail(x - U * (100 + 24 * run.rho) - run.shift) + words)
  if cells * bad(13) > part:
    return math.inf
  last = smallest(lambda x: cells * bad(x) <= part)
  extended = smallest(lambda x: tail(x) < 2.0**-25) + 2 * width
  edges = np.unique(np.r_[np.linspace(0, last, 4097), min(last, extended)])
  mass, a = -2 * np.diff([tail(x) for x in edges]), edges[1:]
  spacing = np.where(a <= extended, 2.0**-64, words) * math.sqrt(2 * math.pi)
  g = np.maximum(8 * a, np.minimum(12, 7.2 + 54 * (a - 0.9)))
  def r(m):
    edge = U * (g + 3 * a + 1.3 + 2 * m * run.rho)
    fine = (2 * edge + spacing * np.exp(a * a / 2)) / width
    fine += 57 * U + 2 * U * run.f * (a + 1.5)
    fine *= np.exp((width + 2 * edge + 2 * run.shift) * (a + 2 * width))
    return fine + 2 * (a + 1) * run.shift
  square, log_worst = mass * r(m) ** 2, -np.log1p(-np.minimum(r(12), 1))
  def alpha(order):
    moment = (square * np.exp((order + 2) * log_worst)).sum()
    growth = (1 + order) * (order / 2 * moment + bad(last))
    return (cells * growth + math.log(1 / (3 * part))) / order
  return min(map(alpha, 2.0 ** np.arange(0, 30, 0.1)))
def guarantee(runs, delta, profile=None):  # Epsilon of runs together.
  mu = math.sqrt(sum(run.mu**2 for run in runs)) * (1 + 1e-12)
  profile = profile or (lambda epsilon: gaussian_delta(epsilon, mu))
  epsilon, alpha = smallest(lambda e: profile(e) <= delta), 0.0
  beta = share = 1e-4 * delta / (1 + np.exp(epsilon))
  for run in runs:
    d, part = run.d or 2.0**33 / run.touched, share / 4 / len(runs)
    m = 12 if d <= run.few else math.sqrt(2)  # The mean |m| in deviations.
    alpha += max(alpha_of(run, run.touched * min(run.few, d), 12, part),
                 alpha_of(run, run.touched * d, m, part))
    beta += 2e-24 + 4 * d * run.touched * tail(12)
  return float(2 * alpha + smallest(lambda e: np.exp(alpha) * profile(e) + beta
                                    * (1 + np.exp(alpha + e)) <= delta))
# 5. Cohorts that are sampled.
def poisson_profile(sigma, q, count, delta):
  """Returns a function from epsilon to a bound of delta after `count` rounds. A
  client joins each with probability q and moves its sum by 1. Mass between two
  losses of a grid is split among both: merging it is post-processing. Factors
  exp(order loss) keep rounding errors, 1e-14 a round, far below delta."""
  step = math.sqrt(1e-3 * q / sigma / math.sqrt(count))
  far = smallest(lambda a: count * tail(a) <= 1e-6 * delta)
  top = math.log1p(q * math.expm1((sigma * far + 0.5) / sigma**2))
  places = np.arange(math.floor(math.log1p(-q) / step), top // step + 2)
  x = sigma**2 * np.log(np.maximum(np.expm1(step * places) / q + 1, 0)) + 0.5
  without, joined = ([tail(v / sigma) for v in each] for each in (x, x - 1))
  both, without = -np.diff(joined) * q, -np.diff(without)
  both += (1 - q) * without
  high = both - without * np.exp(step * places[:-1])
  high = np.clip(high / -math.expm1(-step), 0, both)
  mass, sides = np.r_[both - high, joined[-1]] + np.r_[0, high], []
  for sign in (1, -1):  # Both orders of neighbours.
    orders, loss = 2.0 ** np.arange(-4, 11, 0.25), sign * step * places
    moments = [count * np.log(mass @ np.exp(order * loss)) for order in orders]
    end, order = min(zip((moments - np.log(delta)) / orders, orders))
    size = 2 ** math.ceil(math.log2(len(x) + 8 * (end + 10 / order) / step))
    tilted = np.zeros(size)
    tilted[(sign * places).astype(int) % size] = mass * np.exp(order * loss)
    tilted = np.fft.irfft(np.fft.rfft(tilted / tilted.sum()) ** count, size)
    sums = np.arange(-size // 2, size // 2) + int(end / step)
    sides.append((step * sums, tilted[sums % size], order, end))
    mass = mass * np.exp(-step * places)
  def profile(e):
    deltas = []
    for sums, tilted, order, end in sides:
      over = sums[sums > e] - e
      gain = tilted[sums > e] @ (np.exp(-order * over) * -np.expm1(-over))
      scale, rest = delta * np.exp(order * (end - np.array([e, sums[-1]])))
      deltas.append(scale * (gain + 1e-14 * (count + 100)) + rest)  # FFT error.
    return max(deltas) + 2 * count * tail(far)
  return profile
def sampled_delta(claim, c, gap, e, count=4000):  # Not a bound.
  rng, n, z = np.random.default_rng(0), len(c), claim['z_stddev_per_clip']
  drawn = np.arange(n) % gap == rng.integers(gap, size=(count, 1))
  p, warm = claim.get('sampling_prob', 1), claim.get('start') == 'warm'
  wait = (rng.random(count) * (1 + warm * (gap - 1) * p) - 1) / p
  for t in range(n if claim['amplification'] == 'b-min-sep' else 0):
    free = (wait <= t) & ~drawn[:, max(t - gap + 1, 0) : t].any(1)
    drawn[:, t] = free & (rng.random(count) < p)
  y = (means := drawn @ c.T) + z * rng.standard_normal((count, n))
  ratio = np.exp((y @ means.T - (means**2).sum(1) / 2) / z**2).mean(1)
  return np.maximum(1 - math.exp(e) / ratio, 0).mean()
# 6. The ledger.
def sha(content):
  if not isinstance(content, bytes):
    content = json.dumps(content, sort_keys=True).encode()
  return hashlib.sha256(content).digest()
def read_ledger(path, ids):  # Returns events by round, cohorts, head.
  require(path.exists(), f'{path}: is missing; only SQLite is read', ValueError)
  wal = pathlib.Path(f'{path}-wal')  # `immutable` writes no file, reads no WAL.
  still = '' if wal.exists() and wal.stat().st_size else '&immutable=1'
  database = sqlite3.connect(f'{path.as_uri()}?mode=ro{still}', uri=True)
  [about], rows, stored = (sorted(database.execute(f'select * from bandmf_{x}'))
                           for x in ('ledger', 'events', 'rounds'))
  database.close()  # about: row, format, run, noise key, name key, events, head
  require(about[:4] == (0, 3, *ids), 'ledger: is of another run than run.json')
  head, events = sha(['bandmf ledger', *about[1:5]]), {e[1]: [] for e in rows}
  for i, (_, t, kind, digest, z, tested, _) in enumerate(rows):
    texts = [value if value is None else value.hex() for value in (digest, z)]
    head = sha([head.hex(), i, t, kind, *texts, bool(tested)])
    row = (i, t, kind, digest, z, bool(tested), head)
    require(rows[i] == row, f'ledger: event {i} was changed')
    events[t].append(row[2:6])
  require(about[5:] == (len(rows), head), 'ledger: lacks its last events')
  good = [t for t, *_ in stored] == sorted(events) == list(range(len(events)))
  require(good, 'ledger: lacks a round')
  cohorts = [np.frombuffer(cohort, '<i8') for *_, cohort in stored]
  for t, highest, cohort in stored:
    digests = {each[1] for each in events[t] if each[0] == 'started'}
    require(digests == {sha(b'%d\n' % highest + cohort)},
            f'ledger: the cohort of round {t} was changed')
  return events, cohorts, head.hex()
def check_cohorts(cohorts, c, kind, gap, most):  # Observed sensitivity.
  rounds, costs, x = collections.defaultdict(list), [0.0], np.abs(c.T @ c)
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
def check_ledger(folder, run, say):  # Each round must follow run.json.
  claim = run['claim']
  ids = [int(run[name], 16) for name in ('run_id', 'noise_key_id')]
  events, cohorts, head = read_ledger((folder / 'ledger.sqlite').resolve(), ids)
  if ended := (folder / 'result.json').exists():
    result = json.loads((folder / 'result.json').read_bytes())
    same('ledger_head', result.pop('ledger_head'), head, 'the ledger ends with')
    require(events[max(events)][-1][:2] == ('ended', sha(result)),
            'result.json: its results are not those of the ledger')
    require('budget' in claim.values() or len(events) == claim['rounds'],
            f'rounds={len(events)}: it ended before the last of them')
  first, *lines = (folder / 'metrics.csv').read_text().splitlines(True)
  rows = {int(x.split(',')[0]): sha((first + x).encode()) for x in lines}
  require({*rows} <= {*events}, 'ledger: lacks a round of metrics.csv')
  fixed = [{name: run[name] for name in {*run} - {*NOTES}}] + [
    sha((folder / name).read_bytes()).hex() for name in FILES[1:]]
  least = claim['z_stddev_per_clip'] * claim['l2_norm_clip'] * (1 - 1e-6)
  for t, each in events.items():
    digests = collections.defaultdict(list)
    for kind, digest, z, tested in each:
      digests[kind].append(digest)
      good = z is None and kind != 'finished' or tested and z >= least
      require(good, f'round {t}: noise {z} was not tested, or is below {least}')
    require(digests['enforced'] == [sha(fixed)] * len(digests['started']),
            f'round {t}: began with another run.json, plan.json, strategy.json')
    require(len(set(digests['finished'])) < 2, f'round {t}: was released twice')
    good = digests['row'][-1:] in ([], [rows.get(t, sha(b''))])
    require(good, f'metrics.csv: row {t} differs')
  say(f'{folder}: {len(events)} rounds held to it; the chain ends with {head}' +
      '; nobody recorded the end: its key may exist' * (not ended))
  return cohorts, {event[0] for each in events.values() for event in each}
def verify_run(folder, say, known):  # Adds the run and earlier runs to `known`.
  run, plan, strategy = (read_json(folder / name, f'tff_bandmf.{name[:-5]}')
                         for name in FILES)
  path = folder / 'report.json'
  report = read_json(path, 'tff_bandmf.report') if path.exists() else {}
  claim, amplified = run['claim'], report.get('amplification', 'none') != 'none'
  delta, chance = claim['delta'], 'amplification' in claim
  kind = claim['amplification' if chance else 'participation']
  whole, arity = matrix(strategy), strategy['parameters'].get('arity')
  arity = -2 if strategy['family'] == 'online-tree' else arity
  for key in ('family', 'rounds', 'parameters', 'arrays'):
    same(key, strategy[key], plan['strategy'][key], 'plan.json has')
  request, planned = plan['request'], plan['request']['cohorts']
  clip, size = request['l2_norm_clip'], request['dimension']
  few = request['clients_per_round']  # Fewer than `stands_for` in a simulation.
  adapts = isinstance(clip, dict)  # The indicator adds a coordinate.
  norm = math.hypot(1, clip['fraction_weight'] / 2) if adapts else 1.0
  norm *= float(np.linalg.norm(clip['initial'] if adapts else clip))
  noise = plan['noise_multiplier'] * few / (request['stands_for'] or few)
  asked = {**planned, **request, 'noise_multiplier': noise,
           'l2_norm_clip': norm, 'dimension': size and size + adapts}
  if kind == 'budget':  # A run has at most the participations that fit.
    fit = -(-claim['rounds'] // claim['min_sep'])
    asked['max_participations'] = min(planned['max_participations'] or fit, fit)
  for key in sorted({*asked} & {*claim} | {*planned}):
    value = asked[key] if asked[key] or key not in OPEN else claim.get(key)
    same(key, claim.get(key), value, 'plan.json has')
  z = claim['noise_multiplier'] * claim['sensitivity']
  same('z_stddev_per_clip', claim['z_stddev_per_clip'], z, 'its factors make')
  require(z, f'{folder}: the run added no noise: there is no claim to check')
  cohorts, kinds = check_ledger(folder, run, say)
  for name, digest in report.get('files_sha256', {}).items():
    same(name, sha((folder / name).read_bytes()).hex(), digest, 'differs from '
         'its report; if the run went on, run bandmf report again; that has')
  n, own, upper = len(cohorts), {'delta': delta}, math.inf
  require(0 < n <= len(whole), f'rounds={n}: 1 to {len(whole)}', ValueError)
  gaps = filter(planned.__contains__, ('apart', 'groups', 'bins', 'min_sep'))
  gap = next(filter(None, map(claim.get, gaps)), strategy['rounds'])
  units, size = claim['clients_per_unit'], claim['dimension'] or 1
  good = type(units) is type(size) is int and min(units, size) > 0 < delta < 1
  require(good, f'clients_per_unit={units}, dimension={size}, delta={delta}')
  each = claim['sensitivity'] / units
  for name, c in (('planned', whole), ('epsilon', whole[:n, :n])):
    far = planned.get('min_sep') or gap
    fit = -(-len(c) // far)
    most = min(claim.get('max_participations') or fit, fit)
    lower, above = sensitivity(c, far, most, kind == 'fixed-epoch',
                               arity if c is whole else None)
    if kind == 'budget':  # The noise is for the budget's own limit.
      above, most = each, claim['participations']
    upper = min(upper, above)  # A part of C has no larger norm.
    this = mechanism(c, upper, most, claim)
    own[name] = guarantee([this], delta)
    say(f'  {name}: gap {gap}, k {most}, sensitivity {lower} to {upper}')
    at_least('sensitivity', each, lower * (kind != 'cyclic-poisson'),
             CLOSE if kind == 'budget' else SAME)
  cost = check_cohorts(cohorts, c, kind, gap, most)
  at_least('budget', each if kind == 'budget' else None, cost, SAME)
  own['observed'] = guarantee([mechanism(c, cost, most, claim)], delta)
  drawn = run.get('sampling_key_id') and not kinds & {'incomplete', 'not drawn'}
  require(kind != 'cyclic-poisson' or bands_of(c) <= gap, 'groups: too few')
  good = not amplified or chance and drawn and report['amplification'] == kind
  require(good, 'report.json: cohorts were cut, or chance did not draw them')
  if kind == 'cyclic-poisson' and drawn:
    q, norm = claim['sampling_prob'], np.linalg.norm(c, axis=0).max()
    at_least('sampling_prob', q, planned['sampling_prob'] or (
      gap * claim['clients_per_round'] / claim['population']), SAME)
    profile = q < 1 and poisson_profile(z / norm, q, fit, delta)
    own['with_chance'] = guarantee([this], delta, profile)
    at_least('epsilon', report.get('epsilon'), own['with_chance'], 0.01)
  elif chance and drawn:
    e = (claim['bound'] or report)['epsilon']  # A plan by noise has no bound.
    at_least('epsilon', report.get('epsilon'), e)
    own['delta_with_chance_estimated'] = guess = sampled_delta(claim, c, gap, e)
    require(guess < delta + 0.01, f'bound: its delta is {guess}, about')
  together = known[run['run_id']] = {run['run_id']: this}
  for other in run.get('after') or ():
    path, identity = folder / other['run'], other['run_id']
    _ = identity in known or verify_run(path, say, known)
    require(identity in known, f'after={identity}: {path} is another run')
    together.update(known[identity])
  own['together'] = guarantee(list(together.values()), own['delta'])
  for key in ('planned', 'observed', 'together'):
    at_least(key, (report.get(key) or {}).get('epsilon'), own[key])
  if report.get('epsilon'):
    verify_report(folder / 'report.json', say, None)
    require(report['together'] or len(together) < 2, 'together: is left out')
  at_least('epsilon', report.get('epsilon'), own['epsilon'] * (not amplified))
  if n == strategy['rounds'] and not chance and kind != 'fixed-epoch':
    for key in ({*claim} & {*report}) - {'adaptive_clip'}:
      same(key, report[key], claim[key], 'run.json has')
  return say(f'  {own}') or {**own, 'epsilon': own['together']}
def verify_report(path, say, _):
  """Returns the claim of a report, if its figures imply no larger epsilon."""
  report = read_json(path, 'tff_bandmf.public_report', 'tff_bandmf.report')
  public, total, sure = 'once_in' in report, 0.0, 0.0
  runs, rough = (report['runs'], 0.01) if public else ([report], CLOSE)
  def proved(rho, delta):
    return smallest(lambda e: gaussian_delta(e, math.sqrt(2 * rho)) <= delta)
  for run in runs:
    rho, noise, epsilon = run['rho'], run['noise_multiplier'], run['epsilon']
    require(rho and noise and epsilon, 'epsilon: nothing is guaranteed')
    if run['amplification'] == 'none':
      at_least('rho', rho, 0.5 / noise**2, 2 * rough)
    else:
      epsilon = {**run, **(run.get('sampling') or {})}['epsilon_unamplified']
    at_least('epsilon', epsilon, proved(rho * (1 - rough), run['delta']))
    at_least('delta', report['delta'], run['delta'], SAME)
    total, sure = total + rho * (1 - rough), sure + epsilon
  exact = (report['check'] or {'runs': ()})['runs']  # With earlier runs.
  total = max(total, (1 - SAME) * sum(
    0.5 * (run['more_noise'] / run['noise_multiplier']) ** 2 for run in exact))
  delta, mu = report['delta'], math.sqrt(2 * total)
  if any(run['amplification'] != 'none' for run in runs):
    return {'epsilon': sure, 'delta': min(1, delta * len(runs))}
  epsilon = (report['together'] or report)['epsilon']
  at_least('together', epsilon, proved(total, delta))
  at_least('epsilon', report['epsilon'], epsilon if public else 0)
  for key, x in ('true_positive_rate', 2.32635 - mu), ('right_guess', -mu / 2):
    at_least(key, report['attack'][key], tail(x))  # tail(2.32635) = 1 %.
  return {'epsilon': epsilon, 'delta': delta}
def verify(path, say=lambda line: None):
  """Returns the verified claim; raises AssertionError if a claim fails."""
  path = pathlib.Path(path)
  try:
    with np.errstate(all='ignore'):
      return (verify_run if path.is_dir() else verify_report)(path, say, {})
  except AssertionError:
    raise
  except Exception as error:  # A damaged file can raise any exception.
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
