"""The folder of a run on disk; `run_json` lists its files."""

from tff_bandmf.run_files.run_json import RunDetails
