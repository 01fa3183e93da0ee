"""Datasets from other data: conversion by many processes, and the merging of indexes."""

from headrace.convert.merge import merge_index

__all__ = ['merge_index']
