"""What `processes` has imported before it forks; TensorFlow has not started.

No forked process looks through these objects for garbage.
"""

import gc
import importlib

_MODULES = (
  'pytest',
  'tensorflow_federated',
  'simulations.training',
  'sqlalchemy.dialects.sqlite',
  'tff_bandmf.cli.main',
  'tff_bandmf.noise.producer.devices',
  'tff_bandmf.run',
)

gc.disable()
for name in _MODULES:
  importlib.import_module(name)
gc.freeze()
gc.enable()
