"""The documents of a report: the content of `report.json` and `public.json`.

Each class declares the fields of a JSON object once. The checks of a written
file and its JSON Schema follow from the declarations. Markdown, HTML, registry
record and model card show values of these documents.

The description of a field is in the docstring of its class, or else in that of
the first class that describes a field of this name.
"""

from __future__ import annotations

import decimal
import inspect
import json
import re
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Optional, TypedDict, TypeVar

import msgspec

from tff_bandmf import _files, errors

UP, _DOWN = (
  decimal.Context(prec=3, rounding=rounding)
  for rounding in (decimal.ROUND_CEILING, decimal.ROUND_FLOOR)
)
_ABOUT = re.compile(r'^  (\w+): (.*(?:\n    .*)*)', re.MULTILINE)

Count = Annotated[int, msgspec.Meta(ge=0)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
Amount = Annotated[float, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Delta = Annotated[float, msgspec.Meta(gt=0, lt=1)]
Digest = Annotated[str, msgspec.Meta(pattern='^[0-9a-f]{64}$')]
Amplification = Literal['none', 'cyclic-poisson', 'balls-in-bins', 'b-min-sep']
# Numbers of a public report, which have three digits. Privacy losses are
# rounded up, noise down.
Up = Annotated[Optional[Amount], msgspec.Meta(extra={'up': True})]
Down = Annotated[Optional[Amount], msgspec.Meta(extra={'up': False})]


class Notes(TypedDict):
  """Notes of a run that appear at the head of its report.

  Attributes:
    owner: Person or organisation that answers for the model; null: not stated.
    contact: Address for questions; null: not stated.
    date: Date of the training, in the format of the owner; null: not stated.
    model: Kind of the trained model; null: not stated.
    intended_use: Intended use of the model; null: not stated.
    region: Region of the people in the training data; null: not stated.
    sector: Sector, by the names of the registry of deployments; null: not
      stated.
  """

  owner: Optional[str]
  contact: Optional[str]
  date: Optional[str]
  model: Optional[str]
  intended_use: Optional[str]
  region: Optional[str]
  sector: Optional[str]


# Names of notes of a run that appear at the head of its report.
NOTES = ('title', *Notes.__annotations__)


class Guarantee(TypedDict):
  """A guarantee.

  Attributes:
    epsilon: Epsilon at delta, rounded up; null: no guarantee.
    delta: delta of (epsilon, delta), as stated for the run.
    rho: rho of zCDP, not rounded; null: no guarantee.
  """

  epsilon: Optional[Amount]
  delta: Delta
  rho: Optional[Amount]


class Attack(TypedDict):
  """Bounds on the success of an attacker.

  Attributes:
    false_positive_rate: Share of non-members that the attacker takes for
      members.
    true_positive_rate: Largest share of members that the attacker recognises,
      rounded up.
    right_guess: Largest probability of a correct guess if membership has
      probability 1/2, rounded up.
    sentence: The bounds in words.
  """

  false_positive_rate: Share
  true_positive_rate: Share
  right_guess: Share
  sentence: str


class Mechanism(TypedDict):
  """The noise of a run.

  Attributes:
    family: Family of the strategy C.
    rounds: n: number of rounds.
    participation: Name of the participation schema of the claim.
    min_sep: Least difference of two rounds of one client; null: no client takes
      part twice.
    max_participations: Stated largest number of rounds of one client; null:
      only min_sep bounds the number.
    sensitivity: Sensitivity of C under this participation, for clip = 1.
    noise_multiplier: stddev(z) / (clip * sensitivity).
    z_stddev_per_clip: noise_multiplier * sensitivity.
  """

  family: str
  rounds: AtLeastOne
  participation: str
  min_sep: Optional[AtLeastOne]
  max_participations: Optional[AtLeastOne]
  sensitivity: Amount
  noise_multiplier: Amount
  z_stddev_per_clip: Amount


class CheckedRun(Mechanism):
  """A run, with exact numbers.

  Attributes:
    name: Name of the run.
    clients_per_unit: Largest number of clients of a unit of privacy.
    sensitivity_error: Bound of the relative error of the sensitivity, from
      rounding.
    normalized: Whether columns of C are divided by their norms.
    series: The few numbers that define a Toeplitz C: coefficients;
      inverse_coefficients; omega and theta; or decay, for the square root of
      the prefix sum. null: few numbers do not define C.
  """

  name: str
  clients_per_unit: AtLeastOne
  sensitivity_error: Amount
  normalized: bool
  series: Optional[dict[str, Any]]


class CheckedClaim(TypedDict):
  """A claim.

  Attributes:
    name: Name of the claim.
    runs: Indices of the runs of the claim in `runs`.
    delta: delta of (epsilon, delta).
    epsilon: Epsilon at delta without amplification, rounded up.
    rho: rho of zCDP without amplification.
    amplified: Amplified epsilon of the claim; null: the claim is not amplified.
  """

  name: str
  runs: list[Count]
  delta: Delta
  epsilon: Amount
  rho: Amount
  amplified: Optional[Amount]


class Check(TypedDict):
  """Numbers from which a browser recomputes the claim without amplification.

  Attributes:
    digits: Number of digits of the claims in `claims`.
    runs: Runs that the claims count.
    claims: Claims, the leading claim first.
  """

  digits: Literal[3, 17]
  runs: list[CheckedRun]
  claims: list[CheckedClaim]


class DataAccesses(TypedDict):
  """Notes on uses of data outside training.

  Attributes:
    tuning: Hyperparameter tuning.
    model_selection: Choice of the model that is released.
    pre_training: Public pre-training.
  """

  tuning: str
  model_selection: str
  pre_training: str


class Assumption(TypedDict):
  """An assumption.

  Attributes:
    assumption: The assumption.
    enforced_by: Party that enforces the assumption.
    checked: Check of the assumption.
  """

  assumption: str
  enforced_by: str
  checked: str


class CommonFields(Notes):
  """Fields of the report of a run and of the public report.

  Attributes:
    version: Version of this schema. A schema in which a field is removed or
      changes its meaning has a new version.
    format: Format of this file.
    title: Title of the report.
    unit_of_privacy: Unit of privacy: the person or device whose contributions
      become zero.
    unit: Unit of privacy, with its largest number of clients.
    clients_per_unit: Largest number of clients of a unit of privacy.
    warnings: Warnings that a reader has to know before the numbers, worst
      first.
    attack: Bounds on the success of an attacker, from the claim together with
      earlier runs; null: nothing is guaranteed.
    adjacency: Which data sets are neighbours.
    adjacency_meaning: Adjacency in a sentence.
    check: Numbers from which a browser recomputes the claim without
      amplification; null: there is no claim, or its numbers are not public.
    setting: Trusted parties, and the attackers that the guarantee covers.
    released: Values that the guarantee covers.
    covered: Data accesses that the guarantee counts.
    not_covered: Data accesses that the guarantee does not count.
    data_accesses: Notes on uses of data outside training.
    accounting: Type of accounting.
    assumptions: Assumptions of the claim.
    content_sha256: SHA-256 of all other content of this file, as JSON with
      sorted keys. bandmf verify refuses a file with another digest.
  """

  version: Literal[1]
  unit_of_privacy: str
  unit: str
  clients_per_unit: AtLeastOne
  warnings: list[str]
  attack: Optional[Attack]
  adjacency: Literal['zero-out']
  adjacency_meaning: str
  check: Optional[Check]
  setting: str
  released: str
  covered: str
  not_covered: list[str]
  data_accesses: DataAccesses
  accounting: str
  assumptions: list[Assumption]
  content_sha256: Digest


class ClipPoint(TypedDict):
  """The clip after a number of rounds.

  Attributes:
    rounds: Number of rounds done.
    l2_norm_clip: Clip of the next round.
  """

  rounds: Count
  l2_norm_clip: Positive


class AdaptiveClip(TypedDict):
  """Rule and values of an adaptive clip.

  Attributes:
    initial: Clip of the first round; or a list with the clip of each layer.
    quantile: Target share of updates whose norm is below the clip.
    rate: Learning rate of the clip: the factor by which the difference of share
      and target changes the logarithm of the clip.
    fraction_weight: Weight of the indicator in an update.
    until: Round from which the clip is constant; null: the clip adapts in all
      rounds.
    first_l2_norm_clip: Clip of the first round.
    last_l2_norm_clip: Clip after the last round with a known clip.
    path: The clip by number of rounds done. The guarantee covers these released
      values.
  """

  initial: Any
  quantile: Share
  rate: Positive
  fraction_weight: Positive
  until: Optional[int]
  first_l2_norm_clip: Positive
  last_l2_norm_clip: Positive
  path: list[ClipPoint]


class Planned(Guarantee):
  """Planned participation, and its guarantee.

  Attributes:
    min_sep: Least difference of two rounds of one client that the claim allows;
      null: no client takes part twice.
    participations: k: largest number of rounds of one client.
    sensitivity: Sensitivity of C under the planned participation, for clip = 1.
    noise_multiplier: stddev(z) / (clip * sensitivity), the noise multiplier of
      an accountant; 0: no noise.
  """

  rounds: AtLeastOne
  min_sep: Optional[AtLeastOne]
  participations: AtLeastOne
  sensitivity: Amount
  noise_multiplier: Amount


class Enforced(TypedDict):
  """Enforced participation, from run.json.

  Attributes:
    min_sep: Least enforced difference of two rounds of one client.
    max_participations: Largest enforced number of rounds of one client; null:
      only min_sep bounds the number.
    by: Party that enforced both numbers.
  """

  min_sep: Optional[int]
  max_participations: Optional[int]
  by: str


class ObservedGuarantee(Guarantee):
  """Observed participation in the ledger or log, and its guarantee.

  Attributes:
    rounds: Number of started rounds; the claim is for the number that was fixed
      before the first round, or else for all planned rounds.
    rounds_finished: Number of finished rounds.
    rounds_burnt: Number of burnt rounds: the claim counts these rounds, and
      they did not change the model.
    clients: Number of different clients that took part; null: kept secret, or
      not known.
    min_cohort: Smallest number of clients in a round; null: kept secret, or not
      known.
    max_cohort: Largest number of clients in a round; null: kept secret, or not
      known.
    min_sep: Least difference of two rounds of one client; null: no client took
      part twice.
    participations: Largest number of rounds of one client; null: kept secret,
      or not known.
    sensitivity: Sensitivity of C for the observed participation, for clip = 1;
      null: no client took part.
    sensitivity_method: Whether the sensitivity is exact or an upper bound.
    epsilon: Epsilon at delta for the observed participation alone, rounded up;
      null: no guarantee.
  """

  rounds: Count
  rounds_finished: Count
  rounds_burnt: Count
  clients: Optional[Count]
  min_cohort: Optional[Count]
  max_cohort: Optional[Count]
  min_sep: Optional[AtLeastOne]
  participations: Optional[Count]
  sensitivity: Optional[Amount]
  sensitivity_method: Optional[str]
  noise_multiplier: Optional[Amount]


class OtherRelease(TypedDict):
  """Guarantee of a release of another program on the same clients.

  Attributes:
    name: Name of the release.
    epsilon: Epsilon of its guarantee; null: another kind of guarantee.
    delta: delta of this epsilon; 0 for another kind of guarantee.
    rho: rho of zCDP; null: another kind of guarantee.
    noise_multiplier: Standard deviation / sensitivity of a Gaussian query;
      null: another kind of guarantee.
  """

  name: str
  epsilon: Optional[Amount]
  delta: Share
  rho: Optional[Amount]
  noise_multiplier: Optional[Positive]


class Together(Guarantee):
  """Guarantee of the run together with others on the same clients.

  Attributes:
    runs: Names of the runs.
    composition: Whether the composition is exact or an upper bound.
    rho: rho of zCDP, rounded up; null: no rho is proved.
    epsilon: Epsilon at delta, rounded up.
  """

  runs: list[str]
  composition: str
  adjacency: Literal['zero-out']


class Point(TypedDict):
  """Epsilon at one delta.

  Attributes:
    delta: delta of this entry.
    epsilon: Epsilon at delta, rounded up; null: no guarantee.
  """

  delta: Share
  epsilon: Optional[Amount]


class Sampling(TypedDict):
  """Planned sampling of the cohorts.

  Attributes:
    kind: Kind of the sampled cohorts.
    rule: Rule by which cohorts are drawn.
    drawn: Result of the comparison of the cohorts with the sampling key, from
      the ledger.
    as_drawn: Whether the sampling key gives the cohorts in the ledger; null:
      nobody compared the cohorts, for instance before run.record().
    complete: Whether every sum has one update of each drawn client; false: the
      claim is not amplified.
    epsilon_unamplified: Epsilon at delta without amplification, rounded up;
      null: no guarantee.
    samples: Number of random samples that bound delta; null: the bound needs no
      samples.
    failure_probability: Probability that the bound from samples fails, a part
      of delta; null: the bound needs no samples.
  """

  kind: str
  rule: str
  drawn: str
  as_drawn: Optional[bool]
  complete: bool
  epsilon_unamplified: Optional[Amount]
  samples: Optional[Count]
  failure_probability: Optional[Amount]


class SideRelease(TypedDict):
  """A release without noise.

  Attributes:
    where: File or other source of the release.
    what: Content of the release.
  """

  where: str
  what: str


class Generator(TypedDict):
  """Random generator of the noise.

  Attributes:
    algorithm: Algorithm of the generator.
    key_bits: Number of bits of the key.
    key_use: Use of the bits of the key.
    normals: Method that makes Gaussian numbers, and its limits.
    key_source: Source of the key, from run.json.
  """

  algorithm: str
  key_bits: AtLeastOne
  key_use: str
  normals: str
  key_source: str


class Metrics(TypedDict, total=False):
  """Results with a column of their own.

  Attributes:
    test_accuracy: Test accuracy, in [0, 1].
    test_loss: Test loss, the mean over tokens.
    parameters: Number of parameters of the model.
  """

  test_accuracy: float
  test_loss: float
  parameters: float


class Results(Metrics):
  """One run.

  Attributes:
    name: Family of the strategy; for a run in compare/, the name of its folder.
    sensitivity: Sensitivity of C for clip = 1.
    rmse: sensitivity * sqrt(mean_error).
    results: Results that run.record() recorded, by name.
  """

  name: str
  epsilon: Optional[Amount]
  delta: Delta
  sensitivity: Amount
  rmse: Amount
  results: dict[str, float]


class RunFacts(TypedDict):
  """Facts of a run in its report and in the public report.

  Attributes:
    completed: Whether the end of the run was recorded; for training elsewhere,
      whether the claim has all planned rounds.
    elsewhere: Whether training ran outside this library, so that there is no
      ledger, and at most a log.
    amplification: Kind of sampling that amplifies the claim.
    clients_per_round: Divisor of the mean.
    strategy_sha256: SHA-256 of the strategy, from Strategy.digest.
    code_sha256: SHA-256 of the code of the training; null: not stated.
  """

  completed: bool
  elsewhere: bool
  amplification: Amplification
  clients_per_round: Positive
  participations: AtLeastOne
  strategy_sha256: Digest
  code_sha256: Optional[str]


class Report(CommonFields, Mechanism, Guarantee, RunFacts):
  """The privacy report of a training run with correlated noise.

  Attributes:
    title: Title of the report; null: not stated.
    summary: The claim in one or two sentences; its numbers are rounded in the
      safe direction.
    simulated: Whether the cohorts of the run stand for larger cohorts; such a
      report claims nothing for a deployment.
    process_checked: Whether the process of every finished round was checked for
      values that bypass the aggregator; null: no round had a process, since the
      program gave updates to round.release.
    stated: Whether only a plan states the participation, and no ledger and no
      log was read.
    violated: Whether clients took part more often, or closer together, than was
      planned; the claim is then for the observed participation.
    rounds: n: number of planned rounds.
    bands: Number of non-zero diagonals of C, with the main diagonal.
    buffers: Number of buffers of a BLT; null: another family.
    parameters: Parameters of the family, by name.
    min_sep: Least difference of two rounds of one client that the claim allows;
      null: no client takes part twice.
    apart: For a budget: least difference of two rounds of one client. The
      budget is the cost of max_participations rounds that are min_sep apart.
      null: another schema.
    horizon: For a budget: number of rounds up to which the run may continue
      with this claim; null: another schema.
    participations: k: largest number of rounds of one client that the claim
      allows.
    sensitivity_reason: Theorem or algorithm that gives the sensitivity.
    noise_multiplier: stddev(z) / (clip * sensitivity), the noise multiplier of
      an accountant; 0: no noise.
    clients_per_unit: Largest number of clients of a unit of privacy; the
      sensitivity includes this factor.
    z_stddev: z_stddev_per_clip * l2_norm_clip: standard deviation of an entry
      of z.
    measured_z_stddev: Smallest standard deviation of z in a round, by the
      ledger; null: the ledger lacks the standard deviation of a round.
    mean_error: Mean of the expected squared errors of the n prefix sums, for z
      of standard deviation 1.
    max_error: Largest of the expected squared errors of the n prefix sums.
    rmse: sensitivity * sqrt(mean_error).
    max_rmse: sensitivity * sqrt(max_error).
    l2_norm_clip: Largest L2 norm of a contribution; for an adaptive clip, of an
      update with its indicator in the first round.
    adaptive_clip: Rule and values of an adaptive clip; null: the clip is
      constant.
    planned: Planned participation, and its guarantee.
    enforced: Enforced participation, from run.json; null: not stated.
    observed: Observed participation in the ledger or log, and its guarantee.
    together: Guarantee of the run together with earlier runs and other releases
      on the same clients; null: none is named, or nothing is guaranteed.
    other_releases: Releases of other programs on the same clients, as the
      operator states them; `together` counts them.
    epsilons: Epsilon of the claim at several deltas.
    epsilon_curve: Points (epsilon, delta) that hold at the same time, from
      large to small delta; empty without noise.
    sampling: Planned sampling of the cohorts; null: the cohorts are enforced.
    formal_statement: The guarantee as a mathematical statement; its numbers are
      not rounded.
    side_releases: Releases without noise.
    population: Number of clients that may be drawn or have left.
    data: The corpus, in a few words.
    generator: Random generator of the noise; null: training ran elsewhere.
    runs: Results of the run and of the runs in compare/; empty before the end
      of the run.
    plots: Image files in the folder of the report.
    versions: Version of each package at training, by name.
    report_versions: Version of each package when the report was written, by
      name.
    report_code_sha256: SHA-256 of the code that wrote the report.
    train_sha256: SHA-256 of the training data; null: not stated.
    files_sha256: SHA-256 of each file of the run, by name; for the ledger see
      ledger_head.
    ledger_head: Last hash of the ledger's chain of hashes. Note it outside of
      the folder, and give it to Run(ledger_head=...) after the folder was
      restored. null: training ran elsewhere.
  """

  format: Literal['tff_bandmf.report']
  title: Optional[str]
  summary: str
  simulated: bool
  process_checked: Optional[bool]
  stated: bool
  violated: bool
  bands: AtLeastOne
  buffers: Optional[AtLeastOne]
  parameters: dict[str, Any]
  apart: Optional[AtLeastOne]
  horizon: Optional[AtLeastOne]
  sensitivity_method: Literal['exact', 'upper_bound']
  sensitivity_reason: str
  z_stddev: Amount
  measured_z_stddev: Optional[Amount]
  mean_error: Amount
  max_error: Amount
  rmse: Amount
  max_rmse: Amount
  l2_norm_clip: Positive
  adaptive_clip: Optional[AdaptiveClip]
  planned: Planned
  enforced: Optional[Enforced]
  observed: ObservedGuarantee
  together: Optional[Together]
  other_releases: list[OtherRelease]
  epsilons: list[Point]
  epsilon_curve: list[Point]
  sampling: Optional[Sampling]
  formal_statement: str
  side_releases: list[SideRelease]
  population: Optional[Count]
  data: str
  generator: Optional[Generator]
  runs: list[Results]
  plots: list[str]
  versions: dict[str, Any]
  report_versions: dict[str, str]
  report_code_sha256: Digest
  train_sha256: Optional[str]
  files_sha256: dict[str, str]
  ledger_head: Optional[Digest]


class PublicTogether(TypedDict):
  """Guarantee of all runs and other releases together.

  Attributes:
    epsilon: Epsilon at delta, three digits, rounded up.
    rho: rho of zCDP, three digits, rounded up; null: no rho is proved.
  """

  epsilon: Up
  rho: Up
  composition: str


class PublicRun(RunFacts):
  """A run.

  Attributes:
    name: Title of the run, else the name of its folder.
    epsilon: Claimed epsilon at delta, three digits, rounded up; null: no
      guarantee.
    rho: rho of zCDP without amplification, three digits, rounded up; null: no
      rho is proved.
    delta: delta of (epsilon, delta).
    epsilon_unamplified: Epsilon without amplification, three digits, rounded
      up; null: no epsilon is proved.
    planned_epsilon: Epsilon for the planned participation, three digits,
      rounded up; null: no epsilon is proved.
    observed_epsilon: Epsilon for the observed participation, three digits,
      rounded up; null: no epsilon is proved, or the epsilon is kept secret.
    kept: Whether the observed participation followed the planned schema.
    rounds: n: number of planned rounds.
    min_sep: Least difference of two rounds of one client that the claim allows;
      null: no client takes part twice.
    participations: k: largest planned number of rounds of one client.
    noise_multiplier: stddev(z) / (clip * sensitivity), three digits, rounded
      down; 0: no noise.
    l2_norm_clip: Largest L2 norm of a contribution; null: the clip is adaptive.
  """

  name: str
  model: Optional[str]
  date: Optional[str]
  epsilon: Up
  rho: Up
  delta: Delta
  epsilon_unamplified: Up
  planned_epsilon: Up
  observed_epsilon: Up
  kept: bool
  rounds: AtLeastOne
  min_sep: Optional[AtLeastOne]
  family: str
  noise_multiplier: Down
  l2_norm_clip: Optional[Positive]


class Public(CommonFields):
  """The public privacy report of one or several runs.

  Attributes:
    epsilon: Epsilon at delta of all runs together, three digits, rounded up;
      null: no guarantee.
    delta: delta of (epsilon, delta).
    rho: rho of zCDP, three digits, rounded up; null: no rho is proved.
    once_in: 1 / delta, rounded down.
    factor: e^epsilon as text, rounded up; null: no guarantee.
    runs: The runs.
    together: Guarantee of all runs and other releases together; null: there is
      one run alone, or nothing is guaranteed.
    other_releases: Releases of other programs on the same clients, as the
      operator states them; the claim counts them.
    named_before: Names of earlier runs on the same clients that the claim
      counts.
    told: Sentences that name the facts that the report states without noise.
  """

  format: Literal['tff_bandmf.public_report']
  title: str
  epsilon: Up
  delta: Delta
  rho: Up
  once_in: AtLeastOne
  factor: Optional[str]
  runs: list[PublicRun]
  together: Optional[PublicTogether]
  other_releases: list[OtherRelease]
  named_before: list[str]
  told: list[str]


_Kind = TypeVar('_Kind')


def three(value: Optional[float], up: bool = True) -> Optional[float]:
  """Returns a number with three digits, rounded up or down; None for None.

  PRIVACY: an epsilon that is rounded down, or a noise multiplier that is
  rounded up, would claim too much. Callers round privacy loss up and noise
  down.
  Guard: document_test.test_figures_are_rounded_to_the_safe_side.
  """
  if value is None:
    return None
  # `repr` gives the shortest decimal of the float, so 1.2 stays 1.2.
  return float((UP if up else _DOWN).create_decimal(repr(float(value))))


def select(kind: type[_Kind], values: Mapping[str, Any]) -> _Kind:
  """Returns the declared fields of a document, rounded as they are declared.

  PRIVACY: exact numbers, and counts of clients, of a public report could show
  the rounds of one client. This function leaves out every value that the
  document does not declare, and rounds the values that it declares with three
  digits.
  Guard: document_test.test_declared_fields_alone_are_taken_and_rounded.

  Args:
    kind: type of the document.
    values: maps names of fields, and perhaps other names, to values.
  """
  fields = {}
  for name, hint in typing.get_type_hints(kind, include_extras=True).items():
    if name in values:
      fields[name] = value = values[name]
      for meta in getattr(hint, '__metadata__', ()):
        if meta.extra:
          fields[name] = three(value, **meta.extra)
  return typing.cast(_Kind, fields)


def with_digest(kind: type[_Kind], values: Mapping[str, Any]) -> _Kind:
  """Returns a checked document with the digest of its other content.

  PRIVACY: a number in the JSON file could be edited, and readers would take it
  for a number of the run. This function stores a digest, with which `verify`
  finds the edit, unless somebody also computed the digest again.
  Guard: forgery_test.test_forged_report_is_refused.

  Args:
    kind: type of the document.
    values: maps names of fields, and perhaps other names, to values.

  Raises:
    ValueError: a field is missing, has a wrong type, or is out of its range.
  """
  content = typing.cast(dict[str, Any], select(kind, values))
  content['content_sha256'] = _files.json_digest(content).hex()
  try:
    msgspec.json.decode(json.dumps(content, allow_nan=False), type=kind)
  except msgspec.ValidationError as error:
    raise errors.value_error(
      f'report={kind.__name__}: {error}; restore the files of the run'
    ) from error
  return typing.cast(_Kind, content)


def json_schema(name: str = 'report') -> _files.JsonObject:
  """Returns the JSON Schema of `report.json`, or of `public.json`.

  Args:
    name: 'report' or 'public'.
  """
  kind = {'report': Report, 'public': Public}[name]
  _, parts = msgspec.json.schema_components([kind], ref_template='{name}')
  about: dict[str, str] = {}
  for each in reversed(list(globals().values())):
    if hasattr(each, '__total__'):
      about.update(_descriptions(each))

  def whole(node: _files.Json) -> _files.Json:
    if isinstance(node, list):
      return [whole(each) for each in node]
    if not isinstance(node, dict):
      return node
    if '$ref' not in node:
      return {key: whole(value) for key, value in node.items()}
    part = parts[node['$ref']]
    described = {**about, **_descriptions(globals()[node['$ref']])}
    return {
      **part,
      'description': part['description'].partition('\n')[0],
      'properties': {
        key: {**whole(value), 'description': described[key]}
        for key, value in part['properties'].items()
      },
      'additionalProperties': False,
    }

  return {
    '$schema': 'https://json-schema.org/draft/2020-12/schema',
    **whole({'$ref': kind.__name__}),
  }


def _descriptions(kind: type) -> dict[str, str]:
  """Returns the description of each field in the docstring of a document."""
  # Since Python 3.13, docstrings have no common indentation.
  pairs = _ABOUT.findall(inspect.cleandoc(kind.__doc__ or ''))
  return {name: ' '.join(text.split()) for name, text in pairs}
