"""Tests of what a report shows: schema, Markdown, page, plots, digests."""

import base64
import hashlib
import html.parser
import itertools
import json
import pathlib
import re
import shutil
import sys

import jsonschema
import pytest
import written_run

import tff_bandmf
from tff_bandmf import accounting, noise, report
from tff_bandmf.report import pages

pytestmark = pytest.mark.slow

_CLOSER = [[0, 1], [2, 3], [0, 5], [4, 6], [8, 7], [9, 10]]
_SECRET = b'\x00sixteen bytes!\xff'


def _make_run(
  directory, cohorts=written_run.KEPT, noise_multiplier=0.6, **changes
):
  """Writes the files of a run by hand, a secret among them."""
  (directory / 'private').mkdir(parents=True)
  (directory / 'private' / 'noise.key').write_bytes(_SECRET)
  return written_run.make_run(
    directory,
    cohorts,
    noise_multiplier,
    **{
      'not_covered': ['the vocabulary'],
      'side_releases': ['a histogram'],
      **changes,
    },
  )


def _texts(directory):
  return [
    (directory / name).read_text()
    for name in (report.MARKDOWN_FILE, report.HTML_FILE, report.JSON_FILE)
  ]


def _breaches(value, schema):
  """Returns where a value breaks a JSON Schema."""
  validator = jsonschema.Draft202012Validator(schema)
  return [error.message for error in validator.iter_errors(value)]


def test_public_json_follows_its_schema(tmp_path):
  for name, options in {
    'kept': {},
    'closer': {'cohorts': _CLOSER},
    'bare': {'noise_multiplier': 0.0},
  }.items():
    _make_run(tmp_path / name, key=name.encode(), **options)
  schema = report.json_schema('public')
  for names in (['kept'], ['closer'], ['bare'], ['kept', 'closer']):
    sources = [report.of_run(tmp_path / name) for name in names]
    written = report.publish(sources).content
    assert not _breaches(written, schema)
  assert set(written) == set(schema['properties']) == set(schema['required'])
  assert all(part['description'] for part in schema['properties'].values())
  for changes in (
    {'extra': 1},
    {'epsilon': '1'},
    {'once_in': 0.5},
    {'runs': [{}]},
    {'together': {'epsilon': 1.0}},
    {'check': {'digits': 3}},
  ):
    assert _breaches({**written, **changes}, schema), changes


@pytest.mark.parametrize(
  'options',
  [
    {},
    {'cohorts': _CLOSER},
    {'noise_multiplier': 0.0},
    {'cohorts': [[t] for t in range(6)]},
    {
      'code_sha256': 'a' * 64,
    },
  ],
  ids=str,
)
def test_json_follows_the_schema(tmp_path, options):
  _make_run(tmp_path / 'run', **options)
  report.write(tmp_path / 'run')
  written = json.loads((tmp_path / 'run' / report.JSON_FILE).read_text())
  assert not _breaches(written, report.json_schema())


def test_schema_describes_every_field_and_refuses_others(tmp_path):
  _make_run(tmp_path / 'run')
  schema = report.json_schema()
  good = report.build(tmp_path / 'run').content
  assert set(good) == set(schema['properties']) == set(schema['required'])
  assert all(part['description'] for part in schema['properties'].values())
  for changes in (
    {'extra': 1},
    {'epsilon': '1'},
    {'epsilon': -1.0},
    {'violated': 0},
    {'delta': 1.0},
    {'adjacency': 'replace-one'},
    {'rounds': 2.5},
    {'strategy_sha256': 'x'},
    {'version': 0},
    {'epsilons': [{'delta': 0.1}]},
  ):
    assert _breaches({**good, **changes}, schema), changes
  del good['rho']
  assert _breaches(good, schema) == ["'rho' is a required property"]


def test_rho_is_not_rounded_and_epsilon_is_given_at_several_deltas(tmp_path):
  spec = _make_run(tmp_path / 'run', noise_multiplier=0.7)
  written = report.write(tmp_path / 'run')
  for text in _texts(tmp_path / 'run'):
    assert repr(spec.rho) in text
    # In the formal statement.
    assert repr(spec.epsilon(1e-5)) in text
  deltas = [row['delta'] for row in written['epsilons']]
  assert deltas == sorted(deltas, reverse=True) and len(deltas) >= 5
  assert 1e-5 in deltas
  for row in written['epsilons']:
    exact = accounting.gaussian_epsilon(0.7, row['delta'])
    assert exact < row['epsilon'] < exact * (1 + 1e-3)


