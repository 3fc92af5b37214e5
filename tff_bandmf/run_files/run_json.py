"""Names of the files in a run's folder; `run.json` and `result.json`.

plan.json       the plan: the user's request, the strategy matrix C, the noise
run.json        the fixed details of the run, see `RunDetails`
ledger.sqlite   for each round: keyed hashes of its clients, the digest of its
                released sum, the released clip, and the digest of its row of
                metrics; the notes on the run; at the end of the run, the
                measured results of the last model
strategy.json   export of C; the library only compares exports with their source
metrics.csv     export of the rows of metrics, one for each round
result.json     export of the results and of the last head of the ledger's chain
private/        files that are never published; mode 0700:
  noise.key       the key of the noise
  sampling.key    the key by which cohorts are sampled
  population.json a keyed fingerprint of the clients that can be sampled
  place.json      the host, and the inodes of the folder and the keys; whether
                  the run has begun
  metrics/        one file for each round: its row of metrics, and numbers
                  without noise
  metrics.csv     export of the files of metrics/, in one table
  tensorboard/    numbers of rounds for TensorBoard, see `Run.tensorboard`
  definition.npz  C and the noise's standard deviation, exact to the last bit
  ledger.key      the key by which the ledger hashes clients
  ledger.url      the location of a ledger outside of the folder
  checkpoints/    states of the learning process, which may contain noise
  released/       one file for each released sum, see `noise.released_sums`
"""

from __future__ import annotations

import json
import pathlib
import typing
import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional

import attrs
import msgspec

from tff_bandmf import _files, errors
from tff_bandmf.plan import plan as plan_lib

if TYPE_CHECKING:
  from tff_bandmf.noise import key as key_lib

RUN_FORMAT = 'tff_bandmf.run'
RUN_VERSION = 4

RUN_FILE = 'run.json'
PLAN_FILE = 'plan.json'
STRATEGY_FILE = 'strategy.json'
LEDGER_FILE = 'ledger.sqlite'
METRICS_FILE = 'metrics.csv'
TABLE = 'private/metrics.csv'
TENSORBOARD = 'private/tensorboard'
RESULT_FILE = 'result.json'
PRIVATE = 'private'
NOISE_KEY = 'private/noise.key'
# Suffix of the name of a key file until the start of the run is complete.
NEW_KEY = '.new'
LEDGER_KEY = 'private/ledger.key'
LEDGER_URL = 'private/ledger.url'
SAMPLING_KEY = 'private/sampling.key'
POPULATION = 'private/population.json'
PLACE = 'private/place.json'
DEFINITION = 'private/definition.npz'
CHECKPOINTS = 'private/checkpoints'
# Folder with one file for each released sum, see `noise.released_sums`.
RELEASED = 'private/released'

LEDGER_HEAD = 'ledger_head'

# Items of `not_covered` about updates that added nothing to the sum.
SOME_ZERO = (
  'that updates of some rounds were zero or not finite, and added nothing'
)
ALL_ZERO = (
  'that all updates of some rounds were zero or not finite: these rounds '
  'released noise alone'
)

# Values that `RunDetails.with_key` computes: `run_id` from the noise key, the
# plan and the values that may not change; `noise_key_id` from the key alone.
IDENTITY_KEYS = ('run_id', 'noise_key_id')
# Values that describe code, and the ID of the sampling key. An ended run has no
# more rounds and perhaps no key. So a program with different code may open an
# ended run, and these values are not compared.
_OPEN_RUN_KEYS = ('versions', 'code_sha256', 'sampling_key_id')
_Identity = Annotated[str, msgspec.Meta(pattern=r'^[0-7][0-9a-f]{15}\Z')]
# Folder of an earlier run, relative to the folder of this run, and its ID.
Predecessor = Annotated[
  dict[Literal['run', 'run_id'], str], msgspec.Meta(min_length=2)
]


def _note(default: object = None) -> Any:
  """Declares a detail of a run that may change after the first round.

  Such a detail describes the training and does not control it. It is in the
  ledger, and not in `run.json`.
  """
  return attrs.field(default=default, metadata={'changes': True})


