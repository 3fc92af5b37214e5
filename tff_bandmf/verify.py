"""Checks the claim of a run of tff_bandmf, without code of the library.

    python verify.py RUN_DIR        prints each step, VERIFIED and an epsilon
    python verify.py public.json    checks that the figures of a report agree
The file needs Python 3.9 or later and NumPy. A run releases C^-1 (C G + Z): row
t of G is the sum of the clipped updates of round t, and C is lower triangular.
Z has independent normals of standard deviation z, for a clip of 1. One unit of
privacy moves C G by at most the sensitivity of C. So a run is one Gaussian
mechanism with mu = sensitivity / z. Exit status 1: a claim fails; 2: nothing
can be checked. The check computes each value of each file anew, compares it
with another file, or names it at the end as not checked. `Document` keeps the
list of values that no check compared.
"""

# fmt: off
import collections, functools, hashlib, json, math  # noqa: E401, I001
import decimal, itertools, pathlib, re, sqlite3, statistics, sys  # noqa: E401
import types
import numpy as np
UNSEEN = '''Not checked, because no file shows it:
* the key of the noise was random, secret, and used for this run alone;
* the training program clipped, recorded and released as the files say;
* participation did not depend on data, and samples of clients were secret;
* no other data of the clients were used, for tuning too, or released.
Whoever writes all of these files anew, hashes and ledger too, can claim any
training: other clients, more noise, and so any epsilon. The check then shows
only that the files agree. Compare the head of the ledger's chain with one that
was noted elsewhere while the run went on.'''
FILES = ('run.json', 'plan.json')
MOST_ROUNDS = 4096  # C is a dense array with at most so many rounds.
SAME, CLOSE, U = 1e-9, 1e-5, 2.0**-53  # Tolerances; unit roundoff.
# The notes on a run if its ledger has none.
NOTHING = {'data': 'not stated', 'not_covered': [], 'side_releases': []}
def require(condition, line, kind=AssertionError):
  if not condition:
    raise kind(line)
Range = collections.namedtuple('Range', 'low high')  # The bounds of a number.
Text = collections.namedtuple('Text', 'figures quoted')  # Parts of a sentence.
NUMBER = re.compile(r'(?<![\w^-])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?')
def near(x, close=CLOSE):
  return x if x is None else Range(x * (1 - close), x * (1 + close))
def above(x):  # The library may compute looser bounds.
  return Range(x * (1 - 3 * CLOSE), x * 1.01)
def agrees(value, other):
  numbers = {type(value), type(other)} <= {int, float}
  if isinstance(other, Range):
    return type(value) in (int, float) and other.low <= value <= other.high
  if isinstance(other, Text):  # Exactly these figures, in this order.
    for part in sorted(map(str, other.quoted), key=len, reverse=True):
      require(part in value, f'{value!r}: lacks {part!r}')
      value = value.replace(part, '')
    read = [float(x.replace(',', '')) for x in NUMBER.findall(value)]
    return len(read) == len(other.figures) and all(
      x == y or agrees(x, y if isinstance(y, Range) else near(y))
      for x, y in zip(read, other.figures))
  if numbers and float in (type(value), type(other)):
    return math.isclose(value, other, rel_tol=SAME)
  return type(value) is type(other) and value == other
def same(name, value, other, where):
  shown = other
  if isinstance(other, Range):
    shown = f'{other.low:.9g} to {other.high:.9g}'
  elif isinstance(other, Text):
    shown = f'the figures {[getattr(x, "high", x) for x in other.figures]}'
  require(agrees(value, other), f'{name}={value}: {where} {shown}')
def at_least(name, value, bound, close=CLOSE):
  require(value is None or value >= bound * (1 - close),
          f'{name}={value}: is below {bound}, which was found here')
# 1. The matrix C, by its definition.
def power(exponent, count):  # The first coefficients of (1 - x)^-exponent.
  steps = np.arange(1.0, count)
  return np.cumprod(np.r_[1.0, (steps - 1 + exponent) / steps])
# Maps a family to the first column of its C, or of C^-1 for the last four. The
# arguments are the parameters of the family and the number of rounds.
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
    for _ in range((t ^ (t + 1)).bit_length() - 1):  # Nodes with last leaf t.
      v = 1 / (1 + 1 / (2 * v))  # Mixes variances 1 (node) and 2 v (children).
      node = v * next(fresh) + (1 - v) * (nodes.pop() + node)
    nodes.append(node)
    prefix.append(sum(nodes))
  noise = np.diff(prefix, axis=0, prepend=0)
  return np.linalg.inv(np.linalg.cholesky(noise @ noise.T))
CUSTOM = {'coefficients': 'banded-toeplitz', 'rows': 'banded',
          'inverse_coefficients': 'banded-inverse', 'values': 'dense'}
def family_of(strategy):  # The family whose C has these numbers.
  family = strategy['family'].replace('robust', 'banded')
  if family == 'custom':
    family = CUSTOM.get(next(iter(strategy.get('arrays') or {}), ''), family)
  return family
def matrix(strategy):
  """Returns C, [n, n]; a Toeplitz C is cut to MOST_ROUNDS rounds."""
  family, n = family_of(strategy), strategy['rounds']
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
  """Returns the largest sum_{j<m} value(j)[t_j] over all numbers m <= most and
  all rounds t_0 < t_1 < ... that are at least `gap` apart."""
  top = largest = 0.0
  for j in range(most):
    best = value(j).copy()
    best[..., gap:] += top[..., :-gap] if j else 0
    top = np.maximum.accumulate(best, axis=-1)
    largest = np.maximum(largest, top[..., -1])
  return largest
def heaviest(arity, n, gap, most):
  """Returns the largest sum over nodes of m^2, where m is the number of rounds
  of a client in the node. table[m, a, b] has the sum over a node and the nodes
  below: the client must wait a rounds when the node begins, b when it ends."""
  def joined(left, right):
    table = np.full((len(left) + len(right) - 1, gap, gap), -np.inf)
    for m, b in itertools.product(range(len(left)), range(gap)):
      both = left[m, :, b][:, None] + right[:, b, None]
      np.maximum(table[m : m + len(both)], both, table[m : m + len(both)])
    return table[: most + 1][np.isfinite(table[: most + 1]).any((1, 2))]
  node, wait = np.full((2, gap, gap), -np.inf), np.arange(gap)
  node[0, wait, np.maximum(wait - 1, 0)], node[1, 0, -1] = 0, 1
  forest = np.where(np.eye(gap), 0, -np.inf)[None]  # Nodes join on its left.
  while n:
    for _ in range(n % arity):
      forest = joined(node, forest)
    n //= arity
    node = functools.reduce(joined, [node] * arity) if n else node
    node = node + np.arange(len(node))[:, None, None] ** 2.0
  return forest[:, 0].max()
def sensitivity(c, gap, most, fixed=False, arity=None):
  """Returns (lower, upper), bounds that are equal if the sensitivity is exact.
  Let X = C^T C. The cost of a set P of rounds is the sum of |X[s, t]| over s, t
  in P. It bounds the squared norm of the sum of columns P of C; if X >= 0, both
  are equal. If a client has j rounds before t, round t adds at most X[t, t] + 2
  sum_{0<i<=j} max_{s <= t - i gap} |X[s, t]| to the cost. A dynamic programme
  maximises the sum of such terms. Rounds exactly `gap` apart give `lower`."""
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
    lower = upper if arity > 0 else lower  # An online tree (-2): a bound.
  return lower**0.5, max(lower, upper) ** 0.5
# 3. Epsilon of a Gaussian mechanism, rounded up.
def tail(x):
  return math.erfc(x / math.sqrt(2)) / 2  # P[Z > x]; relative error 1e-12.
def gaussian_delta(epsilon, mu):  # The last term covers rounding.
  first = tail(epsilon / mu - mu / 2)
  second = math.exp(epsilon) * tail(epsilon / mu + mu / 2)
  return first - second + 1e-12 * (first + second)
def smallest(holds, low=0.0, high=0.01):  # Least x with holds(x), rounded up.
  while high <= 700 and not holds(high):
    low, high = high, 1.1 * high
  while high <= 700 and high - low > 1e-10 * high:
    low, high = (low, mid) if holds(mid := (low + high) / 2) else (mid, high)
  return high if high <= 700 else math.inf
# Bound of the probability of four events: y exceeds 16 standard deviations in
# one of 2^60 coordinates, a test of the noise fails, a cohort is too large, or
# rounding moves a mean of sampled cohorts too far.
TAU = 4 * 2.0**60 * tail(16) + 3e-40
@functools.lru_cache(maxsize=256)
def guarantee(mus, delta, profile=None):  # Joint epsilon of runs.
  mu = math.sqrt(sum(mu**2 for mu in mus)) * (1 + 1e-12)
  profile = profile or (lambda epsilon: gaussian_delta(epsilon, mu))
  stops, end = len(mus) * TAU, math.log(max(delta / len(mus) / TAU, 2))
  def holds(e):
    return profile(e) + stops * (1 + math.exp(e)) <= delta
  epsilon = smallest(lambda e: e >= end or holds(e))
  return epsilon if holds(min(epsilon, 700)) else math.inf
def joint(mus, delta, others):
  """Returns a joint epsilon of runs and others; exact if all are Gaussian."""
  mus = (*mus, *(1 / x['noise_multiplier'] for x in others if x[
    'noise_multiplier']))
  rho = sum(x['rho'] or 0 for x in others)
  left = (delta - sum(x['delta'] for x in others)) / (1 + bool(rho))
  if left <= 0:
    return math.inf
  return sum(x['epsilon'] or 0 for x in others) + guarantee(mus, left) + (
    rho + 2 * math.sqrt(rho * math.log(1 / left)))
