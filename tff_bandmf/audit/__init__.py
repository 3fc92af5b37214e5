"""Audits: how much of a claimed epsilon an attacker can show."""

from tff_bandmf.audit.auditing import Audit, audit
from tff_bandmf.audit.pattern import Pattern, worst
