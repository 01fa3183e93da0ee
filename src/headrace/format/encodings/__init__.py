"""The encodings of MDS columns, which turn values into bytes and back.

A name is one of ``get_mds_encodings()``, or ``ndarray:<dtype>`` or ``ndarray:<dtype>:<d0>,<d1>...``. The
decorator ``named`` registers the classes of this package; ``register_encoding`` adds others.
"""
