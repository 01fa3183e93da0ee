"""Small datasets and configurations."""
