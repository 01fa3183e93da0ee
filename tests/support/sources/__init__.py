"""Files of other formats, and what is read of them."""
