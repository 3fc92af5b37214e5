"""Audits: attacks that give lower bounds on the epsilon of a run."""

from tff_bandmf.audit.auditing import Audit, audit, has_tff
from tff_bandmf.audit.pattern import Pattern, worst
