"""Kinds of cohorts: each with its rule, its sampler and its proof."""
