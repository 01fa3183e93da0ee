"""Columns that become tensors: images and sound that are decoded, and arrays that are padded.

1. `decoding` reads which columns of a stream are decoded, and how, from Python and YAML.
2. `images` and `audio` have the settings of a column. `open` of the settings reads the head of a stored value, and
   `read_into` of the opened value decodes it into memory. Random numbers are given to it.
3. `padding` reads which columns of a loader are padded.
4. `normalize` makes floating-point numbers of images on the device.

A YAML file is read without torch, which only `normalize` and the decoding of a picture import.
"""
