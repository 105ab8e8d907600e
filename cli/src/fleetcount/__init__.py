"""The `fleetcount` command, and what an analyst imports: `import fleetcount as fc`.

What is exported here is for users, with a stability word each in docs/api.md. Loads nothing before a name is used.
"""

# Not from `typing`, whose import alone takes longer than this module may.
TYPE_CHECKING = False

__version__ = "0.1.0"

__all__ = [
    "AnalysisError",
    "Budget",
    "CellHistory",
    "CheckFailedError",
    "Crosstab",
    "FleetcountError",
    "Keys",
    "MissingPackageError",
    "PlannedCount",
    "Release",
    "Releases",
    "SignatureError",
    "Statement",
    "Study",
    "Table",
    "UnverifiedError",
    "UsageError",
    "VerifiedRelease",
    "plan",
    "read_keys",
    "read_release",
    "read_releases",
    "simulate",
]

if TYPE_CHECKING:
    from fleetcount_analysis.errors import AnalysisError
    from fleetcount_protocol.errors import FleetcountError, SignatureError, UsageError

    from fleetcount.analyst.crosstab import Crosstab
    from fleetcount.analyst.kept_releases import Budget, CellHistory, Releases, read_releases
    from fleetcount.analyst.keys import Keys, read_keys
    from fleetcount.analyst.planning import PlannedCount, plan
    from fleetcount.analyst.releases import Release, UnverifiedError, VerifiedRelease, read_release
    from fleetcount.analyst.studies import Study, simulate
    from fleetcount.analyst.tables import MissingPackageError, Statement, Table
    from fleetcount.command.base import CheckFailedError
else:
    _HOMES = {
        "fleetcount.analyst.crosstab": "Crosstab",
        "fleetcount.analyst.keys": "Keys read_keys",
        "fleetcount.analyst.planning": "PlannedCount plan",
        "fleetcount.analyst.releases": "Release UnverifiedError VerifiedRelease read_release",
        "fleetcount.analyst.kept_releases": "Budget CellHistory Releases read_releases",
        "fleetcount.analyst.studies": "Study simulate",
        "fleetcount.analyst.tables": "MissingPackageError Statement Table",
        "fleetcount.command.base": "CheckFailedError",
        "fleetcount_analysis.errors": "AnalysisError",
        "fleetcount_protocol.errors": "FleetcountError SignatureError UsageError",
    }

    def __getattr__(name):
        from importlib import import_module

        home = next((module for module, names in _HOMES.items() if name in names.split()), None)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(home), name)

    def __dir__():
        return sorted(__all__)
