"""Stores beside the main road: SFTP, Oracle's cloud, Databricks, the Hugging Face Hub."""
