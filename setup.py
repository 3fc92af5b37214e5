"""Installs `tff_bandmf`: the core, and what each extra adds to it."""

import pathlib
import runpy

import setuptools

# TensorFlow Federated is in no requirement and no extra: it pins a jaxlib, and
# its google-vizier an SQLAlchemy, that cannot be installed any more, and a pin
# cannot be overridden from here. This is what both require, but for that; they
# are installed after it, with pip's --no-deps. `make env` does all from the
# locks in requirements/.
_TFF = [
  'absl-py>=1,<2',
  'attrs==23.1.0',
  'cachetools>=5.3,<6',
  'googleapis-common-protos==1.61.0',
  'grpcio>=1.62,<2',
  'grpcio-tools>=1.62,<1.63',
  'jax==0.4.30',
  'jaxlib==0.4.30',
  'numpy>=1.25,<2',
  'portpicker>=1.6,<2',
  'scipy>=1.9.3,<1.10',
  'setuptools<81',
  'tensorflow>=2.14,<2.15',
  'tensorflow-model-optimization==0.7.5',
  'tensorflow-privacy==0.9.0',
  'typing-extensions>=4.5,<4.6',
]
_JAX = ['jax>=0.4.30']
# TensorFlow alone: the version that TFF pins, where TFF can be installed.
_OPTIMIZER = [
  'tensorflow>=2.14,<2.15; python_version < "3.12"',
  'tensorflow>=2.16; python_version >= "3.12"',
]
# Flower's simulation engine is its extra: flwr[simulation].
_FLOWER = ['flwr>=1.41,<2']
# Later versions need NumPy 2, which TFF does not take, and do not say so.
_LOGS = [
  'pyarrow>=14,<21; python_version < "3.12"',
  'pyarrow>=14; python_version >= "3.12"',
]
_POSTGRESQL = ['psycopg2-binary>=2.9']
_PLOTS = ['matplotlib>=3.7']
_TENSORBOARD = ['tensorboard>=2.14']
# A file that is read, and no code.
_PEOPLE = ['chitchat-dataset==0.9.0']
# Requirements of the folder simulations/ of a checkout, besides TFF.
_SIMULATIONS = [
  'dacite>=1.8',
  'scikit-learn>=1.3',
  'tomli>=2; python_version < "3.11"',
  *_LOGS,
  *_PLOTS,
]
_DOCS = [
  'ipykernel>=6',
  'myst-nb>=1',
  'sphinx>=7',
]
_DEV = [
  'build>=1',
  'hypothesis>=6.100',
  'jsonschema>=4',
  'mini-racer>=0.12',
  'mypy>=1.10',
  'psutil>=5',
  'pytest>=8',
  'pytest-xdist>=3',
  'python-flint>=0.6',
  'ruff>=0.5',
  'twine>=5',
]

_ROOT = pathlib.Path(__file__).parent

setuptools.setup(
  name='tff-bandmf',
  version=runpy.run_path(str(_ROOT / 'tff_bandmf/__init__.py'))['__version__'],
  description=(
    'Correlated-noise differential privacy for TensorFlow Federated'
  ),
  long_description=(_ROOT / 'README.md').read_text(encoding='utf-8'),
  long_description_content_type='text/markdown',
  license='Apache-2.0',
  license_files=['LICENSE'],
  keywords=['differential privacy', 'federated learning'],
  classifiers=[
    'Development Status :: 4 - Beta',
    'Intended Audience :: Developers',
    'Intended Audience :: Science/Research',
    'Operating System :: POSIX :: Linux',
    'Programming Language :: Python :: 3',
    'Programming Language :: Python :: 3.9',
    'Programming Language :: Python :: 3.10',
    'Programming Language :: Python :: 3.11',
    'Programming Language :: Python :: 3.12',
    'Programming Language :: Python :: 3.13',
    'Topic :: Scientific/Engineering :: Artificial Intelligence',
    'Topic :: Security',
    'Typing :: Typed',
  ],
  python_requires='>=3.9',
  packages=setuptools.find_packages(include=['tff_bandmf', 'tff_bandmf.*']),
  package_data={'': ['*.j2', '*.js', '*.json', 'py.typed']},
  install_requires=[
    'attrs>=22.2',
    'click>=8.1',
    'cryptography>=41',
    'dm-tree>=0.1.8',
    'dp-accounting>=0.4.3,<0.7',
    'jinja2>=3.1',
    'mpmath>=1.3',
    'msgspec>=0.19',
    'numpy>=1.24,<3',
    'pyyaml>=6',
    'scipy>=1.9.3,<2',
    'sqlalchemy>=1.4,<3',
    'tabulate>=0.9',
    'threadpoolctl>=3',
    'tomli>=2; python_version < "3.11"',
    'tqdm>=4.64',
  ],
  extras_require={
    'tff': _TFF,
    'jax': _JAX,
    'optimizer': _OPTIMIZER,
    'flower': _FLOWER,
    'logs': _LOGS,
    'plots': _PLOTS,
    'people': _PEOPLE,
    'postgresql': _POSTGRESQL,
    'simulations': _SIMULATIONS,
    'tensorboard': _TENSORBOARD,
    'docs': _DOCS,
    'dev': _DEV + _DOCS + _POSTGRESQL + _SIMULATIONS + _TFF,
  },
  entry_points={
    'console_scripts': [
      'bandmf = tff_bandmf.cli.main:main',
    ]
  },
)
