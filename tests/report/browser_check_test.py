"""Tests of the script that recomputes the claims of a page in a browser.

Its numbers are compared with the library's in a JavaScript engine, and the
pages are opened in Chromium where it is installed (`make browser`).
"""

import base64
import copy
import functools
import hashlib
import html
import json
import math
import pathlib
import re
import shutil
import subprocess

import families
import mpmath
import numpy as np
import pytest
import written_run

from tff_bandmf import accounting, participation, report, strategies
from tff_bandmf.report import browser_check as check_lib

mini_racer = pytest.importorskip(
  'py_mini_racer', reason='mini-racer is not installed; `make env` installs it'
)
pytestmark = pytest.mark.slow
_SCRIPT = pathlib.Path(check_lib.__file__).with_name('browser_check.js')

_DELTAS = (1e-3, 1e-6, 1e-10)
_SCHEMAS = {
  'single': participation.Single(),
  'min-sep': participation.MinSep(5),
  'min-sep of two': participation.MinSep(3, 2),
  'fixed-epoch': participation.FixedEpoch(4),
}
# Families whose matrix is many numbers.
_MANY = {'banded', 'dense', 'tree', 'online-tree', 'stamped'}


@pytest.fixture(scope='module')
def engine():
  found = mini_racer.MiniRacer()
  found.eval(_SCRIPT.read_text())
  return found


@pytest.fixture(scope='module')
def strategies_of_24():
  return families.made(24)


def _numbers(guarantee, delta):
  """Returns what a page of one run would embed."""
  return check_lib.numbers(
    [('a run', guarantee)], [('this run', [0], delta, None)]
  )


def _guarantee(strategy, schema, noise_multiplier=0.8, **options):
  return accounting.Guarantee(strategy, schema, noise_multiplier, **options)


def _reds(engine, check, texts=()):
  lines = engine.call('verdicts', check, list(texts))
  return [line['text'] for line in lines if line['ok'] is False]


def test_logarithm_of_the_normal_distribution_is_exact_in_the_tails(engine):
  points = [-200, -37.5, -12, -5.3, -2.0001, -2, -1.9999, -0.7, 0, 1e-9, 1, 6]
  for point in points:
    with mpmath.workdps(60):
      exact = mpmath.log(mpmath.ncdf(point))
      error = mpmath.mpf(engine.call('logPhi', point)) - exact
    # Of the logarithm as float64 has it, and of the distribution function.
    assert abs(error) <= max(1e-12, 3e-16 * abs(exact)), point


@pytest.mark.parametrize('schema', _SCHEMAS, ids=str)
@pytest.mark.parametrize('family', [*families.EXAMPLES, 'normalised'])
def test_script_agrees_with_the_library(
  engine, strategies_of_24, family, schema
):
  strategy = strategies_of_24[family]
  guarantee = _guarantee(strategy, _SCHEMAS[schema], clients_per_unit=2)
  # The claim's delta; the page has epsilon at those of `check.DELTAS` too.
  delta = _DELTAS[len(family + schema) % len(_DELTAS)]
  check = json.loads(json.dumps(_numbers(guarantee, delta)))
  (run,), (claim,) = check['runs'], check['claims']
  found = engine.call('sensitivity', run)
  if family in _MANY:
    assert 'is not made of few numbers' in found['reason']
  elif 'value' in found:
    exact = guarantee.sensitivity.value
    assert found['value'] == pytest.approx(exact, rel=1e-12)
  else:
    # Columns of a BLT that are scaled and overlap have no theorem.
    assert family == 'normalised' and schema != 'single'
  mu = engine.call('muOf', check, claim)
  assert claim['delta'] == delta
  for other in (delta, *check_lib.DELTAS):
    assert engine.call('epsilonAt', mu, 1, other) == pytest.approx(
      guarantee.epsilon(other), rel=1e-10
    )
  assert _reds(engine, check) == []