def test_every_point_of_the_curve_holds(tmp_path):
  _make_run(tmp_path / 'run', _CLOSER)
  written = report.build(tmp_path / 'run').content
  curve = written['epsilon_curve']
  assert len(curve) > 20
  assert curve[0]['delta'] > 1e-5 > curve[-1]['delta']
  for point in curve:
    exact = accounting.gaussian_delta(
      written['noise_multiplier'], point['epsilon']
    )
    assert exact < point['delta'] < 1.02 * exact
  for first, second in zip(curve, curve[1:]):
    assert first['delta'] > second['delta']


class _Page(html.parser.HTMLParser):
  """What a page refers to, and its text."""

  def __init__(self, text):
    super().__init__()
    self.tags, self.references, self.text = [], [], ''
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    self.tags.append(tag)
    self.references += [
      value
      for name, value in attrs
      if name in ('src', 'href', 'srcset', 'data', 'action')
    ]

  def handle_data(self, data):
    self.text += data


def test_page_needs_nothing_else(tmp_path, drawn):
  _make_run(tmp_path / 'run')
  report.write(tmp_path / 'run')
  text = (tmp_path / 'run' / report.HTML_FILE).read_text()
  page = _Page(text)
  assert not {'link', 'iframe', 'object'} & set(page.tags)
  # The numbers, and the script that recomputes the claim from them.
  assert page.tags.count('script') == 2
  head = 'data:image/svg+xml;base64,'
  assert len(page.references) == 2
  for reference in page.references:
    assert reference.startswith(head)
    image = base64.b64decode(reference[len(head) :]).decode()
    assert '<svg' in image
    assert not re.findall(r'(?:href|src)="(?!#)', image)
    text = text.replace(reference, '')
  assert '://' not in text and 'url(' not in text and '@import' not in text


def test_page_and_markdown_show_the_same_facts(tmp_path):
  changes = {
    'setting': 'the setting',
    'covered': 'what is covered',
    'tuning': 'tuned on public data',
    'model_selection': 'the last model',
    'pre_training': 'not pre-trained',
    'noise_key': 'a dice',
    'versions': {'numpy': '0.0.7'},
    'train_sha256': 'b' * 64,
    'code_sha256': 'c' * 64,
  }
  _make_run(tmp_path / 'run', **changes)
  written = report.write(tmp_path / 'run')
  markdown, page, _ = _texts(tmp_path / 'run')
  page = _Page(page).text
  facts = [value for value in changes.values() if isinstance(value, str)]
  facts += [
    'it draws cohorts, or admits clients',
    '0.0.7',
    'one client',
    'the model',
    'the vocabulary',
    'a histogram',
    'ChaCha20',
    'exact',
    written['strategy_sha256'],
    written['summary'],
    written['accounting'],
    written['adjacency_meaning'],
    written['formal_statement'],
    written['report_code_sha256'],
    *written['warnings'],
    *written['files_sha256'].values(),
    written['ledger_head'],
  ]
  facts += itertools.chain.from_iterable(
    row.values() for row in (*written['assumptions'], *written['side_releases'])
  )
  for fact in facts:
    assert fact in markdown and fact in page, fact
  titles = re.findall(r'^\| ([a-z][^|]*) \|', markdown, re.MULTILINE)
  assert titles and all(title in page for title in titles)


def test_what_carries_no_noise_is_listed_one_by_one(tmp_path):
  _make_run(tmp_path / 'run', train_sha256='b' * 64)
  items = report.build(tmp_path / 'run').content['side_releases']
  where = [item['where'] for item in items]
  for name in (
    'metrics.csv, clients',
    'metrics.csv, non_finite',
    'metrics.csv, accuracy',
    'result.json',
    'ledger.sqlite',
    'stated by the run',
    'this report',
  ):
    assert name in where
  assert where.count('run.json') == 1 and where.count('ledger.sqlite') == 2
  # Of which nothing is known, so nothing good is assumed.
  assert {
    'where': 'metrics.csv, fraction',
    'what': 'a column that this report does not know',
  } in items