def claimed(mu, delta, rho=None):
  """Returns the range in which a stated epsilon for mu, or for rho, must be."""
  close = 1e-3 if rho is None else CLOSE
  least = guarantee((mu,), delta)
  most = guarantee((max(mu, math.sqrt(2 * rho)),), delta) if rho else least
  if (1 + math.exp(min(most, 700))) * TAU > 2**-46 * delta:
    most = guarantee((max(mu, math.sqrt(2 * (rho or 0))),), 0.98 * delta)
  return Range(least * (1 - CLOSE), most * (1 + close))
# 4. Numbers that follow from C.
Parts = collections.namedtuple('Parts', 'n bands off errors')
def arithmetic(c):  # The rounding error of C, and errors of prefix sums.
  n, inverse = len(c), np.linalg.inv(c)
  errors = (inverse.cumsum(0) ** 2).sum(1)
  off = (n + 64) * U * np.abs(c).sum(0).max() * np.abs(inverse).sum(0).max()
  return Parts(n=n, bands=bands_of(c), off=off / (1 - min(off, 0.5)),
               errors=(float(errors.mean()), float(errors.max())))
def mu_of(parts, sens, k, claim):  # sens: of one client with k rounds.
  rounding = (8 * min(k, parts.bands) * parts.n + 1000 * k) * U + parts.off
  # PRIVACY: All clients of a unit move the sum together, and rounding could
  # make `sens` too small. Both factors increase it.
  # Guard: verify_numbers_test.test_epsilon_agrees_to_the_printed_digit.
  sens = claim['clients_per_unit'] * sens * (1 + rounding)
  return sens / claim['z_stddev_per_clip']
# 5. Cohorts that are sampled.
def poisson_profile(sigma, q, count, delta):
  """Returns a function from epsilon to a bound of delta after `count` rounds. A
  client joins each round with probability q, and moves its sum by 1. The mass
  between two losses of a grid is split among them. The true mass is a
  post-processing of the split mass, so delta becomes no smaller. Factors
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
def sampled_delta(claim, c, gap, e, count=4000):
  """Returns an estimate of delta, which is not a bound, and its standard error.
  Samples are drawn around `a` times the mean of a client that joins with
  probability q, and are weighted. Densities are sums over all sets of rounds
  that the client can have."""
  rng, n, z = np.random.default_rng(0), len(c), claim['z_stddev_per_clip']
  p, warm = claim.get('sampling_prob', 1), claim.get('start') == 'warm'
  chain, tries = claim['amplification'] == 'b-min-sep', []
  means = c if chain else c @ (np.arange(n)[:, None] % gap == np.arange(gap))
  squares = (means**2).sum(0) / z**2
  def starts(q):  # Probabilities of the first round in which a client may join.
    first = np.r_[1.0, np.full(gap - 1, q * warm)]
    return first / first.sum()
  def log_ratio(a, q, y):  # Density with `a` times the client : without client.
    gains = (a * y - a * a / 2 * squares).T
    if not chain:
      return np.logaddexp.reduce(gains, axis=0) - math.log(gap)
    later = collections.deque([np.zeros(count)] * gap, maxlen=gap)
    for t in reversed(range(n)):  # later[i]: the client is free from t + i.
      joins = gains[t] + math.log(q) + later[gap - 1]
      later.appendleft(np.logaddexp(later[0] + math.log1p(-q), joins))
    each = [np.log(w) + x for w, x in zip(starts(q), later) if w]
    return np.logaddexp.reduce(each, axis=0)
  for q in (p, min(4 * p, 0.5)) if chain else (p,):
    drawn = np.arange(n) % gap == rng.integers(gap, size=(count, 1))
    wait = rng.choice(gap, p=starts(q), size=count)
    for t in range(n if chain else 0):
      free = (wait <= t) & ~drawn[:, max(t - gap + 1, 0) : t].any(1)
      drawn[:, t] = free & (rng.random(count) < q)
    noise = rng.standard_normal((count, n)) @ means / z
    x = (drawn @ c.T) @ means / z**2
    for a in (1, 1.5, 2, 3):
      y = a * x + noise
      loss = log_ratio(1, p, y)
      weight = np.exp(loss - log_ratio(a, q, y))
      value = -np.expm1(np.minimum(e - loss, 0)) * weight
      error = value.std() / math.sqrt(count)
      tries.append((error / max(value.mean(), 1e-300), value.mean(), error))
  return min(each for each in tries if each[1] or each == tries[-1])[1:]
# 6. Files, and which of their values a check compared.
def sha(content):
  if not isinstance(content, bytes):
    content = json.dumps(content, sort_keys=True).encode()
  return hashlib.sha256(content).digest()
def leaves(value, place=()):  # Yields the keys of each scalar or empty part.
  inner = isinstance(value, (dict, list)) and value
  for key in value if isinstance(inner, dict) else range(len(inner or ())):
    yield from leaves(value[key], (*place, key))
  if not inner:
    yield place
class Document:
  """A file's content, and the places (keys) of values that nothing compared."""
  def __init__(self, name, content):
    # PRIVACY: A value that no check compares could be forged. Its place stays
    # in `left` until a check compares the value.
    # Guard: leaves_test.test_key_that_nobody_checks_is_named.
    self.name, self.content, self.left = name, content, set(leaves(content))
    self.words = set()  # Places of texts whose figures were compared.
  def __getitem__(self, key):
    return self.content[key]
  def get(self, *place):
    value = self.content
    for key in place:
      inner = isinstance(value, list) and key < len(value)
      value = value[key] if inner else (
        value.get(key) if isinstance(value, dict) else None)
    return value
  def hold(self, place, expected, where, twin=None):
    """Compares a part with its expected value. Keys that `expected` lacks stay
    unchecked. `twin`: (document, place) of `expected`, if a file has it."""
    value, parts = self.get(*place), ()
    inner = self.get(*place[:-1])
    require(not isinstance(inner, dict) or not place or place[-1] in inner,
            f'{self.name}: lacks {".".join(map(str, place))}')
    if isinstance(value, dict) and isinstance(expected, dict):
      parts = expected
    elif isinstance(value, list) and isinstance(expected, list):
      same('.'.join(map(str, place)) + ' (length)', len(value), len(expected),
           f'{self.name} has this, {where}')
      parts = range(len(expected))
    else:
      same('.'.join(map(str, place)), value, expected,
           f'{self.name} has this, {where}')
    for key in parts:
      self.hold((*place, key), expected[key], where,
                twin and (twin[0], (*twin[1], key)))
    if isinstance(expected, Text):
      self.words.add(place)
    elif not parts and getattr(expected, 'high', 0) != math.inf:  # Bounded.
      self.left.discard(place)
      if twin:
        twin[0].left.discard(twin[1])
  def agree(self, place, other, twin):
    values = self.get(*place), other.get(*twin)
    keys, others = (set(leaves(x)) for x in values)
    require(keys == others, f'{".".join(map(str, place))}: {self.name} and '
            f'{other.name} have other keys, {sorted(map(str, keys ^ others))}')
    self.hold(place, values[1], f'{other.name} has', (other, twin))
  def unchecked(self):
    return sorted({'.'.join(key for key in place if isinstance(key, str)) +
                   ' (words)' * (place in self.words) for place in self.left})
def read_json(path, *names):
  content = json.loads(path.read_bytes(), parse_constant=int)  # Refuses NaN.
  report = 'report' in content['format']
  version = {'strategy': 2, 'plan': 3, 'run': 4}.get(content['format'][11:], 1)
  if content['format'] not in names or content['version'] != version:
    raise ValueError(f'{path.name}: is of another format or version')
  if report:
    digest = content.pop('content_sha256')
    # PRIVACY: An edited report could state a smaller epsilon. Its digest then
    # differs from the digest that it states.
    # Guard: forgery_test.test_forged_report_is_refused.
    require(digest == sha(content).hex(), f'{path.name} was edited after it '
            f'was written: content_sha256={digest} is not its digest')
  document = Document(path.name, content)
  document.left -= {('format',), ('version',)}
  return document
