"""Pages of the documentation: their code runs, and programs write some of their tables."""
