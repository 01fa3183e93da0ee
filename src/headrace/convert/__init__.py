"""Datasets from other data: conversion by many processes, the merging of indexes, copies, and a way back."""

from headrace.convert.conversion import convert
from headrace.convert.copy import CopyReport, copy_dataset
from headrace.convert.erase import EraseReport, erase
from headrace.convert.merge import KeptIndex, kept_indexes, merge_index, rollback
from headrace.convert.report import ConversionReport, InputError
from headrace.convert.reshard import ReshardReport, reshard
from headrace.convert.spark import dataframe_to_mds, infer_dataframe_schema
from headrace.convert.to_hugging_face import to_hugging_face
from headrace.convert.tokenize import tokenize

__all__ = [
    'ConversionReport',
    'CopyReport',
    'EraseReport',
    'InputError',
    'KeptIndex',
    'ReshardReport',
    'convert',
    'copy_dataset',
    'dataframe_to_mds',
    'erase',
    'infer_dataframe_schema',
    'kept_indexes',
    'merge_index',
    'reshard',
    'rollback',
    'to_hugging_face',
    'tokenize',
]
