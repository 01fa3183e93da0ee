"""Problems of a run, found before it starts: of the machine, the launcher, versions, stores and caches."""

from headrace.cli.doctor.data import Place, check_data, places_of
from headrace.cli.doctor.machine import Finding, check_launcher, check_machine, check_versions

__all__ = ['Finding', 'Place', 'check_data', 'check_launcher', 'check_machine', 'check_versions', 'places_of']
