"""The noise of a recursion, one round after the other in float64."""

import numpy as np

from tff_bandmf.strategies import recursion as recursion_lib


def run(found, z, z_steps, rounding=np.rint):
  """Returns y, [n, d] float64.

  Args:
    found: recursion of n rounds.
    z: [n, d] float64.
    z_steps: factor of z.
    rounding: function from a row of V to a row of y.
  """
  is_window = isinstance(found, recursion_lib.Window)
  memory = np.zeros((found.memory, *z.shape[1:]))
  y = np.empty(z.shape)
  for t in range(found.rounds):
    if is_window:
      (scale,), (readout,) = found.weights(t, t + 1)
    else:
      scale, readout, update, gain = found.step(int(found.phase(t)))
    past = z_steps if found.keeps == recursion_lib.PAST_Z else 1.0
    y[t] = rounding(
      z_steps * scale * z[t] + past * np.tensordot(readout, memory, 1)
    )
    if not is_window:
      memory = np.tensordot(update, memory, 1) + np.multiply.outer(gain, y[t])
    elif found.memory:
      latest = z[t] if found.keeps == recursion_lib.PAST_Z else y[t]
      memory = np.concatenate([latest[None], memory[:-1]])
  return y


def unrounded(found):
  """Returns C^-1 as the recursion has it, [n, n] float64."""
  return run(found, np.eye(found.rounds), 1.0, rounding=lambda v: v)
