"""Datasets from other data: conversion by many processes, the merging of indexes, and copies."""

from headrace.convert.copy import CopyReport, copy_dataset
from headrace.convert.merge import merge_index

__all__ = ['CopyReport', 'copy_dataset', 'merge_index']
