"""Workloads A: what is made of the noised sums of the rounds."""

from tff_bandmf.workloads.workload import PREFIX, Workload, from_name