@attrs.frozen(kw_only=True)
class RunDetails:
  """The details of a run: facts for its report, fixed ones and notes.

  `run.json`, which is written before the first round, has the details that are
  fixed. The ledger has the notes: the details that may change.

  An attribute of type 'text' is a few words. The report shows 'not stated' for
  None.

  Attributes:
    unit_of_privacy: text: the person or device whose contributions are zeroed
      in a neighbouring data set; if empty, `unit` of the plan.
    population: number of clients that may be drawn, plus number of clients that
      have left, >= 0; None if no cohort was drawn from a list of clients.
    highest_client: highest client index, >= -1; -1 if clients are strings. If
      None, the highest index is `population` - 1.
    data: text: name of the training data.
    released: text: values that the guarantee covers.
    not_covered: list of texts: accesses to data that the guarantee does not
      cover.
    side_releases: list of texts: values that are released without noise.
    config: configuration of a training program; no report shows it.
    clients_left: upper bound on the number of clients that took part and have
      left the population, >= 0; 0 if None.
    setting: sentence: the parties that the guarantee trusts.
    covered: sentence: accesses to data that the guarantee covers.
    noise_key: sentence: source of the noise key.
    noise_generator: text: name of the generator of the noise.
    tuning: sentence: parameters that were tuned, and on which data.
    model_selection: sentence: rule by which the released model was chosen.
    pre_training: sentence: source of the initial weights.
    process: sentence: result of `Run.check`. It names the values of clients
      that reach an output of the learning process without the aggregator.
    key_after: sentence: fate of the key, tapes and buffers after the run.
    clipped_by: text: party that clips the updates.
    versions: dict from the name of a package to its version.
    code_sha256: SHA-256 of the code of this package.
    train_sha256: SHA-256 of the training data.
    initial_sha256: SHA-256 of pre-trained initial weights, 64 hexadecimal
      digits; None if a seed gives the initial weights.
    run_id: ID of the run, 63 bits in 16 hexadecimal digits. The ledger is bound
      to this ID.
    noise_key_id: ID of the noise key, 16 hexadecimal digits.
    sampling_key_id: ID of the key by which cohorts are sampled, 16 hexadecimal
      digits; None if the plan's cohorts are not sampled.
    title: text: title of a published report.
    owner: text: person or organisation that answers for the model; several
      are separated by semicolons.
    contact: text: address for questions.
    date: text: date of the training, in any format.
    model: text: kind of model.
    intended_use: sentence: purpose of the model.
    region: text: region of the people in the data.
    sector: text, one of `report.registry_and_card.SECTORS`.
    after: list of earlier runs on the same clients. Each is a dict of `run`, a
      folder relative to the folder of this run, and `run_id`.
  """

  unit_of_privacy: str = _note('')
  data: str = _note('not stated')
  released: str = 'the model after every round'
  not_covered: list[str] = _note(attrs.Factory(list))
  side_releases: list[str] = _note(attrs.Factory(list))
  config: Optional[_files.JsonObject] = None
  population: Optional[int] = _note()
  highest_client: Optional[int] = _note()
  clients_left: Optional[int] = _note()
  setting: Optional[str] = None
  covered: Optional[str] = None
  noise_key: Optional[str] = None
  noise_generator: Optional[str] = None
  tuning: Optional[str] = _note()
  model_selection: Optional[str] = _note()
  pre_training: Optional[str] = _note()
  process: Optional[str] = _note()
  key_after: Optional[str] = _note()
  clipped_by: Optional[str] = None
  versions: Optional[dict[str, str]] = None
  code_sha256: Optional[str] = None
  train_sha256: Optional[str] = None
  initial_sha256: Optional[str] = None
  run_id: Optional[_Identity] = None
  noise_key_id: Optional[_Identity] = None
  sampling_key_id: Optional[str] = None
  title: Optional[str] = _note()
  owner: Optional[str] = _note()
  contact: Optional[str] = _note()
  date: Optional[str] = _note()
  model: Optional[str] = _note()
  intended_use: Optional[str] = _note()
  region: Optional[str] = _note()
  sector: Optional[str] = _note()
  after: Optional[list[Predecessor]] = None

  def __attrs_post_init__(self):
    wrong = [
      name
      for name, kind in _TYPES.items()
      if not _has_type(getattr(self, name), kind)
    ]
    if wrong:
      raise ValueError(f'lacks {", ".join(wrong)}, or has a wrong type there')

  def to_dict(self) -> _files.JsonObject:
    """Returns the content of `run.json`, without values that are not set."""
    values = attrs.asdict(self, recurse=False)
    return {
      'format': RUN_FORMAT,
      'version': RUN_VERSION,
      **{name: values[name] for name in _FIXED if values[name] is not None},
    }

  def with_key(self, key: key_lib.Key, directory: pathlib.Path) -> RunDetails:
    """Returns the details with the IDs of the run and of its noise key.

    Both IDs are one-way functions of the key.

    Args:
      key: noise key.
      directory: folder of the run with `plan.json`.
    """
    anonymous = attrs.evolve(self, run_id=None, noise_key_id=None)
    content = anonymous.enforced_digest(directory)
    return attrs.evolve(
      self,
      # PRIVACY: an edited plan or `run.json` could claim a smaller epsilon than
      # the run has. The run ID is a keyed hash of the plan and of all values
      # that may not change. So nobody without the noise key can compute the ID
      # for an edited file, and `folder.open_run` refuses details with a wrong
      # ID.
      # Guard: folder_test.test_edited_copy_is_refused.
      run_id=f'{key.identify(content):016x}',
      noise_key_id=f'{key.identify(b""):016x}',
    )

  def with_notes(self, notes: Mapping[str, Any]) -> RunDetails:
    """Returns the details with new values of notes.

    Args:
      notes: {name of the note: new value}.

    Raises:
      ValueError: a name is not the name of a note, or a value has a wrong type.
    """
    for name in sorted({*notes} - {*NOTES}):
      raise errors.value_error(
        f'{name}={notes[name]}: is not a note that a run may change; use one '
        f'of {", ".join(NOTES)}'
      )
    check_visible(notes)
    return attrs.evolve(self, **notes)

  def notes(self) -> dict[str, Any]:
    """Returns the notes that differ from their default."""
    default = RunDetails()
    return {
      name: getattr(self, name)
      for name in NOTES
      if getattr(self, name) not in (getattr(default, name), '')
    }

  def bound(self) -> tuple[int, int]:
    """Returns the IDs of the run and noise key to which the ledger is bound."""
    if self.run_id is None or self.noise_key_id is None:
      raise ValueError(f'lacks {" or ".join(IDENTITY_KEYS)}')
    return int(self.run_id, 16), int(self.noise_key_id, 16)

  def enforced_digest(self, directory: pathlib.Path) -> bytes:
    """Returns the SHA-256 of the values that may not change and of the plan.

    Args:
      directory: folder of the run with `plan.json`.
    """
    # PRIVACY: If one number in run.json or plan.json is edited after a round,
    # the report could claim a fraction of the true epsilon. The ledger's chain
    # stores this digest at the start of every round, and the report compares it
    # with the digest of the present files and refuses a difference.
    # Guard: forgery_test.test_forged_run_is_refused_by_report_and_verifier.
    return _files.json_digest(
      [self.to_dict(), _files.sha256(directory / PLAN_FILE)]
    )

  def write(self, directory: pathlib.Path) -> None:
    """Writes the details to `run.json`.

    Raises:
      ValueError: an ID is missing, which `with_key` sets.
    """
    self.bound()
    _files.write_json(directory / RUN_FILE, self.to_dict())

  @classmethod
  def read(cls, directory: pathlib.Path) -> RunDetails:
    """Returns the details in `run.json`, without the notes in the ledger.

    Raises:
      ValueError: `run.json` is missing, or has another format or version, or a
        value of a wrong type.
    """
    path = directory / RUN_FILE
    try:
      content = _files.read_json(path)
    except FileNotFoundError as error:
      raise errors.value_error(
        f'run={directory}: has no {RUN_FILE}; give the folder of a run'
      ) from error
    except ValueError as error:
      raise errors.value_error(f'run={path}: is damaged; restore it') from error
    if not isinstance(content, dict) or (
      content.pop('format', None),
      content.pop('version', None),
    ) != (RUN_FORMAT, RUN_VERSION):
      raise errors.value_error(
        f'run={path}: must be {RUN_FORMAT} version {RUN_VERSION}; end it with '
        'the release that began it, or train again'
      )
    try:
      names = {*content} & {*_FIXED}
      details = cls(**{name: content.pop(name) for name in names})
      details.bound()
      lost = sorted({*details.to_dict()} - names - {'format', 'version'})
      if lost:
        raise ValueError(f'lacks {", ".join(lost)}')
      if content:
        raise ValueError(f'has unknown values, {", ".join(content)}')
      return details
    except ValueError as error:
      raise errors.value_error(f'run={path}: {error}; restore it') from error

  def check_same(self, expected: RunDetails, ended: bool) -> None:
    """Raises ValueError if `expected` has the details of another run.

    Args:
      expected: details from the program that continues the run, without the IDs
        of run and key.
      ended: whether the run has ended.
    """
    old, new = (
      _flat(json.loads(json.dumps(details.to_dict())))
      for details in (self, expected)
    )
    # The configuration is compared first, since the other values follow from
    # it.
    for name in sorted(
      {*old, *new} - {*IDENTITY_KEYS},
      key=lambda name: (not name.startswith('config.'), name),
    ):
      if ended and name.split('.')[0] in _OPEN_RUN_KEYS:
        continue
      if old.get(name) != new.get(name):
        raise errors.value_error(
          f'{name}={new.get(name)}: another configuration, corpus or version '
          f'than the run started with, {old.get(name)}; restore the old value, '
          'or choose another directory'
        )


