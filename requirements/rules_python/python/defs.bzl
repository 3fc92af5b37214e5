"""Rules of Python that Bazel before version 7 has built in.

WORKSPACE takes this folder for the repository rules_python, so that BUILD can
load the rules as later versions of Bazel require, and nothing is downloaded.
"""

py_binary = native.py_binary
py_library = native.py_library
py_test = native.py_test
