"""What the suite itself needs: durations, numbers of examples, coverage of combinations."""
