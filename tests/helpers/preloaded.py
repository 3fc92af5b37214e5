"""Imports the modules that forked processes of `processes` need.

TensorFlow is imported, but has not started its threads. `gc.freeze` keeps
garbage collections of forked processes from visiting the imported objects.
"""

import gc
import importlib

_MODULES = (
  'pytest',
  'tensorflow_federated',
  'simulations.training',
  'sqlalchemy.dialects.sqlite',
  'tff_bandmf.cli.main',
  'tff_bandmf.run',
)

gc.disable()
for name in _MODULES:
  importlib.import_module(name)
gc.freeze()
gc.enable()