@pytest.mark.parametrize('noise_multiplier', [0.14, 0.8, 2.0, 20.0, 500.0])
def test_epsilon_at_any_delta_is_never_below_the_gaussian_one(
  engine, noise_multiplier
):
  guarantee = _guarantee(
    strategies.BandedSqrt(24, 4), participation.MinSep(4), noise_multiplier
  )
  mu = 1 / guarantee.exact_noise
  for delta in (0.01, 3e-4, 2e-6, 5e-8, 1.1e-12):
    exact = accounting.gaussian_epsilon(guarantee.exact_noise, delta)
    epsilon = engine.call('epsilonAt', mu, 1, delta)
    if epsilon is None:  # Infinite.
      assert guarantee.epsilon(delta) == math.inf
    else:
      assert exact <= epsilon * (1 + 1e-12)
      assert epsilon <= guarantee.epsilon(delta) * (1 + 1e-10)
  # The chance that a run stops is more than such a delta.
  assert engine.call('epsilonAt', 1.0, 1, 1e-40) in (None, math.inf)


def _honest(rng):
  """Returns a random guarantee, whose epsilon is 0.01 to 10, and a delta."""
  rounds = int(rng.choice([1, 12, 60, 200]))
  min_sep = int(rng.integers(1, rounds + 1))
  strategy = (
    strategies.Identity(rounds),
    strategies.BandedSqrt(rounds, min_sep),
    strategies.DpCgd(rounds, 0.7),
    strategies.Lti(rounds, 0.05),
  )[rng.integers(4)]
  schema = (
    participation.Single(),
    participation.MinSep(min_sep),
    participation.FixedEpoch(min_sep, -(-rounds // min_sep)),
  )[rng.integers(3)]
  delta = 10 ** rng.uniform(-12, -2.01)
  noise_multiplier = accounting.gaussian_noise_multiplier(
    10 ** rng.uniform(-2, 1), delta
  )
  guarantee = _guarantee(
    strategy,
    schema,
    noise_multiplier,
    clients_per_unit=int(rng.choice([1, 3])),
  )
  return guarantee, delta


def _scaled(factor, *path):
  """Returns a function that multiplies a number of a page by a factor."""

  def forge(check):
    *most, last = path
    place = functools.reduce(lambda part, key: part[key], most, check)
    place[last] *= factor

  return forge


# The rows of the claim and of the run state the same noise three times; each is
# edited by more than rounding to three digits could hide.
_FORGED = [
  _scaled(0.97, 'claims', 0, 'epsilon'),
  _scaled(0.97, 'claims', 0, 'rho'),
  _scaled(0.5, 'claims', 0, 'delta'),
  _scaled(1.03, 'runs', 0, 'noise_multiplier'),
  _scaled(1.03, 'runs', 0, 'z_stddev_per_clip'),
  _scaled(0.97, 'runs', 0, 'sensitivity'),
]


def test_red_lines_are_those_of_forged_claims_alone(engine):
  """Of 500 claims at random (epsilon, delta), on both kinds of pages."""
  rng = np.random.default_rng(0)
  for case in range(500):
    guarantee, delta = _honest(rng)
    check = check_lib.numbers(
      [('a run', guarantee)],
      [('this run', [0], delta, None)],
      public=bool(case % 2),
    )
    assert _reds(engine, check) == [], case
    larger = copy.deepcopy(check)
    larger['claims'][0]['epsilon'] *= 2
    assert _reds(engine, larger) == [], case
    _FORGED[case % len(_FORGED)](check)
    assert _reds(engine, check), case


def test_attacker_finds_no_fewer_members_than_the_gaussian_allows(engine):
  """A bound below the true curve would promise what does not hold."""
  guarantee = _guarantee(strategies.Identity(9), participation.Single(), 0.65)
  (claim,) = _numbers(guarantee, 1e-6)['claims']
  mu = 1 / guarantee.exact_noise
  for share in (1e-4, 0.01, 0.3):
    with mpmath.workdps(30):
      quantile = mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(share) - 1)
      exact = float(mpmath.ncdf(quantile + mu))
    found = engine.call('members', mu, share)
    assert exact <= found <= exact * 1.01


def test_runs_on_the_same_clients_compose(engine):
  runs = [
    _guarantee(strategies.BandedSqrt(24, 4), participation.MinSep(4), noise)
    for noise in (0.9, 1.4, 2.0)
  ]
  check = check_lib.numbers(
    [(str(place), run) for place, run in enumerate(runs)],
    [('all runs together', [0, 1, 2], 1e-6, None)],
  )
  (claim,) = check['claims']
  assert claim['epsilon'] == accounting.compose(runs).epsilon(1e-6)
  found = engine.call('epsilonAt', engine.call('muOf', check, claim), 3, 1e-6)
  assert found == pytest.approx(claim['epsilon'], rel=1e-10)
  assert _reds(engine, check) == []


def test_amplified_claim_is_not_recomputed(engine):
  """The one without chance is, and the page says which one it is."""
  check = _numbers(
    _guarantee(strategies.BandedSqrt(24, 4), participation.MinSep(4)), 1e-6
  )
  check['claims'][0]['amplified'] = 1.25
  texts = [['claims.0.epsilon', '1.25']]
  lines = engine.call('verdicts', check, texts)
  assert [line['ok'] for line in lines] == [True, True, None]
  assert 'browser, without chance: epsilon =' in lines[1]['text']
  assert 'Amplified: 1.25, not recomputed' in lines[2]['text']
  assert _reds(engine, check, [['claims.0.epsilon', '1.24']])


def test_series_that_no_theorem_is_about_is_not_recomputed(engine):
  strategy = strategies.BandedToeplitz(24, [1.0, 0.1, -0.4, 0.6, 0.2])
  check = _numbers(_guarantee(strategy, participation.MinSep(2)), 1e-6)
  assert 'no theorem' in engine.call('sensitivity', check['runs'][0])['reason']
  lines = engine.call('verdicts', check, [])
  assert [line['ok'] for line in lines] == [None, True]


def _run(folder, cohorts=written_run.KEPT, noise_multiplier=0.9, **changes):
  return written_run.make_run(
    folder, cohorts, noise_multiplier, key=folder.name.encode(), **changes
  )


@pytest.fixture(scope='module')
def pages(tmp_path_factory):
  """Gives report.html and public.html of a run, and of two, as texts."""
  folder = tmp_path_factory.mktemp('pages')
  _run(folder / 'first')
  _run(folder / 'second', noise_multiplier=1.4)
  sources = [report.of_run(folder / name) for name in ('first', 'second')]
  return {
    'report': report.from_source(sources[0]).html(),
    'public': report.publish(sources[:1]).html(),
    'two': report.publish(sources).html(),
  }


def _embedded(page):
  """Returns the numbers that the script reads, and the texts it checks."""
  (numbers,) = re.findall(r'id="check-numbers">(.*?)</script>', page, re.S)
  texts = re.findall(r' data-check="([^"]*)"[^>]*>([^<]*)<', page)
  return json.loads(numbers), [
    [path, html.unescape(text).strip()] for path, text in texts
  ]


def _in_chromium(folder, page):
  """Returns the elements of a page after its script ran in Chromium."""
  (folder / 'page.html').write_text(page)
  return subprocess.run(
    [
      shutil.which('chromium'),
      '--headless',
      '--no-sandbox',
      '--disable-gpu',
      '--disable-quic',
      '--no-first-run',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-sync',
      f'--user-data-dir={folder / "browser"}',
      '--dump-dom',
      (folder / 'page.html').as_uri(),
    ],
    check=True,
    capture_output=True,
    text=True,
    timeout=120,
  ).stdout


_FORGERIES = {
  'claim in the text': (r'(data-check="claims.0.epsilon">)[\d.]+', r'\g<1>0.6'),
  'claim in the numbers': (r'("epsilon": )[\d.]+', r'\g<1>0.6'),
  'noise multiplier': (r'("noise_multiplier": )[\d.]+', r'\g<1>2.5'),
  'noise': (r'("z_stddev_per_clip": )[\d.]+', r'\g<1>9.5'),
  'sensitivity': (r'("sensitivity": )[\d.]+', r'\g<1>0.5'),
  'strategy': (r'("coefficients": \[)[\d.]+', r'\g<1>0.1'),
  'participation': (r'("max_participations": )\d+', r'\g<1>1'),
  'clients': (r'("clients_per_unit": )\d+', r'\g<1>3'),
  'delta': (r'("delta": )[\d.e-]+', r'\g<1>0.001'),
  'rho': (r'("rho": )[\d.e-]+', r'\g<1>0.01'),
  'rounding': (r'("sensitivity_error": )[\d.e-]+', r'\g<1>-0.5'),
  'no numbers': (r'("runs": )\[.*?\]', r'\g<1>[]'),
}


@pytest.mark.parametrize('name', ['report', 'public', 'two'])
def test_page_that_was_edited_says_so(engine, pages, name):
  """One number is edited, in the text or in the numbers that are embedded."""
  page = pages[name]
  check, texts = _embedded(page)
  assert len(texts) >= 4
  assert _reds(engine, check, texts) == []
  for title, (pattern, edited) in _FORGERIES.items():
    forged, count = re.subn(pattern, edited, page, count=1, flags=re.S)
    assert count == 1 and forged != page, title
    try:
      assert _reds(engine, *_embedded(forged)), title
    except mini_racer.JSEvalException:
      # The page shows in red that nothing was recomputed.
      assert title == 'no numbers'


def test_pages_allow_their_own_script_and_style_alone(pages):
  for page in pages.values():
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', page)
    allowed = {}
    for tag in ('style', 'script'):
      (content,) = re.findall(f'<{tag}>(.*?)</{tag}>', page, re.S)
      digest = hashlib.sha256(content.encode()).digest()
      allowed[tag] = f"'sha256-{base64.b64encode(digest).decode()}'"
    assert html.unescape(policy) == (
      f"default-src 'none'; img-src data:; style-src {allowed['style']}; "
      f"script-src {allowed['script']}; base-uri 'none'; form-action 'none'"
    )
    assert not re.search(r'<[^>]* (style|on\w+)=', page)
    # Without a script there is nothing to see of it, whatever other rules say.
    assert '[hidden] { display: none !important; }' in page
    assert '<div id="check" hidden>' in page
  assert len(_SCRIPT.read_text().splitlines()) <= 250


def test_names_of_runs_stay_text(tmp_path):
  """The title of a run must not end the element that holds the numbers."""
  title = '</script><b>"{{ 1 }}'
  _run(tmp_path / 'run', title=title)
  page = report.build(tmp_path / 'run').html()
  assert title not in page
  assert page.count('</script>') == 2
  public = report.publish([report.of_run(tmp_path / 'run')]).html()
  assert _embedded(public)[0]['runs'][0]['name'] == title


def test_run_without_noise_has_nothing_to_recompute(tmp_path):
  _run(tmp_path / 'run', noise_multiplier=0.0)
  source = report.of_run(tmp_path / 'run')
  assert 'this page does not have one' in report.from_source(source).html()
  assert report.from_source(source).content['check'] is None
  assert report.publish([source]).content['check'] is None


@pytest.mark.skipif(
  shutil.which('chromium') is None,
  reason='Chromium is not installed; `make browser` installs it',
)
def test_chromium_recomputes_the_claims(pages, tmp_path):
  # Its policy lets the script run, and the forged page shows a red line.
  red = '<p class="warning">'
  for name, page in pages.items():
    shown = _in_chromium(tmp_path, page)
    assert re.search(
      '<p class="same">recomputed in your browser: epsilon = [0-9.]+</p>', shown
    ), name
    assert 'of cases finds a member in at most' in shown
    assert '<div id="check">' in shown
    assert shown.count(red) == page.count(red)
  for title in ('claim in the text', 'noise multiplier', 'no numbers'):
    forged = re.sub(*_FORGERIES[title], pages['two'], count=1, flags=re.S)
    shown = _in_chromium(tmp_path, forged)
    assert shown.count(red) > pages['two'].count(red), title
  # A script that was edited does not run.
  forged = pages['report'].replace('1e-13', '1e-1')
  assert 'recomputed in your browser: epsilon' not in _in_chromium(
    tmp_path, forged
  ).replace(_SCRIPT.read_text().rstrip(), '')
