"""Files that one process of a machine writes and all others map: index tables, permutations."""
