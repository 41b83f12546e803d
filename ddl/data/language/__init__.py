"""Sets of text: bytes, tokens, and files of them."""
