"""Strategy matrices C, with one file for each kind of matrix."""

from tff_bandmf.strategies import families
from tff_bandmf.strategies.banded import (
  Banded,
  columns_of_rows,
  rows_of_columns,
)
from tff_bandmf.strategies.banded_inverse import BandedInverse
from tff_bandmf.strategies.banded_toeplitz import (
  BandedToeplitz,
  RobustToeplitz,
  taper,
)
from tff_bandmf.strategies.base import Strategy
from tff_bandmf.strategies.blt import Blt
from tff_bandmf.strategies.column_normalized import ColumnNormalized
from tff_bandmf.strategies.custom import custom
from tff_bandmf.strategies.dense import Dense, lower_factor
from tff_bandmf.strategies.dp_cgd import DpCgd
from tff_bandmf.strategies.families import Family, Parameter
from tff_bandmf.strategies.files import (
  check_known,
  check_path,
  from_document,
  load,
  save,
  to_document,
)
from tff_bandmf.strategies.identity import Identity
from tff_bandmf.strategies.inverse_plus_constant import InversePlusConstant
from tff_bandmf.strategies.sqrt_and_fractional import (
  BandedFractional,
  BandedInverseFractional,
  BandedInverseSqrt,
  BandedSqrt,
  Lti,
  SqrtToeplitz,
)
from tff_bandmf.strategies.stamped import Stamped
from tff_bandmf.strategies.toeplitz import Toeplitz
from tff_bandmf.strategies.tree import OnlineTree, Tree

# All families by their names, and all of their parameters by their names.
FAMILIES = families.known()
PARAMETERS = families.parameters()
# Names of the families that are made from parameters or by a search.
SEARCHED = tuple(name for name, each in FAMILIES.items() if not each.forms)
