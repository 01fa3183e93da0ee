"""The tests of headrace."""
