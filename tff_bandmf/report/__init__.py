"""The privacy report of a run; reads the files of its directory alone."""

from tff_bandmf.report.files import COMPARE_DIRECTORY
from tff_bandmf.report.files import LEDGER_FILE
from tff_bandmf.report.files import MARKDOWN_FILE
from tff_bandmf.report.files import METRICS_FILE
from tff_bandmf.report.files import RESULT_FILE
from tff_bandmf.report.files import RUN_FILE
from tff_bandmf.report.files import RUN_FORMAT
from tff_bandmf.report.files import RUN_VERSION
from tff_bandmf.report.files import STRATEGY_FILE
from tff_bandmf.report.report import write
