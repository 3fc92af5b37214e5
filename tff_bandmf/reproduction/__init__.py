"""Published figures, computed again."""

from tff_bandmf.reproduction.tables import TABLES, Row, reproduce
