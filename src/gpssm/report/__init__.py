"""The report of a fit as a single HTML file.

    write_report(posterior, "report.html", test=test)

The page is self-contained: pictures, data, style and script are embedded, and its security policy
forbids any request.
"""

from gpssm.evaluation.examine import BASELINES
from gpssm.report.content import make_report, write_report

__all__ = ["BASELINES", "make_report", "write_report"]
