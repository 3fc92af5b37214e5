"""`python -m tff_bandmf` is `bandmf`."""

import sys

from tff_bandmf.cli import main

if __name__ == '__main__':
  sys.exit(main.main())