def test_text_of_a_run_is_no_markup(tmp_path):
  _make_run(
    tmp_path / 'run',
    released='<script>x</script> | y',
    not_covered=['<b>bold</b>'],
  )
  report.write(tmp_path / 'run')
  markdown, text, _ = _texts(tmp_path / 'run')
  page = _Page(text)
  assert page.tags.count('script') == 2
  assert '<script>x</script>' in page.text and '<b>bold</b>' in page.text
  assert '| <script>x</script> \\| y |' in markdown


@pytest.mark.parametrize(
  'options, warning',
  [
    ({'cohorts': _CLOSER}, 'was not kept'),
    ({'noise_multiplier': 0.0}, 'guarantees nothing'),
    ({'population': 10**5}, 'not below 1 / population'),
    ({'code_sha256': 'a' * 64}, 'not the code that ran'),
  ],
  ids=str,
)
def test_what_must_be_known_leads_the_report(tmp_path, options, warning):
  _make_run(tmp_path / 'run', **options)
  written = report.write(tmp_path / 'run')
  (found,) = written['warnings']
  assert warning in found
  markdown, page, _ = _texts(tmp_path / 'run')
  assert markdown.startswith(f'# Privacy report\n\n**{found}**')
  text = _Page(page).text
  assert text.index(found) < text.index(written['summary'])


def test_simulated_run_leads_with_it(tmp_path):
  # Whatever else there is to warn of.
  _make_run(tmp_path / 'run', _CLOSER, stands_for=4)
  written = report.write(tmp_path / 'run')
  assert written['simulated']
  assert len(written['warnings']) == 2
  first = written['warnings'][0]
  assert first.startswith('SIMULATED')
  assert 'No privacy claim is made for a deployment' in first
  assert written['summary'].startswith('SIMULATED, no claim')
  markdown, page, _ = _texts(tmp_path / 'run')
  assert markdown.startswith(f'# Privacy report: SIMULATED\n\n**{first}**')
  text = _Page(page).text
  assert text.index(first) < text.index(written['summary'])
  _make_run(tmp_path / 'real')
  real = report.build(tmp_path / 'real').content
  assert not real['simulated'] and 'SIMULATED' not in json.dumps(real)


def test_simulated_run_that_kept_its_plan_leads_with_it(tmp_path):
  _make_run(tmp_path / 'run', stands_for=4)
  assert (
    report.build(tmp_path / 'run')
    .content['warnings'][0]
    .startswith('SIMULATED')
  )


def test_burnt_rounds_are_told(tmp_path):
  _make_run(tmp_path / 'run', burnt=[2])
  written = report.write(tmp_path / 'run')
  assert written['observed']['rounds_burnt'] == 1
  (found,) = written['warnings']
  assert found.startswith('1 of 6 rounds was burnt')


def test_who_clips_is_what_the_run_says(tmp_path):
  for name, told, said in (
    ('told', {'clipped_by': 'a referee'}, 'a referee'),
    ('silent', {}, 'not stated'),
  ):
    _make_run(tmp_path / name, **told)
    clipping = report.build(tmp_path / name).content['assumptions'][0]
    assert 'clipped to 0.5' in clipping['assumption']
    assert clipping['enforced_by'] == said


def test_missing_measurement_is_told(tmp_path):
  _make_run(tmp_path / 'run', measured=False)
  written = report.write(tmp_path / 'run')
  assert 'no measurement of the noise' in written['warnings'][0]
  assert written['measured_z_stddev'] is None


def test_building_writes_nothing_and_gives_the_same_again(tmp_path, drawn):
  _make_run(tmp_path / 'run')

  def content():
    return {
      path: path.is_file() and path.read_bytes()
      for path in (tmp_path / 'run').rglob('*')
    }

  before = content()
  first = report.build(tmp_path / 'run')
  assert content() == before
  assert report.write(tmp_path / 'run') == first.content
  assert report.build(tmp_path / 'run').content == first.content
  assert (tmp_path / 'run' / report.HTML_FILE).read_text() == first.html()
  added = {path.name for path in set(content()) - set(before)}
  assert added == {
    'report.md',
    'report.html',
    'report.json',
    'accuracy.png',
    'epsilon.png',
  }


