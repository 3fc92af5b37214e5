"""Installs `tff_bandmf`, all of it that needs no TensorFlow Federated."""

import pathlib

import setuptools

# TensorFlow Federated is in no requirement and no extra: its release pins a
# jaxlib that cannot be installed any more, and a pin cannot be overridden from
# here. `make env` installs it from the locks in requirements/.

_PLOT = ['matplotlib>=3.7']
_SIMULATIONS = [
  'dacite>=1.8',
  'scikit-learn>=1.3',
  'sqlalchemy>=1.4,<2',
  'tomli>=2; python_version < "3.11"',
]
_DEV = [
  'hypothesis>=6.100',
  'psutil>=5',
  'pytest>=8',
  'pytest-xdist>=3',
  'ruff>=0.5',
]

_README = pathlib.Path(__file__).parent / 'README.md'

setuptools.setup(
  name='tff-bandmf',
  version='0.1.0',
  description=(
    'Correlated-noise differential privacy for TensorFlow Federated'
  ),
  long_description=_README.read_text(encoding='utf-8'),
  long_description_content_type='text/markdown',
  license='Apache-2.0',
  license_files=['LICENSE'],
  classifiers=[
    'Intended Audience :: Science/Research',
    'Operating System :: POSIX :: Linux',
    'Programming Language :: Python :: 3.9',
    'Programming Language :: Python :: 3.10',
    'Programming Language :: Python :: 3.11',
    'Topic :: Scientific/Engineering :: Artificial Intelligence',
  ],
  python_requires='>=3.9,<3.12',
  packages=setuptools.find_packages(
    include=['tff_bandmf', 'tff_bandmf.*', 'simulations', 'simulations.*']
  ),
  package_data={'': ['*.j2', '*.json']},
  install_requires=[
    'click>=8.1',
    'cryptography>=41',
    'dp-accounting>=0.4.3,<0.7',
    'jinja2>=3.1',
    'numpy>=1.24,<2',
    'scipy>=1.9.3,<2',
    'tabulate>=0.9',
    'tensorflow>=2.14,<2.15',
    'tensorflow-privacy>=0.9,<0.10',
    'tqdm>=4.64',
  ],
  extras_require={
    'plot': _PLOT,
    'simulations': _SIMULATIONS,
    'dev': _DEV + _PLOT + _SIMULATIONS,
  },
  entry_points={
    'console_scripts': [
      'bandmf = tff_bandmf.cli.main:main',
      'bandmf-data = simulations.import_data:main',
    ]
  },
)
