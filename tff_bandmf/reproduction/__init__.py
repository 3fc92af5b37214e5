"""Published numbers of the literature, computed again by this library."""

from tff_bandmf.reproduction.tables import SLOW, TABLES, Row, reproduce
