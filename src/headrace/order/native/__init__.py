"""The native order: any position of any epoch, by arithmetic."""