def test_secrets_of_a_run_are_in_no_report(tmp_path, drawn):
  _make_run(tmp_path / 'run')
  (tmp_path / 'run' / 'private' / 'checkpoint').write_bytes(b'state ' * 9)
  before = set((tmp_path / 'run').iterdir())
  report.write(tmp_path / 'run')
  written = set((tmp_path / 'run').iterdir()) - before
  assert len(written) == 5
  for secret in (_SECRET, b'state ' * 9):
    traces = [secret, base64.b64encode(secret), secret.hex().encode()]
    traces += [
      hashlib.new(name, secret).hexdigest().encode()
      for name in ('sha256', 'blake2b')
    ]
    for path in written:
      assert not any(trace in path.read_bytes() for trace in traces), path


def test_report_without_matplotlib_has_no_plots(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'matplotlib', None)
  monkeypatch.delitem(sys.modules, 'tff_bandmf._figures', raising=False)
  monkeypatch.delattr(tff_bandmf, '_figures', raising=False)
  _make_run(tmp_path / 'run')
  assert report.write(tmp_path / 'run')['plots'] == []
  markdown, page, _ = _texts(tmp_path / 'run')
  assert '.png' not in markdown and '<img' not in page


def test_digests_are_those_of_the_files(tmp_path):
  _make_run(tmp_path / 'run')
  digests = report.build(tmp_path / 'run').content['files_sha256']
  # Exports repeat the plan and the ledger, whose head the report has.
  assert set(digests) == {'run.json', 'plan.json'}
  for name, digest in digests.items():
    assert (
      digest
      == hashlib.sha256((tmp_path / 'run' / name).read_bytes()).hexdigest()
    )


def test_digest_of_the_code_changes_with_the_code_alone(tmp_path):
  source = pathlib.Path(report.__file__).parent
  copy = tmp_path / 'copy'
  shutil.copytree(source, copy)
  of_files = report.code_digest.__wrapped__
  digest = of_files(copy)
  (copy / '__pycache__').mkdir(exist_ok=True)
  (copy / '__pycache__' / 'claim.pyc').write_bytes(b'compiled')
  assert digest == of_files(copy)
  assert digest == of_files(source)
  assert digest != report.code_digest()
  (copy / 'claim.py').rename(copy / 'claims.py')
  renamed = of_files(copy)
  (copy / 'claims.py').write_text('x = 1\n')
  assert len({digest, renamed, of_files(copy)}) == 3


def test_key_is_as_wide_as_the_report_says(tmp_path):
  _make_run(tmp_path / 'run')
  generator = report.build(tmp_path / 'run').content['generator']
  assert generator['key_bits'] == 8 * len(noise.Key.from_entropy().secret)
  assert generator['key_source'] == 'not stated'


def test_other_generators_are_refused(tmp_path):
  _make_run(tmp_path / 'run', noise_generator='chacha20')
  report.write(tmp_path / 'run')
  for text in _texts(tmp_path / 'run'):
    assert 'ChaCha20' in text
  _make_run(tmp_path / 'old', noise_generator='philox')
  with pytest.raises(ValueError, match='noise_generator=philox: must be'):
    report.build(tmp_path / 'old')


@pytest.mark.parametrize(
  'value', [8.0, 3.4240072731488453, 0.123456789, 99999.99, 1e-7 / 3]
)
def test_printed_epsilon_is_never_below_the_computed_one(value):
  printed = float(pages.number(value))
  assert value <= printed <= value * (1 + 2e-5)
  assert float(pages.number(value, up=False)) <= value
  assert value <= float(pages.number(value, digits=4)) <= value * (1 + 1e-3)


def test_head_has_rho_in_four_digits_and_units_of_the_logarithm(tmp_path):
  spec = written_run.make_run(tmp_path, written_run.KEPT)
  report.write(tmp_path)
  head = pages.number(spec.rho, digits=4)
  assert float(head) >= spec.rho and len(head) <= 6
  for name in ('report.md', 'report.html'):
    text = (tmp_path / name).read_text()
    assert f'| {head} |' in text or f'>{head}</span></b>' in text
    assert 'error of at most 2 units of its last place' in text


def test_row_of_accounting_is_in_plain_words_for_everybody(tmp_path):
  written_run.make_run(tmp_path, written_run.KEPT)
  text = report.publish([report.of_run(tmp_path)]).content['accounting']
  assert 'rounded up' in text and '_' not in text and 'rho' not in text