def read_plan(directory: pathlib.Path) -> plan_lib.Plan:
  """Returns the plan of a run.

  Raises:
    ValueError: the file is missing or damaged, or contradicts itself.
  """
  path = directory / PLAN_FILE
  if not path.exists():
    raise errors.value_error(
      f'plan={path}: is gone; restore the file that the run was started with: '
      'no other plan fits the noise of the run'
    )
  return plan_lib.Plan.load(path)


_TYPES = typing.get_type_hints(RunDetails, include_extras=True)
_FIELDS = attrs.fields(RunDetails)
# Names of the details that may change after the first round, and of the others.
NOTES = tuple(field.name for field in _FIELDS if field.metadata)
_FIXED = tuple(field.name for field in _FIELDS if not field.metadata)


def check_visible(notes: Mapping[str, Any]) -> None:
  """Raises ValueError if a text in a note has no letter and no digit.

  Args:
    notes: maps the name of a note to its value.
  """
  for name, value in notes.items():
    for text in value if isinstance(value, list) else [value]:
      if isinstance(text, str) and not any(map(str.isalnum, text)):
        raise errors.value_error(
          f'{name}={text!r}: has no letter and no digit, so a reader learns '
          'nothing from it; give a text, or leave the note out'
        )


def _has_type(value: object, kind: object) -> bool:
  """Returns whether a value has a type, and all texts in it are printable."""
  try:
    msgspec.convert(value, kind)
  except msgspec.ValidationError:
    return False
  return _is_printable(value)


def _is_printable(value: _files.Json) -> bool:
  """Returns whether the texts in a JSON value have no control characters.

  Unpaired surrogates count as control characters. With control characters, a
  report could look different from its content.
  """
  if isinstance(value, dict):
    return all(map(_is_printable, (*value, *value.values())))
  if isinstance(value, list):
    return all(map(_is_printable, value))
  return not isinstance(value, str) or not any(
    unicodedata.category(character) in ('Cc', 'Cs') for character in value
  )


def _flat(tree: _files.Json, prefix: str = '') -> _files.JsonObject:
  """Returns {dotted name: leaf} of nested JSON objects."""
  if not isinstance(tree, dict):
    return {prefix: tree}
  return {
    name: leaf
    for key, value in tree.items()
    for name, leaf in _flat(value, f'{prefix}.{key}' if prefix else key).items()
  }
