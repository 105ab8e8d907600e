"""Studies of fleets that do not exist: scenarios, populations, three engines, attackers, and the report of a study.

What is exported here is for users, with a stability word each in docs/api.md; code of this repository imports from the
modules. Loads nothing before a name is used.
"""

from typing import TYPE_CHECKING

__all__ = [
    "STANDARD",
    "CaseSummary",
    "Scenario",
    "ScenarioError",
    "StudySettings",
    "ThisProcess",
    "WorkerPool",
    "read_scenario",
    "report",
    "run_study",
]

if TYPE_CHECKING:
    from fleetcount_simulator import report
    from fleetcount_simulator.errors import ScenarioError
    from fleetcount_simulator.scenario.file import read_scenario
    from fleetcount_simulator.scenario.plan import Scenario
    from fleetcount_simulator.study.experiment import CaseSummary, StudySettings, run_study
    from fleetcount_simulator.study.registries import STANDARD
    from fleetcount_simulator.study.scale import ThisProcess, WorkerPool
else:
    from fleetcount_mechanisms.lazy_exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "errors": "ScenarioError",
            "report": "report",
            "scenario.file": "read_scenario",
            "scenario.plan": "Scenario",
            "study.experiment": "CaseSummary StudySettings run_study",
            "study.registries": "STANDARD",
            "study.scale": "ThisProcess WorkerPool",
        },
    )