# 7. The ledger.
LEDGER = ('bandmf_ledger', 'bandmf_events', 'bandmf_rounds')
# Columns that no other file confirms: clients, sums, more noise than planned.
CHAINED = 'key', 'digest', 'z_stddev', 'highest', 'cohort', 'payload'
def read_ledger(path, ids):  # Returns events by round, cohorts, head, document.
  require(path.exists(), f'{path}: is missing; only SQLite is read', ValueError)
  wal = pathlib.Path(f'{path}-wal')  # `immutable` writes no file, reads no WAL.
  # PRIVACY: The check would miss events that only the write-ahead log has. If
  # this log has content, it is read.
  # Guard:
  # verify_test.test_events_that_are_only_in_the_write_ahead_log_are_read.
  still = '' if wal.exists() and wal.stat().st_size else '&immutable=1'
  database = sqlite3.connect(f'{path.as_uri()}?mode=ro{still}', uri=True)
  tables = [database.execute(f'select * from {name}') for name in LEDGER]
  document = Document(path.name, {
    name[7:]: {column: name for column, *_ in table.description}
    for name, table in zip(LEDGER, tables)})
  [about], rows, stored = map(sorted, tables)
  database.close()  # about: row, format, run, noise key, name key, events, head
  require(about[:4] == (0, 5, *ids), 'ledger: is of another run than run.json')
  head, events = sha(['bandmf ledger', *about[1:5]]), {
    e[1]: [] for e in rows if e[2] != 'noted'}
  heads, end, notes = {head}, None, dict(NOTHING)
  for i, (_, t, kind, digest, z, tested, text, _) in enumerate(rows):
    texts = [value if value is None else value.hex() for value in (digest, z)]
    head = sha([head.hex(), i, t, kind, *texts, bool(tested), text])
    row = (i, t, kind, digest, z, bool(tested), text, head)
    require(rows[i] == row, f'ledger: event {i} was changed')
    if kind == 'noted':
      notes.update(json.loads(text))
    else:
      events[t].append(row[2:7])
    heads.add(head)
    end = head.hex() if kind == 'ended' else end
  require(about[5:] == (len(rows), head), 'ledger: lacks its last events')
  good = [t for t, *_ in stored] == sorted(events) == list(range(len(events)))
  require(good, 'ledger: lacks a round')
  cohorts = [np.frombuffer(cohort, '<i8') for *_, cohort in stored]
  for t, highest, cohort in stored:
    digests = {each[1] for each in events[t] if each[0] == 'started'}
    require(digests == {sha(b'%d\n' % highest + cohort)},
            f'ledger: the cohort of round {t} was changed')
  document.left = {place for place in document.left if place[-1] in CHAINED}
  return types.SimpleNamespace(
    events=events, cohorts=cohorts, head=head.hex(), document=document,
    heads=heads, end=end, notes=notes,
    kinds=[each[0] for each in sum(events.values(), [])],
    last_client=max([highest for _, highest, _ in stored], default=-1))
def check_cohorts(cohorts, c, kind, gap, most):
  """Returns the observed sensitivity, the number of clients, and the least
  distance and the largest number of rounds of one client."""
  rounds, costs, x = collections.defaultdict(list), [0.0], np.abs(c.T @ c)
  by = gap if kind in ('fixed-epoch', 'cyclic-poisson', 'balls-in-bins') else 1
  for t, cohort in enumerate(cohorts):
    for client in cohort.tolist():
      rounds[client].append(t)
  patterns, apart = set(map(tuple, rounds.values())), []
  for pattern in patterns:
    d = np.diff(pattern)
    good = len(pattern) <= most and (d >= gap).all() and not (d % by).any()
    require(good, f'ledger: rounds {pattern} of a client, not {kind} {gap}')
    costs.append(x[np.ix_(pattern, pattern)].sum())
    apart += [int(d.min())] if len(d) else []
  return (max(costs) ** 0.5, len(rounds), min(apart, default=None),
          max(map(len, patterns), default=0))
def check_metrics(path, ledger):  # Returns the file as columns.
  first, *lines = path.read_text().splitlines(True)
  rows = {int(line.split(',')[0]): line for line in lines}
  events, columns = ledger.events, first.rstrip('\n').split(',')
  require({*rows} <= {*events}, 'ledger: lacks a round of metrics.csv')
  last = len(events) if ledger.ended or not rows else max(rows) + 1
  whole = not rows or [*rows] == list(range(min(rows), last))
  require(whole and len(rows) == len(lines), 'metrics.csv: lacks a row')
  for t in rows:
    digests = [each[1] for each in events[t] if each[0] == 'row'][-1:]
    # PRIVACY: If a row was edited, its digest differs from the ledger's digest.
    # Guard: verify_test.test_row_of_metrics_without_an_event_does_not_hold.
    require(digests == [sha((first + rows[t]).encode())], f'metrics.csv: row '
            f'{t} was edited after it was written, or the ledger has another')
  cells = [line.rstrip('\n').split(',') for line in rows.values()]
  metrics = Document(path.name, dict(zip(columns, map(tuple, zip(*cells)))))
  metrics.left.discard(('round',))
  if rows and 'clients' in columns:  # A cell may be empty.
    sizes = zip(rows, metrics['clients'])
    metrics.hold(('clients',), tuple(
      # PRIVACY: Somebody may have cut clients from the ledger. Then the row of
      # metrics has another number of clients.
      # Guard:
      # verify_test.test_other_cohort_size_than_in_the_ledger_does_not_hold.
      cell and str(len(ledger.cohorts[t])) for t, cell in sizes),
      'cohorts have')
  return metrics
def check_exports(folder, plan, ledger, schema):
  """Compares exports and checkpoints, if they exist; returns the exports."""
  path, documents = folder / 'strategy.json', []
  if path.exists():
    export = read_json(path, 'tff_bandmf.strategy')
    for key in sorted({*export.content, *plan['strategy']} - {'participation'}):
      export.agree((key,), plan, ('strategy', key))
    export.hold(('participation',), schema, 'plan.json makes')
    documents.append(export)
  path = folder / 'result.json'
  if path.exists():
    result = Document(path.name, json.loads(path.read_bytes()))
    require(ledger.ended is not None and sha(result.content) == sha(
      {**ledger.ended, 'ledger_head': ledger.end}),
      'result.json: the ledger ends with other results, or with another head')
    result.left.clear()
    documents.append(result)
  ledger.metrics = None
  if (folder / 'metrics.csv').exists():
    ledger.metrics = check_metrics(folder / 'metrics.csv', ledger)
    documents.append(ledger.metrics)
  try:
    saved = sorted((folder / 'private' / 'checkpoints').glob('*.npz'))
  except PermissionError:  # Only their owner can read checkpoints.
    saved = []
  for path in saved:
    content = path.read_bytes()  # A checkpoint ends with a head and a digest.
    require(sha(content[:-32]) == content[-32:], f'{path.name}: is damaged')
    require(content[-64:-32] in ledger.heads,
            f'{path.name}: does not follow from the rounds in the ledger')
  return documents
def check_ledger(folder, run, claim, say):  # Each round must follow the plan.
  ids = [int(run[name], 16) for name in ('run_id', 'noise_key_id')]
  run.left -= {('run_id',), ('noise_key_id',)}
  ledger = read_ledger((folder / 'ledger.sqlite').resolve(), ids)
  events, ledger.ended = ledger.events, None
  if events and (last := events[max(events)][-1])[0] == 'ended':
    ledger.ended = json.loads(last[4])
  stated = {
    x[4] for each in events.values() for x in each if x[0] == 'enforced'}
  ledger.most = None  # The number of rounds that all rounds stated, if any.
  if len(stated) == 1 and (text := stated.pop()):
    most = json.loads(text)['rounds']
    ledger.most = most if len(events) <= most <= claim['rounds'] else None
  fixed = [dict(run.content), sha((folder / 'plan.json').read_bytes()).hex()]
  run.content.update(ledger.notes)
  ledger.released = []
  for t, each in events.items():
    digests = collections.defaultdict(list)
    for kind, digest, z, tested, _ in each:
      digests[kind].append(digest)
      require(kind != 'finished' or tested, f'round {t}: noise was not tested')
      # PRIVACY: A finished round with little noise could be hidden as a failed
      # round. Only finished rounds may have noise.
      # Guard: verify_test.test_round_of_little_noise_is_not_hidden.
      require(z is None or kind == 'finished', f'round {t}: {kind} has noise')
    text = [x[4] for x in each if x[0] == 'row'][-1:] or [None]
    ledger.released += [(t, json.loads(x)) for x in text if x]
    # PRIVACY: An edited plan could claim a smaller epsilon than the rounds had.
    # Every start of a round must have the digest of the present files.
    # Guard: verify_test.test_forged_file_does_not_hold.
    require(digests['enforced'] == [sha(fixed)] * len(digests['started']),
            f'run.json or plan.json was edited after round {t} began: the '
            'ledger has another digest of them')
    done = digests['finished']
    # PRIVACY: The difference of two sums of one round has no noise.
    # Guard: verify_test.test_round_with_two_results_does_not_hold.
    require(len(done) < 2 or len({*done}) < 2 and None not in done,
            f'round {t}: was released twice, and not with one digest')
  noise = [z for each in events.values() for kind, _, z, *_ in each
           if kind == 'finished']
  require(None not in noise, 'z_stddev: a round has no measured noise')
  ledger.noise = min(noise, default=None)
  say(f'{folder}: {len(events)} rounds held to it; the chain ends with '
      f'{ledger.head}' +
      '; nobody recorded the end: its key may exist' * (ledger.ended is None))
  return ledger
