"""The noise y = C^-1 z of a run, from its secret key to the sum of a round.

  key       256 secret bits, one key for each run             key.py
   |
  normals   z[t, i] = Phi^-1(ChaCha20(key, t, i))             generator.py
   |
  blocks    y of 4 to 64 rounds at once, from z and past y    producer/blocks.py
   |        on the host or on accelerators                    producer/makers.py
   |        row after row, y_0, y_1, ...                      producer/stream.py
   |
  tape      a file of y_t for each round, ahead of training   tape/writer.py
   |        its folder and its files                          tape/folder.py
   |
  round     S_t + y_t in TFF's graph; each y_t for one sum    tape/reader.py
            the choice of tape, server or TFF's state         source.py

All numbers are integers on the lattice of `lattice`. `placements` holds the
values with which a user chooses where noise comes from. `self_test` tests y_t
in the round that adds it. `position` says which round of a run is open, and
`key_use` ensures that a key file serves one run. With `placements.InState`
there are neither blocks nor a tape: `graph_generator` makes z in the graph, and
the state remembers past y.
"""

from tff_bandmf.noise.key import Key
from tff_bandmf.noise.lattice import Lattice
from tff_bandmf.noise.producer.stream import Stream
