"""A grid for Flower that runs the clients of a simulation in this process.

Flower's simulation engine starts workers of Ray. Their start takes longer than
the rounds of a small model.
"""

import types
from collections.abc import Iterable
from typing import Optional

from flwr import app, clientapp
from flwr.proto import node_pb2
from flwr.supercore import task_identity
from flwr.superlink import grid as grids


class LocalGrid(grids.InMemoryGrid):
  """Calls a `ClientApp` for each message, one after another."""

  def __init__(self, client_app: clientapp.ClientApp, nodes: int):
    """Initializes the grid.

    Args:
      client_app: application of all clients.
      nodes: number of clients. The order of their node IDs differs from the
        order of their partitions, so that code cannot confuse the two.
    """
    # As in Flower's simulation engine, messages carry these three IDs.
    task = task_identity.TaskIdentity
    task.task_id = task.run_id = task.node_id = 1
    self._client_app = client_app
    self._nodes = {7919 * (i + 1) % 1000003: i for i in range(nodes)}
    self.state = types.SimpleNamespace(
      get_node_info=lambda: [
        node_pb2.NodeInfo(node_id=node) for node in self._nodes
      ]
    )

  def get_node_ids(self) -> Iterable[int]:
    return set(self._nodes)

  def send_and_receive(
    self, messages: Iterable[app.Message], *, timeout: Optional[float] = None
  ) -> Iterable[app.Message]:
    return [self._reply(message) for message in messages]

  def _reply(self, message: app.Message) -> app.Message:
    node = message.metadata.dst_node_id
    context = app.Context(
      run_id=1,
      node_id=node,
      node_config={
        'partition-id': self._nodes[node],
        'num-partitions': len(self._nodes),
      },
      state=app.RecordDict(),
      run_config={},
    )
    try:
      return self._client_app(message, context)
    except Exception as error:
      # As in Flower's simulation engine, the reply is an error message.
      return app.Message(app.Error(0, str(error)), reply_to=message)