# 8. A run, and the runs before it.
def claim_of(plan):  # The request of a plan, under the names of a claim.
  request, strategy = plan['request'], plan['strategy']
  planned, clip = request['cohorts'], request['l2_norm_clip']
  few = request['clients_per_round']  # Fewer than `stands_for` in a simulation.
  kind = planned.get('amplification') or planned['participation']
  if kind not in ('single', 'cyclic-poisson'):
    key = 'bins' if kind == 'balls-in-bins' else 'min_sep'
    # PRIVACY: A min_sep of 0, or of half a round, would separate no rounds.
    # Guard: verify_test.test_separation_that_is_no_count_is_refused.
    require(type(planned.get(key)) is int and planned[key] > 0,
            f'{key}={planned.get(key)}: must be an integer above 0', ValueError)
  adapts = isinstance(clip, dict)
  norm = math.hypot(1, clip['fraction_weight'] / 2) if adapts else 1.0
  norm *= float(np.linalg.norm(clip['initial'] if adapts else clip))
  noise = plan['noise_multiplier'] * few / (request['stands_for'] or few)
  claim = {**planned, 'family': strategy['family'], 'adjacency': 'zero-out',
           'rounds': strategy['rounds'], 'delta': request['delta'] or 1e-6,
           'clients_per_round': few, 'noise_multiplier': noise,
           'l2_norm_clip': norm, 'adaptive_clip': clip if adapts else None,
           'clients_per_unit': request['clients_per_unit'],
           'bound': plan.get('bound')}
  if planned.get('participation') == 'budget':
    # Only so many participations fit in the rounds.
    fit = -(-request['rounds'] // planned['min_sep'])
    claim['max_participations'] = min(planned['max_participations'] or fit, fit)
    claim['rounds'] = request['rounds']
    claim['horizon'] = planned['horizon'] or strategy['rounds']
  if request['noise_multiplier'] is not None:
    plan.hold(('noise_multiplier',), request['noise_multiplier'], 'it requests')
  if request['epsilon'] is None:
    plan.hold(('bound',), None, 'its request has no epsilon:')
  elif claim['bound']:
    plan.hold(('bound', 'epsilon'), Range(0, request['epsilon'] * (1 + SAME)),
              'it requests')
  require(request['rounds'] == claim['rounds'], f'rounds={request["rounds"]}: '
          f'its C has {claim["rounds"]}')
  return claim, planned
def verify_run(folder, say, known):  # Adds the run and earlier runs to `known`.
  run, plan = (read_json(folder / name, f'tff_bandmf.{name[:-5]}')
               for name in FILES)
  path = folder / 'report.json'
  report = read_json(path, 'tff_bandmf.report') if path.exists() else (
    Document('report.json', {}))
  strategy = Document('plan.json', plan['strategy'])
  (claim, planned), few = claim_of(plan), plan['request']['clients_per_round']
  amplified = (report.get('amplification') or 'none') != 'none'
  delta, chance = claim['delta'], 'amplification' in claim
  kind = claim['amplification' if chance else 'participation']
  whole, arity = matrix(strategy.content), strategy['parameters'].get('arity')
  arity = -2 if strategy['family'] == 'online-tree' else arity
  terms = len(strategy['parameters'].get('coefficients') or (
    strategy.get('arrays', 'coefficients') or ()))
  claim['bands'] = max(bands_of(whole), terms)
  if claim['bands'] == len(whole) < strategy['rounds']:
    claim['bands'] = strategy['rounds']
  if kind == 'cyclic-poisson':
    claim['groups'] = planned['groups'] or claim['bands']
    claim['sampling_prob'] = planned['sampling_prob'] or (
      claim['groups'] * few / planned['population'])
  elif kind == 'b-min-sep' and not planned['sampling_prob']:
    q = few / planned['population']
    claim['sampling_prob'] = q / (1 - (planned['min_sep'] - 1) * q)
  # PRIVACY: A run without noise has no guarantee, so any claim is refused.
  # Guard: verify_test.test_run_without_noise_has_no_claim_to_check.
  require(claim['noise_multiplier'],
          f'{folder}: the run added no noise: there is no claim to check')
  ledger = check_ledger(folder, run, claim, say)
  cohorts = ledger.cohorts
  head = report.get('ledger_head')
  require(head in (None, ledger.head), f'ledger_head={head}: the ledger has '
          'another; if the run went on, or got a note, run bandmf report again')
  for name, digest in (report.get('files_sha256') or {}).items():
    require(sha((folder / name).read_bytes()).hex() == digest,
            f'{name}={digest[:16]}...: it was edited after report.json was '
            'written')
  n, own, upper = len(cohorts), {'delta': delta}, math.inf
  require(0 < n <= len(whole), f'rounds={n}: 1 to {len(whole)}', ValueError)
  # PRIVACY: Releases may have decided when the run stopped. The claim is for
  # the number of rounds that the run stated before, or for all planned rounds.
  # Guard: verify_test.test_run_that_ended_early_has_no_smaller_epsilon.
  n = min(ledger.most or math.inf, len(whole))
  gaps = filter(planned.__contains__, ('apart', 'groups', 'bins', 'min_sep'))
  gap = next(filter(None, map(claim.get, gaps)), strategy['rounds'])
  units = claim['clients_per_unit']
  # PRIVACY: With a unit of no client, or a delta of 1, any claim is true.
  # Guard: verify_test.test_attacker_with_every_hash_gets_no_smaller_epsilon.
  require(type(units) is int and units > 0 < delta < 1,
          f'clients_per_unit={units}, delta={delta}')
  far = planned.get('min_sep') or gap
  parts = {len(whole): arithmetic(whole)}
  parts[n] = parts[len(whole)] if n == len(whole) else arithmetic(whole[:n, :n])
  def fits(rounds):  # The largest number of rounds of a client.
    fit = -(-rounds // far)
    return min(claim.get('max_participations') or fit, fit)
  def bounds(c):
    return sensitivity(c, far, fits(len(c)), kind == 'fixed-epoch',
                       arity if c is whole else None)
  top, highest = math.inf, bounds(whole)
  each = add_noise(claim, ledger, strategy, whole, highest) / units
  claim['participations'] = 1 if kind == 'cyclic-poisson' else fits(len(whole))
  if kind == 'budget':  # A round costs at least its diagonal entry of C^T C.
    count = each**2 / np.square(whole).sum(0).min(where=np.arange(
      len(whole)) < (1 if family_of(strategy.content) in COLUMNS else (
        len(whole))), initial=math.inf)
    stated = report.get('planned', 'participations') or 0
    claim['participations'] = min(strategy['rounds'], stated if (
      abs(stated - count) <= 1) else int(count))
  lower = {len(whole): highest[0]}
  for name, c in (('planned', whole), ('epsilon', whole[:n, :n])):
    most, above = fits(len(c)), highest[1]
    if len(c) not in lower:
      lower[len(c)], above = bounds(c)
    if kind == 'budget':  # The noise is for the limit of the budget.
      above, most = each, claim['participations']
    upper = min(upper, above)  # Fewer rounds have no larger sensitivity.
    this = mu_of(parts[len(c)], upper, most, claim)
    own[name] = guarantee((this,), delta) if c is whole or n < len(whole) else (
      own['planned'])
    say(f'  {name}: gap {gap}, k {most}, sensitivity {lower[len(c)]} to '
        f'{upper}')
    at_least('sensitivity', each, lower[len(c)] * (kind != 'cyclic-poisson'))
    top = upper if c is whole else top
  cost, clients, apart, often = check_cohorts(cohorts, c, kind, gap, most)
  # PRIVACY: A client that spent more than the budget has a larger loss than
  # claimed. No client may exceed the budget.
  # Guard: verify_test.test_client_above_the_budget_is_found.
  at_least('budget', each if kind == 'budget' else None, cost, SAME)
  seen = mu_of(parts[n], cost, most, claim)
  own['observed'] = guarantee((seen,), delta)
  # PRIVACY: Nothing is amplified if a sum lacks drawn clients, or if the key
  # did not draw a cohort.
  # Guard: verify_test.test_cut_cohorts_are_not_amplified.
  drawn = run.get('sampling_key_id') and not (
    {*ledger.kinds} & {'incomplete', 'not drawn'})
  # PRIVACY: If columns of C for two rounds of a client overlap, no theorem on
  # amplification applies.
  # Guard: verify_test.test_files_that_contradict_each_other_do_not_hold.
  overlap = kind in ('cyclic-poisson', 'b-min-sep') and bands_of(c) > gap
  require(not overlap, 'groups: fewer than the bands of C')
  require(not chance or c.min() >= 0, 'family: C has negative entries')
  good = not amplified or chance and drawn and report['amplification'] == kind
  require(good, 'report.json: cohorts were cut, or chance did not draw them')
  if kind == 'cyclic-poisson' and drawn:
    q, norm = claim['sampling_prob'], np.linalg.norm(c, axis=0).max()
    at_least('sampling_prob', q, planned['sampling_prob'] or (
      gap * claim['clients_per_round'] / claim['population']), SAME)
    ratio = claim['z_stddev_per_clip'] / norm
    profile = q < 1 and poisson_profile(ratio, q, -(-n // far), delta)
    own['with_chance'] = guarantee((this,), delta, profile)
    at_least('epsilon', report.get('epsilon'), own['with_chance'], 0.01)
  elif chance and drawn and (claim['bound'] or report.content):
    # A plan whose request has a noise multiplier has no bound.
    e = (claim['bound'] or report)['epsilon']
    at_least('epsilon', report.get('epsilon'), e)
    guess, error = sampled_delta(claim, c, gap, e)
    own['delta_with_chance_estimated'] = guess
    # PRIVACY: If the estimate of delta is far above the claim, the claim is
    # false.
    # Guard:
    # verify_test.test_sampled_claim_of_a_small_delta_is_compared_relatively.
    require(guess - 5 * error <= delta, f'bound: its delta is {guess}, about')
  facts = types.SimpleNamespace(
    **vars(ledger), folder=folder, kind=kind, chance=chance, gap=gap,
    claim=claim, z=claim['z_stddev_per_clip'],
    units=units, whole=whole, rounds=n, parts=parts, fits=fits, own=own,
    lower=lower, upper=top, seen=seen, clients=clients, apart=apart,
    often=often, cost=cost, drawn=drawn, delta=delta)
  facts.planned = mu_of(parts[len(whole)], each, fits(len(whole)), claim)
  check_claim(run, plan, facts)
  schema = {**claim, 'participation': {
    'cyclic-poisson': 'single', 'balls-in-bins': 'fixed-epoch'}.get(
      kind, 'min-sep'), 'min_sep': gap} if chance else claim
  keys = 'participation min_sep max_participations apart horizon'.split()
  keys = keys[:{'single': 1, 'budget': 5}.get(schema['participation'], 3)]
  exports = check_exports(folder, plan, ledger, {
    key: schema.get(key) for key in keys})
  facts.metrics = ledger.metrics
  still = ledger.ended is None and n < len(whole)  # It may state more rounds.
  # PRIVACY: A run that goes on would add to the loss of all runs together. It
  # counts with all its planned rounds.
  # Guard: run_until_test.test_open_run_counts_as_planned_in_a_composition.
  composed = this if kind == 'budget' or not still else mu_of(
    parts[len(whole)], top, fits(len(whole)), claim)
  known[run['run_id']] = {run['run_id']: composed}
  facts.together, left = {run['run_id']: composed}, {}
  for i, other in enumerate(run.get('after') or ()):
    path, identity = folder / other['run'], other['run_id']
    if identity not in known:
      before = verify_run(path, say, known)['not_checked']
      left.update({f"{other['run']}/{x}": before[x] for x in before})
    require(identity in known, f'after={identity}: {path} is another run')
    run.left -= {('after', i, key) for key in other}
    facts.together.update(known[identity])
  known[run['run_id']].update(
    {x: y for x, y in facts.together.items() if x != run['run_id']})
  others = report.get('other_releases') or []
  own['together'] = own['epsilon'] if len(facts.together) < 2 and not (
    others) else joint(tuple(facts.together.values()), delta, others)
  if report.content:
    check_report(report, run, plan, facts)
    if report['epsilon'] is not None:
      check_figures(report)
  documents = run, plan, *exports, report, ledger.document
  own['not_checked'] = {x.name: x.unchecked() for x in documents} | left
  unread = sorted({x.name for x in folder.iterdir()} - {
    *own['not_checked'], 'ledger.sqlite-wal', 'ledger.sqlite-shm'})
  own['not_read'] = unread
  say(f'  { {x: own[x] for x in own if x[:4] != "not_"} }')
  return {**own, 'epsilon': own['together']}
def add_noise(claim, ledger, strategy, whole, bounds):
  """Adds sensitivity and noise to the claim; returns the sensitivity. If both
  bounds agree, they are the sensitivity. Otherwise, the sensitivity follows
  from the noise in the ledger; the caller compares it with the lower bound."""
  lower, upper = bounds
  if claim.get('amplification') == 'cyclic-poisson':
    lower = upper = float(np.linalg.norm(whole, axis=0).max())
  claim['exact'] = upper <= lower * (1 + SAME) and 'budget' not in (
    claim.values()) and len(whole) == strategy['rounds']
  sens = lower * claim['clients_per_unit']
  if not claim['exact'] and ledger.noise:
    sens = ledger.noise / claim['l2_norm_clip'] / claim['noise_multiplier']
  sens = float(sens)
  z = claim['noise_multiplier'] * sens
  claim.update(sensitivity=sens, z_stddev_per_clip=z)
  require(not ledger.kinds.count('finished') or agrees(
    ledger.noise / claim['l2_norm_clip'], near(z, 2e-6)),
    f'z_stddev={ledger.noise}: a round has less noise than the claim, '
    f'{z * claim["l2_norm_clip"]}, or all rounds have more')
  return sens
def check_claim(run, plan, facts):
  """Checks the population of the ledger, and the bound of plan.json."""
  claim, population, n = facts.claim, run.get('population'), len(facts.whole)
  if population is not None:
    require(facts.clients <= population, f'population={population}: the ledger '
            f'has {facts.clients} clients')
    if facts.chance:
      run.hold(('population',), claim['population'], 'plan.json has')
  z = plan['noise_multiplier'] * claim['sensitivity']  # For `stands_for`.
  this = mu_of(facts.parts[n], claim['sensitivity'] / facts.units, claim[
    'participations'], {**claim, 'z_stddev_per_clip': z})
  facts.simulated = guarantee((this,), facts.delta)
  if not facts.chance and claim['bound'] and n == plan['strategy']['rounds']:
    plan.hold(('bound', 'epsilon'), claimed(this, facts.delta),
              'C and the noise make')
    exact = near(facts.delta, SAME)
    plan.hold(('bound',), {'failure_probability': 0.0, 'samples': 0,
              'seed': None, 'estimate': exact, 'upper': exact},
              'nothing is sampled, so')
# 9. Reports: each figure against others, and against the run if it is there.
DELTAS = 1e-5, 1e-6, 1e-8, 1e-10, 1e-12  # A page states epsilon at these.
FIXED = 'a number that was fixed before its first round'  # Fewer than planned.
def three(x, up=True):  # Three digits, as in a public report.
  rounding = decimal.ROUND_CEILING if up else decimal.ROUND_FLOOR
  return float(decimal.Context(3, rounding).create_decimal(repr(float(x))))
def rounded(low, high, public, up=True):  # The range of a figure of a report.
  if public:
    low, high = three(low, up), three(high, up)
  return Range(low * (1 - SAME), high * (1 + SAME))
def attack(epsilon, delta, mu):  # Bounds for guesses of membership.
  normal, grown = statistics.NormalDist(), math.exp(min(epsilon, 700))
  member = min(grown * 0.01 + delta, 1 - (0.99 - delta) / grown)
  far = (grown - 1 + 2 * delta) / (grown + 1)
  if mu:
    member = min(member, normal.cdf(normal.inv_cdf(0.01) + mu))
    far = min(far, math.erf(mu / 8**0.5))
  return member, (1 + far) / 2
def check_attack(report, low, high):  # Two lists of arguments of `attack`.
  ends = [[min(100, math.ceil(100 * x * (1 + sign * 1e-5))) for x in attack(*y)]
          for sign, y in ((-1, low), (1, high))]
  member, guess = (Range(x / 100 - SAME, y / 100 + SAME) for x, y in zip(*ends))
  report.hold(('attack',), {
    'false_positive_rate': 0.01, 'true_positive_rate': member,
    'right_guess': guess}, 'epsilon and rho make')
  shown = [100 * report['attack'][x] for x in (
    'true_positive_rate', 'right_guess')]
  report.hold(('attack', 'sentence'), Text((1, shown[0], shown[1]), (
    '1/2',)), 'its figures are')
def toeplitz(run):  # The first column of C, as a page states it; None: unknown.
  series, n = run['series'] or {}, run['rounds']
  series = series if n <= 2**16 else {}
  for family, key in (('banded-toeplitz', 'coefficients'), ('blt', 'omega'),
                      ('banded-inverse', 'inverse_coefficients')):
    if key in series:
      column = np.array(COLUMNS[family](series, n), float)[:n]
      column = np.r_[column, np.zeros(n - len(column))]
      if family != 'banded-inverse':
        return column
      inverse = np.r_[1.0, np.zeros(n - 1)] / column[0]
      for t in range(1, n):
        near_t = column[1 : min(t + 1, len(series[key]))]
        inverse[t] = -near_t @ inverse[t - 1 :: -1][: len(near_t)] / column[0]
      return inverse
  if 'decay' in series:
    return power(0.5, n) * series['decay'] ** np.arange(n)
  return None
def check_page(report, public):
  """Checks the numbers from which a page recomputes its claims; returns mu."""
  page, mus = report['check'], []
  for i, run in enumerate(page['runs']):
    at, most = ('check', 'runs', i), run['max_participations'] or math.inf
    report.hold((*at, 'z_stddev_per_clip'), near(
      run['sensitivity'] * run['noise_multiplier'], SAME), 'its factors make')
    report.hold((*at, 'sensitivity_error'), Range(0, 1.01), 'rounding costs')
    if public:  # Three digits do not show a small error.
      report.left.add((*at, 'sensitivity_error'))
    column, n = toeplitz(run), run['rounds']
    gap = n if run['participation'] == 'single' else run['min_sep']
    require(run['participation'] in ('single', 'min-sep', 'budget'),
            f'participation={run["participation"]}: is unknown')
    require(type(run['normalized']) is bool, 'normalized: must be a bool')
    if column is not None and run['participation'] in ('single', 'min-sep'):
      norms = np.sqrt(np.cumsum(column**2)) if run['normalized'] else np.ones(n)
      total, fit = np.zeros(n), min(most, -(-n // gap))
      for t in range(0, n, gap)[:fit]:
        total[t:] += column[: n - t] / norms[n - t - 1]
      least = float(np.linalg.norm(total)) * run['clients_per_unit']
      falls = column.min() >= 0 and np.diff(column).max(initial=0) <= 0
      exact = (falls or not column[gap:].any()) and not run['normalized']
      report.hold((*at, 'sensitivity'), near(least, 1e-8) if exact else Range(
        least * (1 - 1e-8), math.inf), 'its C makes')
      if exact:
        used = 'series', 'participation', 'clients_per_unit'
        report.left -= {x for x in report.left if x[:3] == at and x[3] in used}
    report.left -= {(*at, key) for key in ('noise_multiplier', 'sensitivity')}
    mus.append((1 + run['sensitivity_error']) / run['noise_multiplier'])
  for i, claim in enumerate(page['claims']):
    mu = math.sqrt(sum(mus[j] ** 2 for j in claim['runs']))
    own = claimed(mu, claim['delta'], mu**2 / 2)
    report.hold(('check', 'claims', i), {
      'epsilon': rounded(own.low, own.high, public),
      'rho': rounded(mu**2 / 2 * (1 - 1e-8), mu**2 / 2 * (1 + 1e-8), public),
      'runs': [j if j in range(len(mus)) else None for j in claim['runs']],
    }, 'the noise makes')
  report.hold(('check', 'digits'), 3 if public else 17, 'a report has')
  return mus
def check_report(report, run, plan, facts):
  """Checks report.json against the run that it is beside."""
  claim, delta, units, z = facts.claim, facts.delta, facts.units, facts.z
  request, strategy = plan['request'], Document('plan.json', plan['strategy'])
  unit = run.get('unit_of_privacy') or (
    'one client' if units == 1 else 'one unit of privacy')
  n, all_rounds, kind = facts.rounds, len(facts.whole), facts.kind
  amplified, result = report['amplification'] != 'none', facts.ended
  adaptive = claim.get('adaptive_clip')
  stopped = facts.fits(n) < facts.fits(all_rounds)
  spread = 'min-sep' if facts.chance or stopped or kind == 'fixed-epoch' else (
    kind)
  most = claim['participations'] if kind == 'budget' else facts.fits(all_rounds)
  started = facts.fits(n) if stopped else most
  floor, top = facts.lower[all_rounds] * units, facts.upper * units
  report.hold(('planned', 'sensitivity'), near(claim['sensitivity'], SAME) if (
    spread == kind or stopped and kind == 'min-sep') else Range(
      floor * (1 - SAME), math.inf if kind == 'fixed-epoch' else (
        top * (1 + SAME))), 'the run has')
  planned = report['planned']['sensitivity']
  page = report.get('check')
  spot = page and page['claims'][0]['runs'][0]
  held = page['runs'][spot]['sensitivity'] if page else planned * math.sqrt(
    report['rho'] / report['planned']['rho'])
  low = facts.lower[n] * units if stopped else planned
  require(agrees(held, Range(low * (1 - SAME), planned * (1 + SAME))),
          f'sensitivity={held}: report.json has this, the run {low} or more')
  parts = facts.parts[all_rounds]
  of_plan, this = (mu_of(parts, x / units, y, claim) for x, y in (
    (planned, most), (held, started)))
  def figures(this, s, *place):
    inner = report.get(*place)  # None claims nothing.
    stated = {} if inner.get('epsilon', 0) is None else {
      'epsilon': claimed(this, delta, inner.get('rho'))}
    return {'noise_multiplier': near(z / s), 'delta': delta,
            'rho': above(this**2 / 2), **stated}
  own = guarantee((this,), delta)
  epsilon = page['claims'][0]['epsilon'] if page else (
    report['sampling']['epsilon_unamplified'] if amplified else None)
  at_least('epsilon', epsilon, own)
  led = {**figures(this, held), 'sensitivity': near(held, SAME)}
  if amplified:  # Without a bound, only the estimate decides.
    bound = claim.get('bound') or {}
    chance = facts.own.get('with_chance')
    if bound:
      led['epsilon'] = near(bound['epsilon'])
    elif chance:  # The claim is for all planned rounds.
      led['epsilon'] = Range(chance * 0.99, (
        chance * 1.01 if n == all_rounds else math.inf))
    else:
      del led['epsilon']
    led['sensitivity'], led['noise_multiplier'] = (
      claim[x] for x in ('sensitivity', 'noise_multiplier'))
  done = len(facts.cohorts)
  kinds = [each[0] for each in facts.events[done - 1]]
  verdict = False if 'not drawn' in facts.kinds else (
    True if 'drawn' in kinds[kinds.index('started'):] else None)
  attempts, flags = [], set()
  for each in facts.events.values():
    for event, *_ in each:
      flags = set() if event == 'started' else flags | {event}
      attempts += [flags] if event == 'finished' else []
  direct = all('direct' in x for x in attempts) and attempts
  examined = None if direct else bool(attempts) and all(
    x & {'direct', 'examined'} for x in attempts)
  sizes = list(map(len, facts.cohorts))
  burnt = sum(any(y[0] == 'abandoned' for y in x)
              for x in facts.events.values())
  finished = sum(
    any(y[0] == 'finished' for y in x) for x in facts.events.values())
  counts = {'clients': facts.clients, 'min_cohort': min(sizes),
            'max_cohort': max(sizes), 'min_sep': facts.apart,
            'participations': facts.often}
  cost = report['observed']['sensitivity']
  # The library computes costs with all rows of C, or with the nodes of a tree.
  loose = n < all_rounds or strategy['family'] == 'online-tree'
  counts['sensitivity'] = Range(facts.cost * units * (1 - CLOSE), held * (
    1.01)) if loose else above(facts.cost * units)
  seen = counts if cost is None else {**counts, **figures(
    mu_of(parts, cost / units, started, claim), cost, 'observed')}
  if amplified:
    hidden = (*counts, 'sensitivity_method', 'noise_multiplier', 'rho',
              'epsilon')
    seen = {**dict.fromkeys(hidden), 'delta': delta}
  by_chance = None
  if facts.chance:
    bound, gap = claim.get('bound') or {}, facts.gap
    p = claim.get('sampling_prob')
    numbers = {'cyclic-poisson': (gap, p), 'balls-in-bins': (gap, gap)}.get(
      kind, (gap - 1, p) + (claim.get('start') == 'warm') * (
        1, gap - 1, p and p / (1 + (gap - 1) * p), 0))
    by_chance = {
      'kind': kind, 'as_drawn': verdict, 'rule': Text(numbers, ()),
      'drawn': {True: 'as the sampling key gives them', None: 'not checked',
                False: 'not as the sampling key gives them'}[verdict],
      'complete': 'incomplete' not in facts.kinds,
      'epsilon_unamplified': near(epsilon) if page or not epsilon else Range(
        own * (1 - CLOSE), math.inf)}
    if not amplified and not page:
      del by_chance['epsilon_unamplified']
    for key in ('samples', 'failure_probability'):
      if not amplified or kind == 'cyclic-poisson':
        by_chance[key] = None
      elif bound:
        by_chance[key] = bound[key]
  whole = all_rounds == strategy['rounds']
  errors = whole and facts.parts.get(claim['rounds'])
  arrays = {**strategy['parameters'], **(strategy.get('arrays') or {})}
  digest = hashlib.sha256(json.dumps([
    strategy['family'], strategy['rounds'], strategy['parameters']]).encode())
  for name, array in sorted((strategy.get('arrays') or {}).items()):
    array = np.array(array, '<f8')
    digest.update(json.dumps([name, list(array.shape)]).encode())
    digest.update(array.tobytes())
  separation = claim.get('min_sep') if kind == 'budget' else (
    None if kind == 'single' else facts.gap)
  limit = None if facts.chance else claim.get('max_participations')
  schema = {'participation': spread, 'min_sep': separation,
            'max_participations': started if stopped else limit}
  report.hold((), {
    'completed': result is not None, 'elsewhere': False, 'stated': False,
    'violated': False, 'simulated': bool(request['stands_for']), **schema,
    'participations': started, **led, 'rho': above(this**2 / 2),
    'buffers': len(arrays['theta']) if 'theta' in arrays else None,
    'z_stddev': near(z * claim['l2_norm_clip'], SAME),
    'measured_z_stddev': facts.noise, 'process_checked': examined,
    'strategy_sha256': digest.hexdigest(), 'sampling': by_chance,
    'amplification': kind if amplified else 'none',
    'planned': {
      **figures(of_plan, planned, 'planned'),
      'rounds': claim['rounds'], 'participations': most,
      'min_sep': None if kind == 'single' else facts.gap},
    'observed': {**seen, 'rounds': done, 'rounds_finished': finished,
                 'rounds_burnt': burnt},
    'ledger_head': facts.head,
    **({'mean_error': near(errors.errors[0], 1e-8),
        'max_error': near(errors.errors[1], 1e-8),
        'rmse': near(report['sensitivity'] * errors.errors[0] ** 0.5, 1e-8),
        'max_rmse': near(report['sensitivity'] * errors.errors[1] ** 0.5, 1e-8)
        } if errors else {}),
    'unit': unit + (
      f', with at most {units} clients' * (units > 1)),
  }, 'the run makes')
  require({*report['files_sha256']} == {*FILES}, 'files_sha256: other files')
  report.left -= {('files_sha256', name) for name in FILES}
  for key in ('family', 'rounds', 'bands', 'z_stddev_per_clip',
              'clients_per_unit', 'adjacency', 'delta', 'apart',
              'horizon', 'l2_norm_clip', 'clients_per_round'):
    value, place = claim.get(key), ('request', key)
    report.hold((key,), near(value, 2e-6) if key[0] == 'z' else value,
                'the plan makes', (plan, place))
  for key, value in request['cohorts'].items():  # `check_cohorts` used these.
    if value is not None and (key, kind) != ('max_participations', 'budget'):
      plan.left.discard(('request', 'cohorts', key))
  if facts.chance:
    plan.hold(('request', 'cohorts', 'adjacency'), 'zero-out', 'a claim has')
  # PRIVACY: A second schema in the plan could contradict the schema of the
  # request. A plan has no second one.
  # Guard: verify_test.test_plan_with_a_second_schema_does_not_hold.
  plan.hold(('strategy', 'participation'), None, 'a plan has')
  plan.left -= {x for x in plan.left if x[1:] and x[1] in (
    'family', 'rounds', 'parameters', 'arrays', 'stands_for', 'l2_norm_clip')}
  plan.left.discard(('noise_multiplier',))
  if report['sensitivity_method'] == 'exact' and claim['exact']:
    report.left.discard(('sensitivity_method',))
  report.agree(('parameters',), plan, ('strategy', 'parameters'))
  report.hold(('unit_of_privacy',), unit, 'the run has')
  run.left.discard(('unit_of_privacy',))
  limits = {key: claim.get(key) for key in ('min_sep', 'max_participations')}
  if facts.chance:
    limits['min_sep'] = facts.gap
  elif kind == 'single':
    limits = {'min_sep': None, 'max_participations': 1}
  elif kind == 'budget':
    count = claim['participations']
    every = count == -(-strategy['rounds'] // claim['apart'])
    limits = {'min_sep': claim['apart'], 'max_participations': Range(
      count, math.inf if every else count)}
  report.hold(('enforced',), {**limits, 'by': 'the run: it ' + (
    'samples cohorts with a secret key' if facts.chance else (
      'draws cohorts, or admits clients'))}, 'the plan makes')
  always = """data not_covered population title owner contact date model
    intended_use region sector released code_sha256 train_sha256""".split()
  for key in always:
    report.agree((key,), run, (key,))
  same('versions', report.get('versions'), run.get('versions') or {}, 'run has')
  run.left = {x for x in run.left if x[0] != 'versions'}
  report.left = {x for x in report.left if x[0] != 'versions'}
  report.hold(('generator', 'key_bits'), 256, 'ChaCha20 has')
  rows = report['assumptions']
  key = [i for i, x in enumerate(rows) if 'ChaCha20' in x['assumption']][0]
  for place, name, default in (
      (('data_accesses', 'tuning'), 'tuning', 'not stated: '),
      (('data_accesses', 'model_selection'), 'model_selection', 'not stated: '),
      (('data_accesses', 'pre_training'), 'pre_training', 'not stated: '),
      *[(('setting',), 'setting', 'central: ')] * (not request['stands_for']),
      (('covered',), 'covered', 'the updates of training clients'),
      (('generator', 'key_source'), 'noise_key', 'not stated'),
      (('assumptions', 0, 'enforced_by'), 'clipped_by', 'not stated'),
      (('assumptions', key, 'checked'), 'key_after', 'not checked')):
    if run.get(name):
      report.agree(place, run, (name,))
    else:
      report.hold(place, Text((), (default,)), 'the run states nothing:')
  if request['stands_for']:
    both = (request['clients_per_round'], *[request['stands_for']] * 2)
    report.hold(('setting',), Text((*both, Range(
      facts.simulated * (1 - CLOSE), facts.simulated * 1.01 + 0.01)), (
        'SIMULATED',)), 'the plan makes')
  if adaptive:
    report.hold(('adaptive_clip',), adaptive, 'plan.json has')
    require({*report['adaptive_clip']} == {
      *adaptive, 'path', 'first_l2_norm_clip', 'last_l2_norm_clip'},
      'adaptive_clip: plan.json has other keys')
    first = float(np.linalg.norm(adaptive['initial']))
    path = [{'rounds': 0, 'l2_norm_clip': near(first, SAME)}] + [
      {'rounds': t + 1, 'l2_norm_clip': x['l2_norm_clip']}
      for t, x in facts.released]
    report.hold(('adaptive_clip',), {
      'path': path, 'first_l2_norm_clip': near(first, SAME),
      'last_l2_norm_clip': path[-1]['l2_norm_clip']}, 'the ledger has')
    if facts.metrics:
      facts.metrics.left.discard(('l2_norm_clip',))
  else:
    report.hold(('adaptive_clip',), None, 'plan.json has')
  noisy = ('l2_norm_clip', 'fraction') if adaptive else ()
  shown = [x['where'] for x in report['side_releases']]
  columns = facts.metrics.content if facts.metrics else [
    x[13:] for x in shown if x.startswith('metrics.csv, ')]
  places = ['run.json'] * bool(run.get('train_sha256')) + [
    f'metrics.csv, {x}' for x in columns if x not in (
      'round', 'epsilon', 'planned_epsilon', 'clip', 'noise_stddev', *noisy)]
  places += ['result.json'] * (result is not None) + ['ledger.sqlite'] * (
    2 - (run.get('population') is None)) + ['this report'] * (not amplified)
  stated = run['side_releases']
  report.hold(('side_releases',), [{'where': x} for x in places] + [
    {'where': 'stated by the run', 'what': x} for x in stated], 'the run has')
  run.left -= {('side_releases', *x) for x in ((), *((i,) for i in range(
    len(stated))))}
  if result:
    same('runs (their results)', report.get('runs', 0, 'results'), result,
         'the ledger has')
    for x, value in result.items():
      report.left.discard(('runs', 0, 'results', x))
      if x in ('test_accuracy', 'test_loss', 'parameters'):
        report.hold(('runs', 0, x), value, 'the ledger has')
    report.hold(('runs', 0), {
      'epsilon': report['epsilon'], 'delta': delta, 'rmse': report['rmse'],
      'sensitivity': report['sensitivity']}, 'the report has')
  else:
    report.hold(('runs',), [], 'a run without results has')
  check_curve(report, this, delta, amplified)
  before, together = len(facts.together) - 1, report['together']
  others = report['other_releases']
  counts = [x for x in (before, len(others)) if x]
  if together:
    exact = together['composition'] == 'exact'
    mus = [*facts.together.values(), *(1 / x['noise_multiplier'] for x in (
      others) if x['noise_multiplier'])]
    total = sum(x**2 for x in mus) / 2
    require(not exact or not any(x['rho'] or x['epsilon'] for x in others),
            'together: is exact, but not all releases are Gaussian')
    report.hold(('together',), {
      'delta': delta, 'adjacency': claim['adjacency'], **({
        'rho': Range(total * (1 - CLOSE), math.inf), 'epsilon': Range(
          guarantee(tuple(mus), delta) * (1 - CLOSE), math.inf)} if exact else {
            })}, 'the runs make')
    at_least('together', together['epsilon'], report['epsilon'] or 0)
    if exact and others:
      report.hold(('together', 'epsilon'), claimed(
        math.sqrt(2 * total), delta, together['rho']), 'all of them make')
    require(len(together['runs']) == before + 1, 'together: lacks runs')
  else:
    require(not counts or 'no guarantee' in report['summary'] or report[
      'epsilon'] is None, 'together: is left out')
    report.hold(('together',), None, 'no run was before this:')
  quoted = [unit, *['SIMULATED'] * bool(
    request['stands_for']), *['Not checked'] * (
      examined is False and finished > 0)]
  last = [report['epsilon'], delta, done, claim['clients_per_round'],
          *([epsilon] if amplified and epsilon else [])]
  if counts:
    last = [*counts, together['epsilon'], delta, *last] if together else (
      [*last, *counts])
  if report['epsilon'] is None:  # 'Too little noise'.
    last, quoted = [], quoted[1:]
  report.hold(('summary',), Text(last, quoted), 'its figures are')
  limits = [started] if kind == 'single' else [started, facts.gap]
  if kind == 'budget':
    limits = [(held / units)**2, claim['apart'], most, claim['horizon']]
  last = [*limits, report['epsilon'], delta]
  if amplified:
    last = [report['epsilon'], delta, *limits, *(
      [epsilon] if epsilon else [])]
  quoted = [*quoted[1:], run['released'], unit, *(
    [report['sampling']['rule']] if amplified else [])]
  statement = Text([done if kind == 'budget' else n, units, *last, 4e-39,
                    report['rho']], quoted)
  report.hold(('formal_statement',), Text([], []) if report[
    'epsilon'] is None else statement, 'its figures are')
  if page:
    first = page['runs'][spot]
    for i, about, s, mu in ((spot, schema, held, this), (0, {
        **schema, 'max_participations': limit}, planned, of_plan)):
      if about is schema or spot:
        report.hold(('check', 'runs', i), {
          **about, 'family': strategy['family'], 'rounds': strategy['rounds'],
          'clients_per_unit': units, 'sensitivity': near(s, SAME),
          'noise_multiplier': near(z / s), 'z_stddev_per_clip': near(z),
          'sensitivity_error': Range(mu * z / s - 1 - SAME, 1.01)},
          'the run makes')
    report.hold(('check', 'claims', 0), {
      'delta': delta, 'amplified': report['epsilon'] if amplified else None,
      'name': 'this run'}, 'the run makes')
    column = toeplitz(first)
    if family_of(strategy.content) not in COLUMNS:
      report.hold(('check', 'runs', spot, 'series'), None, 'C is not Toeplitz:')
    elif column is not None and not first['normalized']:
      first_column = facts.whole[:len(column), 0]
      require(np.allclose(column[:all_rounds], first_column, 1e-8),
              'check: its series is not the C of plan.json')
      report.left -= {x for x in report.left if x[:4] == (
        'check', 'runs', spot, 'series')}
    scaled = bool(strategy['parameters'].get('column_normalize'))
    report.hold(('check', 'runs', spot, 'normalized'), (
      scaled and column is not None), 'plan.json has')
def check_curve(report, this, delta, amplified):
  """Checks epsilon at other deltas, and delta at other epsilons."""
  deltas = {delta, *(() if amplified else DELTAS)}
  rows = [{'delta': x} for x in sorted(deltas, reverse=True)]
  for row, stated in zip(rows, report['epsilons']):
    if amplified:
      row['epsilon'] = report['epsilon']
    elif row['delta'] == delta:
      row['epsilon'] = report['epsilon']
    elif stated['epsilon'] is not None:  # None claims nothing.
      row['epsilon'] = claimed(this, row['delta'], report['rho'])
  report.hold(('epsilons',), rows, 'the noise makes')
  curve = report['epsilon_curve']
  if amplified:
    report.hold(('epsilon_curve',), [], 'it is amplified:')
  ends = [x['epsilon'] for x in curve[:1] + curve[-1:]]
  for i, point in enumerate(curve):
    e = point['epsilon']
    exact = gaussian_delta(e, math.sqrt(2 * report['rho'])) + (
      1 + math.exp(e)) * TAU
    report.hold(('epsilon_curve', i), {
      'delta': near(exact, 3 * CLOSE),
      'epsilon': near(ends[0] + i * (ends[1] - ends[0]) / (len(curve) - 1))},
      'the noise makes')
def check_row(report, i, row, place):
  """Checks public run i against claim `row` and run `place` of `check`."""
  run, its_claim = report['runs'][i], ('check', 'claims', row)
  stated = report['check']['runs'][place]
  at, chance = ('runs', i), run['amplification'] != 'none'
  claim, noise = report.get(*its_claim), stated['noise_multiplier']
  column, n = toeplitz(stated), stated['rounds']
  if run['amplification'] == 'cyclic-poisson' and column is not None:
    noise = stated['z_stddev_per_clip'] / stated['clients_per_unit'] / (
      1 if stated['normalized'] else float(np.linalg.norm(column)))
  for key in ('family', 'name') if place == i else ('family',):
    report.agree((*at, key), report, ('check', 'runs', place, key))
  noise = rounded(noise * (1 - 1e-12), noise * (1 + 1e-12), True, False)
  if run['amplification'] == 'cyclic-poisson' and column is None:
    noise = Range(noise.low, math.inf)
  report.hold(at, {
    'epsilon_unamplified': claim['epsilon'], 'kept': True,
    'epsilon': claim['amplified'] if chance else claim['epsilon'],
    'delta': claim['delta'], 'noise_multiplier': noise}, 'check has')
  report.hold(its_claim, {'name': run['name'], 'delta': run['delta'],
                      'amplified': run['epsilon'] if chance else None},
              'its row has')
  if not chance:
    report.left.discard((*at, 'amplification'))
  if stated['participation'] != 'budget':
    gap = n if stated['min_sep'] is None else stated['min_sep']
    fit = -(-n // gap)
    for key in ('rounds', 'min_sep'):
      report.agree((*at, key), report, ('check', 'runs', place, key))
    fit = min(stated['max_participations'] or fit, fit)
    few = any(FIXED in x['assumption'] for x in report['assumptions'])
    report.hold((*at, 'participations'), fit if run['completed'] and not (
      few) else Range(fit, math.inf), 'check has')
def check_figures(report, alone=False):  # alone: without the run's files.
  """Checks the figures of a report against each other; returns its claim."""
  public = 'once_in' in report.content
  others = report['other_releases']
  rows = report['runs'] if public else [report.content]
  page, delta = report.get('check'), report['delta']
  mus = check_page(report, public) if page else []
  j = page and (len(page['claims']) - 1 if report['together'] and not (
    public) else 0)  # The claim of all runs.
  members = page['claims'][j]['runs'] if page else []
  total, sure, several = 0.0, 0.0, bool(report['together'])
  few = any(FIXED in x['assumption'] for x in report['assumptions'])
  rough, copies = 0.01 if public else CLOSE, []  # Only compared with copies.
  for i, run in enumerate(rows):
    at, rho = ('runs', i) if public else (), run['rho']
    noise, epsilon = run['noise_multiplier'], run['epsilon']
    require(rho and noise and epsilon, 'epsilon: nothing is guaranteed')
    chance = run['amplification'] != 'none'
    if not chance:
      at_least('rho', rho, 0.5 / noise**2, 2 * rough)
    else:
      epsilon = {**run, **(run.get('sampling') or {})}['epsilon_unamplified']
      copies += [(*at, 'epsilon'), (*at, 'planned_epsilon'), (
        'check', 'claims', i + (public and several), 'amplified')] * alone
    mu = math.sqrt(2 * rho * (1 - rough))
    at_least('epsilon', epsilon, guarantee((mu,), run['delta']))
    at_least('delta', delta, run['delta'], SAME)
    if page:  # In public.json, the claim of several runs together is first.
      row = i + (public and several)
      [place] = page['claims'][row]['runs']
      require(place == i or place >= len(members), 'check: of another run')
      half = mus[place] ** 2 / 2
      report.hold((*at, 'rho'), rounded(
        half * (1 - 1e-8), half * (1 + 1e-8), public), 'check has')
    total, sure = total + rho * (1 - rough), sure + (epsilon or math.inf)
    if not public:
      continue
    if page:
      check_row(report, i, row, place)
    done = run['completed'] and run['kept'] and not few
    if run['planned_epsilon'] is not None:
      report.hold((*at, 'planned_epsilon'), run['epsilon'] if (
        done or chance) else Range(run['epsilon'], math.inf), 'epsilon is')
    seen = run['observed_epsilon']
    require(seen is None or 0 < seen <= run['epsilon'] and not chance or not (
      run['kept']), f'observed_epsilon={seen}: is above epsilon, or by chance')
  require(page or not public or report['named_before'] or others or not all(
    x['kept'] and x['epsilon_unamplified'] for x in rows),
    'check: is left out, and all runs are kept to their plan')
  together = report['together']
  names = [page['runs'][i]['name'] for i in members]
  if not together and public:
    report.hold(('together',), None, 'it has one run:')
  lead = together or (rows[0] if public else report.content)
  epsilon, rho = lead['epsilon'], lead['rho']
  chance = any(run['amplification'] != 'none' for run in rows)
  require(epsilon and (together or len(rows) == 1 and not report.get(
    'named_before')), 'epsilon: nothing is guaranteed')
  if public:
    shown = decimal.Context(3, decimal.ROUND_CEILING).create_decimal_from_float(
      math.exp(min(epsilon, 16)))
    units = report['clients_per_unit']
    report.hold((), {
      'epsilon': epsilon, 'rho': rho, 'delta': max(x['delta'] for x in rows),
      'adjacency': 'zero-out', 'once_in': int(1 / decimal.Decimal(repr(delta))),
      'factor': f'e^{epsilon:g}' if epsilon > 16 else f'{shown:,f}',
      'unit': report['unit_of_privacy'] + (
        f', with at most {units} clients' * (units > 1)),
      **({'clients_per_unit': max(x['clients_per_unit'] for x in page['runs']),
          'named_before': sorted(names[len(rows):])} if page else {})},
      'its figures make')
    discloses = any('observed epsilon' in x for x in report['told'])
    require(discloses == any(x['observed_epsilon'] for x in rows),
            'told: does not fit observed_epsilon')
  mixed = chance or bool(together) and together['composition'] != 'exact'
  if page and together and not others:
    first = page['claims'][j]
    report.hold(('together',), {
      'epsilon': near(first['amplified'] or first['epsilon'], SAME),
      **({} if mixed or rho is None else {
        'rho': near(first['rho'], SAME), 'composition': 'exact'})}, 'check has')
    report.hold(('check', 'claims', j), {
      'delta': delta, 'amplified': epsilon if mixed else None, 'name': (
        'all runs together' if public else 'together with earlier runs'),
      'runs': list(range(len(members)))}, 'the report has')
  clip = rows[0]['l2_norm_clip']
  if len(rows) == 1:
    adapts = clip is None or bool(report.get('adaptive_clip'))
    text = report['assumptions'][0]['assumption']
    require(adapts == ('the clip of the round' in text), 'assumptions: clip')
    if not adapts or not public:
      report.hold(('assumptions', 0, 'assumption'), Text((clip,), ()), 'it is')
    report.left.discard((*(('runs', 0) if public else ()), 'l2_norm_clip'))
  if not public and page and not chance:
    report.hold(('epsilon',), near(page['claims'][0]['epsilon']), 'check has')
  exact = sum(mus[i] ** 2 for i in members) * (not others)
  high = exact or 2 * (rho or 0)
  check_attack(report, (epsilon * (1 - rough), delta, rho and math.sqrt(
    high if exact else high * (1 - rough))), (
      epsilon, delta, rho and math.sqrt(high)))
  report.left |= {*leaves(report.content)} & {
    *copies, *[('together', 'epsilon'), *[('epsilon',)] * public] * mixed}
  if others:  # Nothing proves the figures of other releases.
    total = max(total, sum(mus[i] ** 2 for i in members) / 2)
    pure = [x for x in others if x['noise_multiplier']]
    mu = math.sqrt(2 * total * (1 - SAME))
    if not chance:
      at_least('together', epsilon, joint((mu,), delta, pure))
    sure = joint((mu,), delta, others) if mixed else epsilon
    return {'epsilon': max(epsilon, sure), 'delta': delta}
  if mixed:  # Without amplification.
    return {'epsilon': page['claims'][j]['epsilon'] if page else sure,
            'delta': delta if page else min(1, delta * len(rows))}
  mu = math.sqrt(max(2 * total, (1 - SAME) * exact))
  at_least('together', epsilon, guarantee((mu,), delta))
  return {'epsilon': epsilon, 'delta': delta}
def verify_report(path, say, _):
  report = read_json(path, 'tff_bandmf.public_report', 'tff_bandmf.report')
  return {**check_figures(report, alone=True), 'not_checked': {
    report.name: report.unchecked()}}
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
  """Returns the last lines of the output."""
  lines = [f'Not checked in {name}: {", ".join(places)}'
           for name, places in result['not_checked'].items() if places]
  if result.get('not_read'):
    lines.append(f'Not read: {", ".join(result["not_read"])}')
  return '\n'.join([*lines, UNSEEN, (
    f'VERIFIED epsilon={result["epsilon"]} delta={result["delta"]}')])
if __name__ == '__main__':
  try:
    print(verdict(verify(''.join(sys.argv[1:2]), print)))
  except AssertionError as failure:
    sys.exit(print('DOES NOT HOLD:', failure) or 1)
  except ValueError as failure:
    sys.exit(print(failure, file=sys.stderr) or 2)
