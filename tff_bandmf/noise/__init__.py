"""The noise y = C^-1 z of a run, from the secret key to the sum of a round.

C is the strategy matrix, and row t of y is y_t, the noise of round t. S_t is
the sum of the clipped records of round t, and coordinate i of z_t is z[t, i].

  key       256 secret bits, one key for each run             key.py
   |
  normals   z[t, i] = Phi^-1(ChaCha20(key, t, i))             generator.py
   |
  blocks    y of 4 to 64 rounds at once, from z and past y    producer/blocks.py
   |        where float64 leaves a rounding in doubt          exact.py
   |        on the host or on accelerators           producer/block_makers.py
   |        row after row, y_0, y_1, ...                      producer/stream.py
   |
  tape      a file of y_t for each round, ahead of training   tape/writer.py
   |        its folder and its files                          tape/folder.py
   |
  round     S_t + y_t; each y_t is added to one sum only      tape/reader.py
            S_t + y_t in TFF's graph                 graph_noise_source.py

S_t, y_t and their sum are integers, in steps of `lattice`. A value of
`placements` says where the noise of a run comes from. `self_test` tests y_t in
the round that adds y_t to S_t. `released_sums` records which round of a run may
be released next, and `key_use` ensures that a key file serves one run.
"""

from tff_bandmf.noise.key import Key
from tff_bandmf.noise.lattice import Lattice
from tff_bandmf.noise.producer.stream import Stream
