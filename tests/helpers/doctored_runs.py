"""Runs of each kind, and files of them that an attacker wrote again."""

import hashlib
import json
import shutil
import sqlite3

import numpy as np

import tff_bandmf
from tff_bandmf import report
from tff_bandmf import verify as verify_lib


def train(folder, cohorts, after=(), stop=None, notes=(), **options):
  """Trains in a folder until round `stop`, and writes what `verify` reads."""
  plan = tff_bandmf.Plan(
    **{
      'rounds': 8,
      'clients_per_round': 6,
      'cohorts': cohorts,
      'epsilon': 8.0,
      'delta': 1e-3,
      'l2_norm_clip': 1.0,
      'mechanism': 'banded-sqrt',
      **options,
    }
  )
  with tff_bandmf.Run(folder, plan, after=after) as run:
    weights = run.restore(lambda: np.zeros(3))
    clients = plan.sampled.population if plan.sampled else 80
    for round in run.rounds(clients=clients):
      if round.index == stop:
        break
      updates = [np.full(3, 0.1) for _ in round.cohort]
      weights = round.finish(weights + round.release(updates, weights))
    else:
      run.note(**dict(notes))
      run.record(test_accuracy=0.24)
  text = report.build(folder).json()
  (folder / 'report.json').write_text(text)


def edit(path, **changes):
  """Changes values of a JSON file by dotted names, and signs it anew."""
  write_signed(path, changed(path, **changes))


def changed(path, **changes):
  """Returns the content of a JSON file with other values, by dotted names."""
  content = json.loads(path.read_text())
  for name, value in changes.items():
    *parents, last = name.split('__')
    place = content
    for parent in parents:
      place = place[parent]
    place[last] = value
  return content


def write_signed(path, content):
  """Writes JSON; a report gets the digest that its figures have now."""
  if content.pop('content_sha256', None):
    text = json.dumps(content, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    content['content_sha256'] = digest
  path.write_text(json.dumps(content))


def rechained(folder, kinds=None):
  """Writes the chain of a folder again, for the files that it has now.

  The attacker removes the checkpoints, which have heads of the first chain.

  Args:
    folder: folder of a run that has ended.
    kinds: maps the kind of an event to the kind and the noise in their place.
  """
  shutil.rmtree(folder / 'private' / 'checkpoints', ignore_errors=True)
  run = json.loads((folder / 'run.json').read_text())
  plan = _digest(folder / 'plan.json').hex()
  result = json.loads((folder / 'result.json').read_text())
  result.pop('ledger_head', None)
  header, *lines = (folder / 'metrics.csv').read_text().splitlines(True)
  digests = {
    line.split(',')[0]: verify_lib.sha((header + line).encode())
    for line in lines
  }
  with sqlite3.connect(folder / 'ledger.sqlite') as database:
    (about,) = database.execute('select * from bandmf_ledger')
    rows = sorted(database.execute('select * from bandmf_events'))
    head = verify_lib.sha(['bandmf ledger', *about[1:5]])
    for i, (_, t, kind, digest, z, tested, payload, _) in enumerate(rows):
      kind, z = (kinds or {}).get(kind, (kind, z))
      if kind == 'enforced':
        digest = verify_lib.sha([run, plan])
      elif kind == 'ended':
        payload = json.dumps(result)
      elif kind == 'row':
        digest = digests.get(str(t), digest)
      texts = [each if each is None else each.hex() for each in (digest, z)]
      head = verify_lib.sha(
        [head.hex(), i, t, kind, *texts, bool(tested), payload]
      )
      if kind == 'ended':
        result['ledger_head'] = head.hex()
      database.execute(
        'update bandmf_events set kind=?, digest=?, z_stddev=?, payload=?, '
        'head=? where place=?',
        [kind, digest, z, payload, head, i],
      )
    database.execute(
      'update bandmf_ledger set events=?, head=?', [len(rows), head]
    )
  database.close()
  (folder / 'result.json').write_text(json.dumps(result))
  path = folder / 'report.json'
  if path.exists():
    content = json.loads(path.read_text())
    content['ledger_head'] = head.hex()
    content['files_sha256'] = {
      name: _digest(folder / name).hex() for name in content['files_sha256']
    }
    write_signed(path, content)


def _digest(path):
  return verify_lib.sha(path.read_bytes())
