"""Fixtures for all tests. The folder of this file is on the import path: `from waiting import until`."""
