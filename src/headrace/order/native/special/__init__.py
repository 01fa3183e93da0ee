"""Special cases of the native order. The way from a position to a sample is understood without them.

`fixed_subset`: ``sampling_method: fixed``. `stratified_free`: batches that the canonical nodes do not divide.
`inverse`: from a sample to its place in a cell.
"""
