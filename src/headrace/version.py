"""The version of headrace; a build reads it here too. A copy of the sources has it without being installed."""

__version__ = '0.2.0'
