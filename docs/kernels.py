"""Kernels of the notebooks, forked from the process of Sphinx.

A kernel is the process that runs the code of a notebook. The import of
TensorFlow Federated takes 10 s, so Sphinx imports it once, before it forks the
kernels. Each page has its own kernel.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import multiprocessing.context
import os
from typing import Any

from ipykernel import kernelapp
from jupyter_client.provisioning import factory, local_provisioner


class _Kernel(multiprocessing.context.ForkProcess):
  """A kernel, with the methods of `subprocess.Popen` that Jupyter calls."""

  stdin = stdout = stderr = None

  def __init__(self, arguments: list[str], cwd: str, env: dict[str, str]):
    super().__init__(daemon=True)
    self._given = arguments, cwd, env

  def run(self) -> None:
    arguments, cwd, env = self._given
    # Jupyter sends signals to the process group of the kernel, which must not
    # contain Sphinx.
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    # The forked process has a copy of Sphinx's running event loop, which it
    # cannot use.
    asyncio.set_event_loop(asyncio.new_event_loop())
    kernelapp.launch_new_instance(argv=arguments, parent_handle=os.getppid())

  def poll(self):
    return self.exitcode

  def wait(self):
    self.join()
    return self.exitcode


class Forked(local_provisioner.LocalProvisioner):
  """Starts kernels by forking this process."""

  async def launch_kernel(self, cmd: list[str], **kwargs: Any):
    import tensorflow_federated  # noqa: F401

    # The first three arguments are the interpreter, -m and its module.
    self.process = _Kernel(cmd[3:], kwargs['cwd'], kwargs['env'])
    self.process.start()
    self.pid = self.pgid = self.process.pid
    self.cwd = kwargs['cwd']
    return self.connection_info


def use() -> None:
  """Makes Jupyter start forked kernels in this process."""
  provisioners = factory.KernelProvisionerFactory.instance()
  provisioners.provisioners['forked'] = importlib.metadata.EntryPoint(
    'forked', f'{__name__}:Forked', provisioners.GROUP_NAME
  )
  provisioners.default_provisioner_name = 'forked'
