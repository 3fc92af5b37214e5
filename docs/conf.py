"""Configuration of Sphinx: Markdown pages, and notebooks that run in the build.

Neither the build nor the pages fetch anything from the network.
"""

import os
import pathlib
import sys

_DOCS = pathlib.Path(__file__).resolve().parent
_ROOT = _DOCS.parent
sys.path[:0] = [str(_ROOT), str(_DOCS)]

import docstrings  # noqa: E402
import docutils.nodes  # noqa: E402
import kernels  # noqa: E402
import sphinx.addnodes  # noqa: E402

import tff_bandmf  # noqa: E402

# Paths for the kernels of the notebooks, and for `bandmf` in them.
for name, folder in (
  ('PYTHONPATH', _ROOT),
  ('PATH', pathlib.Path(sys.executable).parent),
):
  os.environ[name] = os.pathsep.join([str(folder), os.environ.get(name, '')])
os.environ.update(
  TF_CPP_MIN_LOG_LEVEL='3',
  COLUMNS='80',
  # Sphinx imports Matplotlib before it forks the kernels, which would set this
  # variable too late.
  MPLBACKEND='module://matplotlib_inline.backend_inline',
  # The same filter as in pyproject.toml, for old dependencies of TFF.
  PYTHONWARNINGS='ignore:pkg_resources is deprecated:UserWarning',
)

project = 'tff_bandmf'
copyright = 'the authors of tff_bandmf'
version = release = tff_bandmf.__version__

extensions = ['myst_nb', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon']
exclude_patterns = ['README.md']
default_role = 'code'

html_theme = 'alabaster'
html_theme_options = {
  'description': 'Matrix-factorization noise for differential privacy in '
  'TensorFlow Federated',
  'fixed_sidebar': True,
  'narrow_sidebar_bg': '#eee',
  'narrow_sidebar_fg': '#333',
  'narrow_sidebar_link': '#004b6b',
  'page_width': '1020px',
  'show_powered_by': False,
}
html_static_path = ['_static']
html_show_sourcelink = False
html_copy_source = False
smartquotes = False

myst_heading_anchors = 3
myst_enable_extensions = ['deflist']
nb_execution_mode = 'force'
nb_execution_raise_on_error = True
nb_execution_in_temp = True
# Maximum seconds of a notebook's cell; generous, because the machine may be
# busy.
nb_execution_timeout = 600
nb_merge_streams = True
# Pages load no scripts from other sites.
nb_ipywidgets_js = {}

autodoc_member_order = 'bysource'
autodoc_typehints = 'signature'
autodoc_typehints_format = 'short'
# Sphinx documents a class in its package and in its module.
suppress_warnings = ['ref.python']
# Default values are shown as in the source. An evaluated path would name a
# folder of this machine.
autodoc_preserve_defaults = True
autodoc_default_options = {
  'members': True,
  'imported-members': True,
  'exclude-members': 'annotations',
}
napoleon_numpy_docstring = False
napoleon_use_ivar = True


def _relative(app, doctree):
  """Removes the path of the repository from the texts of literal blocks."""
  for block in doctree.findall(docutils.nodes.literal_block):
    text = block.astext().replace(f'{_ROOT}/', '')
    if text != block.astext():
      block.rawsource = text
      block.children = []
      block += docutils.nodes.Text(text)


def _download(app, doctree):
  """Links a page of the guide or the tutorials that is a notebook to its file.

  myst-nb writes the file when it runs the notebook.
  """
  page = pathlib.PurePath(app.env.docname)
  folder = pathlib.Path(app.outdir).parent / 'jupyter_execute'
  path = (folder / page).with_suffix('.ipynb')
  if page.parts[0] not in ('guide', 'tutorials') or not path.exists():
    return
  link = sphinx.addnodes.download_reference(
    '', path.name, reftarget=f'/{os.path.relpath(path, app.srcdir)}'
  )
  text = docutils.nodes.paragraph('', 'This page is a notebook: ', link)
  # The first node of a section is its title.
  next(doctree.findall(docutils.nodes.section)).insert(1, text)


def setup(app):
  app.connect('doctree-read', _relative)
  # The file is collected by Sphinx's listener, which has priority 500.
  app.connect('doctree-read', _download, priority=400)
  # The priority of napoleon is 500; smaller priorities come first.
  app.connect('autodoc-process-docstring', docstrings.process, priority=400)
  app.connect('autodoc-process-signature', docstrings.with_defaults)
  kernels.use()
