"""Special cases of the native order. The way from a position to a sample is understood without them.

`fixed_subset`: ``sampling_method: fixed``. `stratified_free`: batches that the canonical nodes do not divide.
`long_window`: windows of very many streams. `inverse`: from a sample to its positions.
"""
